"""An Optuna study that runs are written to, and that first values of later ones come from.

A stretch of training with the same values is one trial: its evaluations are the intermediate values, at their steps along the line of
descent, and the last of them is its value. Since a clone begins with its parent's weights, a value is not of the searched values alone: the
user attributes `start` and `score_at_start` say what it began with, and `gain` what it added.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial
from sqlalchemy.exc import SQLAlchemyError

from pbt_agents.checks import require
from pbt_agents.errors import ConfigError
from pbt_agents.export.stretches import Stretch, stretches
from pbt_agents.json_files import as_written, read_json
from pbt_agents.run_folder import MANIFEST
from pbt_agents.search_space import Ladder, LinearRange, LogRange, Range, initial_values, search_space

_SQLITE = "sqlite:///"
ENOUGH = 10
"""Trials of former runs from which first values are worth more than an even spread over the ranges."""


class Study:
    """The study `name` in Optuna's storage, made when it is not there. Raises ConfigError when it cannot be opened."""

    def __init__(self, storage: str, name: str) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        try:
            if storage.startswith(_SQLITE):
                Path(storage.removeprefix(_SQLITE)).parent.mkdir(parents=True, exist_ok=True)
            self._study = optuna.create_study(study_name=name, storage=storage, direction="maximize", load_if_exists=True)
        except (SQLAlchemyError, ImportError, ValueError, RuntimeError, OSError) as error:
            reason = str(error).partition("\n")[0]
            raise ConfigError(
                f"study '{storage}' cannot be opened: {reason}. Name one of Optuna's storages, e.g. sqlite:///runs/study.db."
            ) from error

    def first_values(self, declared: Mapping[str, Any], size: int, seed: int) -> list[dict[str, Any]]:
        """For each of `size` members: from Optuna's TPE sampler, after what first stretches of former runs came to; or spread evenly over
        the ranges (search_space.initial_values) while there are fewer than ENOUGH of those in these ranges.
        """
        distributions = {name: _distribution(domain) for name, domain in search_space(declared).items()}
        ended = [TrialState.COMPLETE, TrialState.PRUNED]
        former = [trial for trial in self._study.get_trials(states=ended) if _is_first(trial, distributions)]
        if len(former) < ENOUGH:
            return initial_values(declared, size, seed)
        sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=0, constant_liar=True)
        asked = optuna.create_study(direction="maximize", sampler=sampler)  # in memory: trials that never end are none of the study's
        asked.add_trials(former)
        return [asked.ask(distributions).params for _ in range(size)]

    def add(self, run: Path) -> int:
        """Add a run's stretches, and say how many: those that are there already are not added again.

        Raises ConfigError for a run that has not ended, or one that was not started by a recipe, and so has not kept its search space.
        """
        manifest = _manifest(run)
        with as_written(run / MANIFEST):
            kinds = {name: dict(domain) for name, domain in manifest["population"]["search_space"].items()}
            space = {name: _distribution(_KINDS[domain.pop("kind")](**domain)) for name, domain in kinds.items()}
            source = f"{run.resolve().name}, {manifest['started']:.3f}"
        found = [stretch for stretch in stretches(run) if stretch.evaluations[-1]["version"] > stretch.start]  # others trained nothing
        known = {(trial.user_attrs.get("run"), trial.user_attrs.get("stretch")) for trial in self._study.get_trials(deepcopy=False)}
        new = [number for number in range(len(found)) if (source, number) not in known]
        self._study.add_trials([_trial(found[number], space, {"run": source, "stretch": number}) for number in new])
        return len(new)


def study_of(run: Path) -> str:
    """The name of the study that a run belongs to."""
    with as_written(run / MANIFEST):
        manifest = _manifest(run)
        return study_name(manifest["settings"]["recipe"], manifest["population"]["agent"]["environment"]["id"])


def study_name(recipe: str, environment: str) -> str:
    """Scores of different environments are not to be compared."""
    return f"{recipe} on {environment}"


def _manifest(run: Path) -> Any:
    require((run / MANIFEST).is_file(), f"'{run}' holds no {MANIFEST}, which has the search space. Name a directory that --out had.")
    return read_json(run / MANIFEST)


def _ladder(values: list[Any]) -> Ladder:
    return Ladder(tuple(values))


_KINDS: dict[str, Any] = {"LogRange": LogRange, "LinearRange": LinearRange, "Ladder": _ladder}


def _distribution(domain: Range) -> BaseDistribution:
    match domain:
        case LogRange(low, high):
            return FloatDistribution(low, high, log=True)
        case LinearRange(low, high):
            return FloatDistribution(low, high)
        case Ladder(values):
            return CategoricalDistribution(values)


def _is_first(trial: FrozenTrial, distributions: Mapping[str, BaseDistribution]) -> bool:
    """Whether it began with the base model, and searched the same ranges."""
    return trial.user_attrs.get("start") == 0 and trial.distributions == distributions


def _trial(stretch: Stretch, space: Mapping[str, BaseDistribution], attributes: Mapping[str, Any]) -> FrozenTrial:
    values = {row["version"]: row["fitness"] for row in stretch.evaluations}
    last = stretch.evaluations[-1]["fitness"]
    attributes = {**attributes, "member": stretch.member, "start": stretch.start, "end": stretch.evaluations[-1]["version"]}
    if math.isfinite(stretch.score):
        attributes |= {"score_at_start": stretch.score, "gain": last - stretch.score}
    return create_trial(
        state=TrialState.COMPLETE if math.isfinite(last) else TrialState.PRUNED,  # samplers count that as bad, and leave out what failed
        value=last if math.isfinite(last) else None,
        params={name: stretch.values[name] for name in space},
        distributions=dict(space),
        user_attrs=attributes,
        intermediate_values=values,
    )
