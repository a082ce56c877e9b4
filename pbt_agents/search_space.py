"""One declaration of what is searched: names of config fields, each with a Ray domain or an ordered list.

Owns the ranges, which fields may be searched, a population's first values and Ray's `param_space`. How values move
during a run is scheduling/mutation.py's.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from numpy.random import default_rng

from pbt_agents.config import AgentConfig, field_path
from pbt_agents.errors import ConfigError

_FIXED = {
    "seed": "members draw their own streams from it already, and a searched seed selects luck",
    "model": "a member could not load its donor's adapter",
    "environment": "members would be ranked on different tasks",
    "fleet": "the engines outlive every clone",
    "evaluation": "members would be ranked by different measurements",
    "capacity_bytes": "the log on disk is opened with it once",
    "segment_groups": "the log on disk is opened with it once",
    "fsync_groups": "the log on disk is opened with it once",
    "max_episode_tokens": "the engines are sized by it at their start",
    "environment_threads": "the threads are started once",
}


@dataclass(frozen=True)
class LogRange:
    """Positive numbers that move by factors."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0 < self.low < self.high < math.inf:
            raise ConfigError(f"a log range needs 0 < low < high, got {self.low} and {self.high}.")

    def at(self, fraction: float) -> float:
        """The value at a fraction in [0, 1] of the way from low to high; a uniform fraction samples the range."""
        return self.clip(self.low * math.exp(fraction * (math.log(self.high) - math.log(self.low))))

    def clip(self, value: float) -> float:
        return float(min(max(value, self.low), self.high))


@dataclass(frozen=True)
class LinearRange:
    """Numbers that move by differences."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not -math.inf < self.low < self.high < math.inf:
            raise ConfigError(f"a range needs finite bounds, low < high, got {self.low} and {self.high}.")

    def at(self, fraction: float) -> float:
        """The value at a fraction in [0, 1] of the way from low to high; a uniform fraction samples the range."""
        return self.clip(self.low + fraction * (self.high - self.low))

    def clip(self, value: float) -> float:
        return float(min(max(value, self.low), self.high))


@dataclass(frozen=True)
class Ladder:
    """Values in order, whose neighbours are near: integers, or names of alternatives."""

    values: tuple[Any, ...]

    def __post_init__(self) -> None:
        if len(set(self.values)) != len(self.values) or len(self.values) < 2:
            raise ConfigError(f"a ladder needs at least two values, all different, got {list(self.values)}.")
        if all(map(_is_number, self.values)) and list(self.values) != sorted(self.values):
            raise ConfigError(f"a ladder of numbers must rise, got {list(self.values)}. Write {sorted(self.values)}.")

    def at(self, fraction: float) -> Any:
        """The value at a fraction in [0, 1] of the way up; a uniform fraction samples the ladder."""
        return self.values[min(int(fraction * len(self.values)), len(self.values) - 1)]

    def clip(self, value: Any) -> Any:
        """The value itself when it is a rung, else the nearest one; the first where nearness has no meaning."""
        if value in self.values:
            return self.values[self.values.index(value)]
        if not all(map(_is_number, (value, *self.values))):
            return self.values[0]
        return min(self.values, key=lambda rung: abs(rung - value))


Range = LogRange | LinearRange | Ladder


def search_space(declared: Mapping[str, Any]) -> dict[str, Range]:
    """Ray's domains and ordered lists as ranges, for any Trainable's names. Ranges pass through."""
    if not declared:
        raise ConfigError("the search space is empty. Name at least one setting, e.g. {'learning_rate': tune.loguniform(1e-5, 1e-2)}.")
    return {name: _range(name, domain) for name, domain in declared.items()}


def agent_search_space(base: AgentConfig, declared: Mapping[str, Any]) -> dict[str, Range]:
    """The same for agents: every name is a field that a living agent can change, every value one that the field accepts."""
    space = search_space(declared)
    fields: dict[tuple[str | None, str], str] = {}
    for name, domain in space.items():
        section, leaf = field_path(name)
        if (section, leaf) in fields:
            raise ConfigError(f"the search space names one setting twice: '{fields[section, leaf]}' and '{name}'. Keep one.")
        fields[section, leaf] = name
        reason = _FIXED.get(section or leaf) or _FIXED.get(leaf)
        if reason:
            raise ConfigError(f"'{name}' cannot be searched: {reason}. Set it in the agent's config.")
        _check_values(base, name, domain)
    _check_bounds(base, space, fields)
    return space


def initial_values(declared: Mapping[str, Any], size: int, seed: int) -> list[dict[str, Any]]:
    """First values of `size` members, one in each `size`-th part of every range: few members must not start all alike."""
    rng = default_rng(seed)
    members: list[dict[str, Any]] = [{} for _ in range(size)]
    for name, domain in search_space(declared).items():
        for member, part in zip(members, rng.permutation(size), strict=True):
            member[name] = domain.at((part + rng.random()) / size)
    return members


def param_space(base: AgentConfig, declared: Mapping[str, Any]) -> dict[str, Any]:
    """Ray's `param_space`: the whole agent under `agent`, and a domain for each searched name.

    Ray samples the first values; `BasicVariantGenerator(points_to_evaluate=initial_values(...))` as `search_alg` sets them.
    """
    return {"agent": base.to_dict(), **{name: ray_domain(domain) for name, domain in agent_search_space(base, declared).items()}}


def ray_domain(domain: Range) -> Any:
    """What Ray samples a first value from."""
    from ray import tune

    match domain:
        case LogRange(low, high):
            return tune.loguniform(low, high)
        case LinearRange(low, high):
            return tune.uniform(low, high)
        case Ladder(values):
            return tune.choice(list(values))


def _range(name: str, domain: Any) -> Range:
    """A declared domain as a range. Ray's domains are known by their class and sampler: importing them here would import Ray."""
    if isinstance(domain, Range):
        return domain
    kind, sampler = type(domain).__name__, str(getattr(domain, "sampler", None) or "Uniform")
    try:
        if isinstance(domain, list | tuple):
            return Ladder(tuple(value.item() if hasattr(value, "item") else value for value in domain))
        if kind == "Float" and sampler == "LogUniform":
            return LogRange(float(domain.lower), float(domain.upper))
        if kind == "Float" and sampler == "Uniform":
            return LinearRange(float(domain.lower), float(domain.upper))
        if kind == "Categorical" and sampler == "Uniform":
            return Ladder(tuple(domain.categories))
    except ConfigError as error:
        raise ConfigError(f"search space of '{name}': {error}") from error
    raise ConfigError(
        f"search space of '{name}': {domain!r} ({kind}, {sampler}) cannot be searched. Use tune.loguniform or tune.uniform, "
        "or an ordered list for integers and alternatives, e.g. [1, 2, 4, 8]."
    )


def _check_values(base: AgentConfig, name: str, domain: Range) -> None:
    if isinstance(AgentConfig().value(name), int) and not isinstance(domain, Ladder):
        raise ConfigError(f"search space of '{name}': it is a whole number. Search it over an ordered list, e.g. [1, 2, 4, 8].")
    for value in _ends(domain):
        try:
            base.with_values({name: value})
        except ConfigError as error:
            raise ConfigError(f"search space of '{name}' holds {value}: {error}") from error


def _check_bounds(base: AgentConfig, space: Mapping[str, Range], fields: Mapping[tuple[str | None, str], str]) -> None:
    """A bound is searched only if every objective that a member may have uses it."""
    searched = fields.get(("objective", "objective"))
    members = [base.with_values({searched: value}) for value in _ends(space[searched])] if searched else [base]
    for objective in (member.objective for member in members):
        for bound in objective.ignored:
            if ("objective", bound) in fields:
                raise ConfigError(
                    f"'{fields['objective', bound]}' cannot be searched: objective '{objective.objective}' does not use it. "
                    "Take it out of the search space, or choose another objective."
                )


def _ends(domain: Range) -> tuple[Any, ...]:
    """Every value of a ladder, the lowest and the highest of a range."""
    return domain.values if isinstance(domain, Ladder) else (domain.low, domain.high)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)
