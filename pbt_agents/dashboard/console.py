"""Plain lines about each member, now and then: readable on a terminal and in a file."""

import sys
import textwrap
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TextIO

from ray.tune import Callback

from pbt_agents.scheduling.in_place import CUT_SHORT


class ConsoleLines(Callback):
    """A line for each result and each failure. `member(trial)` names a member, `parent(member)` says whose clone it is."""

    def __init__(self, member: Callable[[Any], str], parent: Callable[[str], str | None], stream: TextIO = sys.stdout) -> None:
        self._member, self._parent, self._stream = member, parent, stream
        self._started = time.monotonic()

    def on_trial_result(self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any) -> None:
        if result.get(CUT_SHORT):
            return
        member = self._member(trial)
        self._say(line(member, result, self._parent(member)))
        if remark := result.get("remark"):
            self._say(f"{member}{' ends' if result.get('done') else ''}: {textwrap.shorten(remark, 240)}")

    def on_trial_recover(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._say(f"{self._member(trial)} failed and goes on from its last checkpoint: {why(trial)}")

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._say(f"{self._member(trial)} failed for good: {why(trial)}")

    def _say(self, text: str) -> None:
        print(f"{time.monotonic() - self._started:6.0f} s  {text}", file=self._stream, flush=True)


def why(trial: Any) -> str:
    """The last line of a trial's error, cut short, and where the whole of it will be."""
    try:
        lines = [text.strip() for text in Path(trial.error_file).read_text().splitlines()]
    except OSError as error:
        lines = [str(error)]
    reason = next((text for text in reversed(lines) if text), "no reason is known")
    return f"{textwrap.shorten(reason, 200)} ({trial.storage.trial_fs_path}/{Path(trial.error_file).name})"


def line(member: str, result: Mapping[str, Any], parent: str | None) -> str:
    """One member's standing, from the values that ran. Some objectives have no cap."""
    cap = f"{result['ratio_max']:4.1f}" if "ratio_max" in result else "   -"
    return (
        f"{member}  update {result['updates']:4d}  score {result['fitness']:6.3f} ±{result.get('fitness_se', float('nan')):.3f}  "
        f"rate {result['learning_rate']:.1e}  cap {cap}  window {result['window']:2d}  "
        f"lag {result.get('trainer/lag_steps_mean', float('nan')):4.1f}" + (f"  from {parent}" if parent else "")
    )
