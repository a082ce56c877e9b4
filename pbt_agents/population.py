"""What a population is: one agent, the values searched, and how selection works. A recipe is a file that exports POPULATION."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from typing import Any

from pbt_agents.checks import require
from pbt_agents.config import AgentConfig, field_path
from pbt_agents.errors import unknown_name
from pbt_agents.scheduling.mutation import Explore, Perturbation
from pbt_agents.scheduling.selection import MultiFrequency, Selection, Truncation
from pbt_agents.scheduling.stability import StabilityBudget
from pbt_agents.search_space import search_space


@dataclass(frozen=True)
class Budget:
    """When a population stops: at the first of these. None is no limit."""

    updates: int | None = None
    """Optimizer steps of each member."""
    minutes: float | None = None
    """Wall clock, from the moment when the engines are up."""
    cpu_seconds: float | None = None
    """Of all processes of the run together, from the same moment."""
    fitness: float | None = None
    """Early, as soon as one evaluation of a member is at least this; beside one of the others, since it may never be reached."""

    def __post_init__(self) -> None:
        limits = {"updates": self.updates, "minutes": self.minutes, "cpu_seconds": self.cpu_seconds}
        require(any(limit is not None for limit in limits.values()), "a budget needs updates, minutes or cpu_seconds; all are None.")
        for name, limit in limits.items():
            require(limit is None or limit > 0, f"{name} must be above 0, got {limit}. Leave it out for no limit.")
            require(limit is None or limit < math.inf, f"{name} must be finite, got {limit}. Leave it out for no limit.")
        reachable = self.fitness is None or math.isfinite(self.fitness)
        require(reachable, f"fitness must be finite, got {self.fitness}. Leave it out for no early end.")


@dataclass(frozen=True)
class PopulationSpec:
    """A population and its search."""

    agent: AgentConfig = field(default_factory=AgentConfig)
    search_space: Mapping[str, Any] = field(default_factory=dict)
    """Config field -> a Ray Tune domain, or an ordered list to step along."""
    size: int = 4
    budget: Budget = field(default_factory=lambda: Budget(updates=60))
    perturbation_updates: int = 10
    """Optimizer steps between two looks at the population, which follow an evaluation: rounded up to whole intervals of those."""
    selection: Selection = field(default_factory=Truncation)
    """Who is replaced by whom: Truncation, Tournament or MultiFrequency of scheduling/selection.py, or one's own."""
    explore: Explore = field(default_factory=Perturbation)
    """How a clone's values differ from its donor's: Perturbation of scheduling/mutation.py, or one's own."""
    stability: StabilityBudget | None = None
    """Keeps new learning rates within what the run has seen to be stable at their staleness; see scheduling/stability.py."""
    synchronous: bool = False
    """Members wait for each other at the end of each interval and are judged together. It costs the time of the slowest each time."""
    initial: tuple[Mapping[str, Any], ...] | None = None
    """First values of each member; None draws them from the search space, each from its own part of every range.

    A single member then has the agent's own.
    """
    exploit: bool = True
    """False runs the same members side by side without any copying."""

    def __post_init__(self) -> None:
        for name in ("size", "perturbation_updates"):
            require(isinstance(getattr(self, name), int), f"{name} must be a whole number, got {getattr(self, name)!r}.")
        require(isinstance(self.synchronous, bool), f"synchronous must be True or False, got {self.synchronous!r}.")
        require(self.size >= 1, f"size of the population must be at least 1, got {self.size}. A population of 1 trains one agent.")
        slots = self.agent.fleet.slots
        require(self.size <= slots, f"size is {self.size}, but the fleet has slots for {slots}. Raise slots, or take of_size({self.size}).")
        require(
            self.initial is None or len(self.initial) == self.size,
            f"initial must hold the values of all {self.size} members, got {len(self.initial or ())}.",
        )
        self._check_strategies()
        for values in self.initial or ():
            names = isinstance(values, Mapping) and set(values) == set(self.search_space)
            require(names, f"initial has a value of each of {', '.join(self.search_space)} for each member, got {values!r}.")
        if isinstance(self.selection, MultiFrequency):
            least = self.selection.smallest_population
            require(self.size >= least, f"size is {self.size}, but periods {self.selection.periods} need {least} members, two for each.")
        require(self.perturbation_updates >= 1, f"perturbation_updates must be at least 1, got {self.perturbation_updates}.")

    def _check_strategies(self) -> None:
        chooses = all(callable(getattr(self.selection, verb, None)) for verb in ("donors", "donor_for"))
        require(
            chooses and not isinstance(self.selection, type),
            f"selection is Truncation(), Tournament(), MultiFrequency() or one's own with their verbs, got {self.selection!r}.",
        )
        require(
            callable(self.explore) and not isinstance(self.explore, type),
            f"explore is Perturbation() or a function of values, space and rng, got {self.explore!r}.",
        )
        if self.stability is not None:
            require(isinstance(self.stability, StabilityBudget), f"stability is StabilityBudget() or None, got {self.stability!r}.")
            if self.stability.rate not in self.search_space:
                raise unknown_name("searched setting that stability is to keep (rate)", self.stability.rate, self.search_space)
            field_path(self.stability.window)

    def of_size(self, size: int) -> "PopulationSpec":
        """The same search with another number of members, and a fleet that has a slot for each.

        First values that were given are for the members there were: other members draw theirs.
        """
        agent = replace(self.agent, fleet=replace(self.agent.fleet, slots=max(size, 1)))
        return replace(self, size=size, agent=agent, initial=self.initial if size == self.size else None)

    def to_dict(self) -> dict[str, Any]:
        """Everything, defaults included, in plain values: for reading, and `agent` for AgentConfig.from_dict."""
        ranges = search_space(self.search_space) if self.search_space else {}
        space = {name: {"kind": type(domain).__name__, **asdict(domain)} for name, domain in ranges.items()}
        strategies = {name: _plain(getattr(self, name)) for name in ("selection", "explore", "stability")}
        return {**vars(self), "agent": self.agent.to_dict(), "search_space": space, "budget": asdict(self.budget), **strategies}


def _plain(strategy: Any) -> Any:
    """Its kind and settings; of one that is no dataclass, its name."""
    if strategy is None:
        return None
    if is_dataclass(strategy) and not isinstance(strategy, type):
        return {"kind": type(strategy).__name__, **asdict(strategy)}
    named = strategy if hasattr(strategy, "__qualname__") else type(strategy)
    return {"kind": f"{named.__module__}:{named.__qualname__}"}
