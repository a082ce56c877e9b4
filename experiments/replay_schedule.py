"""Train one agent on the schedule that a population found, and score it beside the population's best.

Hyper-parameters begin with the first values of the winner's line of descent, and change in place at the versions where it was cloned, as
a clone's values do. What each step trained with is read back and written beside its metrics. All else is as in the population's run.

    python experiments/replay_schedule.py runs/mine
"""

import gc
import json
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import _interpreter  # noqa: F401

from pbt_agents.command_line import parse
from pbt_agents.config import field_path
from pbt_agents.dashboard.words import setting
from pbt_agents.errors import ConfigError, NoExperienceError, NothingToLearnError, PbtAgentsError
from pbt_agents.json_files import plain, write_json
from pbt_agents.models import resolve_model
from pbt_agents.run_folder import new_run

if TYPE_CHECKING:
    from _replay_plan import Plan

    from pbt_agents.evaluation import Scores
    from pbt_agents.ring import Ring

MEMBER = "agent0"


@dataclass(frozen=True)
class Args:
    run: Path
    """Directory of a finished run."""
    out: Path | None = None
    """Directory of the replay; runs/replay-<time> when not given."""


def steps(ring: "Ring", plan: "Plan") -> Iterator[dict[str, Any]]:
    """A row for each step to the last version of the schedule, with the values that it used, read back from what trains."""
    values: Mapping[str, Any] = plan.segments[0].values
    patience, without = plan.config.evaluation.patience, 0
    while ring.trainer.version < plan.versions:
        if plan.values(ring.trainer.version) is not values:
            values = plan.values(ring.trainer.version)
            ring.apply(plan.config.with_values(values))
        try:
            row = ring.update(lambda: False)
        except NothingToLearnError:  # a population's members play on, too
            without += 1
            if without == patience:
                raise
            continue
        assert row is not None, "nobody asks it to stop"
        without = 0 if row["trainer/stepped"] else without + 1
        used = ring.settings_in_use()
        yield {**ring.in_use(), **{name: used[field_path(name)[1]] for name in values}, **standing(ring), **row}
        if without == 2 * plan.config.evaluation.updates_per_evaluation:
            raise NoExperienceError(f"{without} steps in a row were refused.")


def standing(ring: "Ring") -> dict[str, int]:
    return {"updates": ring.updates, "version": ring.trainer.version, "lineage": ring.lineage}


def train(ring: "Ring", plan: "Plan", results: TextIO, log: TextIO, tell: Callable[[str], None]) -> None:
    """All steps, and an evaluation as often as the population had one."""
    rows = []
    try:
        for row in steps(ring, plan):
            rows.append(row)
            log.write(json.dumps(plain(row), allow_nan=False) + "\n")
            last = ring.trainer.version == plan.versions
            if row["trainer/stepped"] and (ring.trainer.version % plan.config.evaluation.updates_per_evaluation == 0 or last):
                tell(evaluate(ring, plan, rows, results))
                rows = []
    except (NoExperienceError, NothingToLearnError) as error:
        tell(f"training ends at version {ring.trainer.version} of {plan.versions}: {error}")


def evaluate(ring: "Ring", plan: "Plan", rows: list[dict[str, Any]], results: TextIO) -> str:
    """A row for the results, and a line for who watches."""
    from pbt_agents.pipeline import mean_metrics

    scored = ring.evaluate(lambda: False)
    assert scored is not None, "nobody asks it to stop"
    used = {name: rows[-1][name] for name in plan.segments[0].values}
    ring.prepare(lambda: False)
    content = {**mean_metrics(rows), **scored, **ring.stats(), **rows[-1], **used, "timestamp": time.time()}
    results.write(json.dumps(plain(content), allow_nan=False) + "\n")
    fitness = f"{scored['fitness']:.3f} ±{scored['fitness_se']:.3f}"
    return f"version {ring.trainer.version:4d} of {plan.versions}  fitness {fitness}  {shown(used)}"


def shown(values: Mapping[str, Any]) -> str:
    return " ".join(f"{name} {setting(value)}" for name, value in values.items())


def replay(plan: "Plan", out: Path) -> "Scores":
    """Train, write `best/`, and score it on the test tasks of the population."""
    import torch

    from pbt_agents.dashboard.events import Note
    from pbt_agents.dashboard.plain_lines import PlainLines
    from pbt_agents.dashboard.stages import Stage
    from pbt_agents.engine_session import engines
    from pbt_agents.evaluation import Evaluator
    from pbt_agents.pipeline import trainers_at_once
    from pbt_agents.ring import Place, Ring
    from pbt_agents.trainer.lora import save_adapter

    torch.set_num_threads(1)
    model_path, folder = resolve_model(plan.config.model.path), out / "population" / MEMBER / "ring"
    folder.mkdir(parents=True)
    reporter = PlainLines()
    with ExitStack() as ended:
        with Stage(reporter, "engine", "starting an engine") as stage:
            fleet = ended.enter_context(engines(plan.config, model_path, out))
            stage.result = "the engine is ready"
        place = Place(MEMBER, plan.slot, model_path, folder, Path(fleet.folder), trainers_at_once(plan.config))
        with ExitStack() as closed:  # not a `with` in brackets, which an old Python cannot read
            ring = closed.enter_context(closing(Ring(place, plan.config, fleet.layout, lambda: fleet.connect(MEMBER))))
            log, results = (
                closed.enter_context(file.open("w", buffering=1)) for file in (folder / "updates.jsonl", folder.parent / "result.json")
            )
            with Stage(reporter, "training", "training", None, lambda: ring.trainer.version, plan.versions, "versions") as stage:
                ring.start()
                train(ring, plan, results, log, lambda line: reporter.tell(Note(line)))
                stage.result = "training has ended"
            (out / "best").mkdir()
            save_adapter(ring.trainer.model, out / "best")
        evaluator, episodes = ended.enter_context(Evaluator(fleet, plan.config, model_path)), plan.best.episodes
        doing = f"scoring on {episodes} test tasks"
        with Stage(reporter, "scoring", doing, None, evaluator.played, 2 * episodes, "episodes") as stage:
            scores = evaluator.adapter(out / "best", "test", episodes)
            stage.result = "all are scored"
        return scores


def main(args: Args) -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    out = args.out or Path(f"runs/replay-{time.strftime('%Y%m%d-%H%M%S')}")
    try:
        from _replay_plan import read_plan

        from pbt_agents.tuning import member_of

        plan = read_plan(args.run)
        settings = {"run": str(args.run), "out": str(out)}
        with new_run(out, settings, {"agent": plan.config.to_dict()}):
            print(f"{plan.versions} optimizer steps, which the population's best had behind it on its line of descent:")
            for segment in plan.segments:
                print(f"  from {segment.step:4d}: {shown(segment.values)}, as {member_of(segment.member)} trained")
            scores = replay(plan, out)
            write_json(out / "results.json", {name: asdict(one) for name, one in rows_of(plan, scores).items()})
            write_exports(out)
    except PbtAgentsError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    except KeyboardInterrupt:
        print(f"interrupted. A replay begins anew: remove '{out}', or choose another --out", file=sys.stderr)
        return 130
    print(f"{plan.best.episodes} test tasks; base model and population as the run scored them on the same tasks")
    for name, one in rows_of(plan, scores).items():
        print(f"  {name.replace('_', ' '):<16} {one}")
    print(f"adapter: {out / 'best'}; values of each step: {out / 'updates.parquet'}")
    return 0


def rows_of(plan: "Plan", scores: "Scores") -> dict[str, "Scores"]:
    return {"base_model": plan.base, "population_best": plan.best, "replay": scores}


def write_exports(out: Path) -> None:
    from pbt_agents.export.parquet import write_parquet

    write_parquet(out)


if __name__ == "__main__":
    code = main(parse(Args, positional=("run",)))
    gc.freeze()  # there is nothing to collect at the end, and looking for it takes seconds once torch is there
    sys.exit(code)
