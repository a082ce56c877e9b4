"""The decisions of a population, without Ray, files or clocks: who becomes whose clone, and with which values.

Owns the population's chance and what it has measured. Strategies are selection.py's and mutation.py's; carrying a clone out is the
scheduler's, or that of a simulation.
"""

from collections.abc import Mapping
from typing import Any

from numpy.random import default_rng

from pbt_agents.errors import unknown_name
from pbt_agents.scheduling.evidence import Evidence
from pbt_agents.scheduling.mutation import Explore
from pbt_agents.scheduling.selection import Selection, Standings
from pbt_agents.search_space import Range


class Search:
    """Scores are higher for better; steps count along the line of descent."""

    def __init__(self, space: Mapping[str, Range], selection: Selection, explore: Explore, evidence: Evidence, seed: int) -> None:
        self.space = space
        self.evidence = evidence
        self._selection, self._explore = selection, explore
        self._rng = default_rng(seed)

    def donors(self, standings: Standings) -> list[str]:
        """Who keeps a fresh snapshot, best first."""
        return self._selection.donors(standings)

    def donor_for(self, member: str, standings: Standings, interval: int) -> str | None:
        """Whom this member should copy now, or None to leave it alone; `interval` counts from 1."""
        return self._selection.donor_for(member, standings, interval, self._rng)

    def values_from(self, donor: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Values for a clone of a member with these. Beside them those that were proposed otherwise, and brought into their ranges or the
        stability budget; empty when none were. A name that explore leaves out keeps the donor's value."""
        explored = self._explore(donor, self.space, self._rng)
        if unknown := next((name for name in explored if name not in self.space), None):
            raise unknown_name("setting that explore gave back, which is not searched,", unknown, self.space)
        proposed = {**donor, **explored}
        kept = self.evidence.stable({name: domain.clip(proposed[name]) for name, domain in self.space.items()}, self.space)
        return kept, {name: proposed[name] for name in kept if kept[name] != proposed[name]}

    def state_dict(self) -> dict[str, Any]:
        return {"rng": self._rng.bit_generator.state, "evidence": self.evidence.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._rng.bit_generator.state = state["rng"]
        self.evidence.load_state_dict(state["evidence"])
