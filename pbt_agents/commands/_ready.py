"""An engine of its own for a command, with what it does meanwhile told on stderr: stdout is for the command's result."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from pbt_agents.commands._subject import Subject
from pbt_agents.dashboard.events import Event
from pbt_agents.dashboard.plain_lines import PlainLines
from pbt_agents.dashboard.stages import Stage

if TYPE_CHECKING:
    from pbt_agents.evaluation import Evaluator


@contextmanager
def ready_evaluator(playing: Subject, reporter: PlainLines) -> "Iterator[Evaluator]":
    """Starts an engine for the time of the block."""
    with ExitStack() as ended:
        with Stage(reporter, "engine", "starting an engine") as stage:
            from pbt_agents.engine_session import engines
            from pbt_agents.evaluation import Evaluator

            fleet = ended.enter_context(engines(playing.config, playing.model_path))
            evaluator = ended.enter_context(Evaluator(fleet, playing.config, playing.model_path))
            stage.result = "the engine is ready"
        yield evaluator


def lines_on_stderr() -> PlainLines:
    return PlainLines(_write)


def _write(event: Event, line: str) -> None:
    print(line, file=sys.stderr, flush=True)
