"""Which trial of a run has which of its engines' slots, each under a lease.

A population's members keep the slots of their numbers. Trials of a sweep come and go, and take what is free.
"""

import threading
from dataclasses import dataclass


@dataclass(frozen=True)
class Lease:
    slot: int
    turn: int
    """How many others had the slot before: what a holder publishes must come after what they did."""


class SlotLeases:
    """Times are seconds of any one clock. A lease that is not renewed for `lease_s` may be given to another."""

    def __init__(self, slots: int, lease_s: float) -> None:
        self._lease_s = lease_s
        self._lock = threading.Lock()
        self._holders: list[str | None] = [None] * slots
        """The last ones, which may have given their slot back."""
        self._renewed: list[float] = [0.0] * slots
        self._held = [False] * slots
        self._turns = [-1] * slots

    def take(self, trial: str, wanted: int | None, now: float) -> Lease | None:
        """The slot that the trial has already, else the wanted one, else another that is free; None while none is."""
        with self._lock:
            free = [slot for slot in range(len(self._holders)) if not self._held[slot] or now - self._renewed[slot] > self._lease_s]
            own = [slot for slot, holder in enumerate(self._holders) if holder == trial and (self._held[slot] or slot in free)]
            for slot in [*own, *([wanted] if wanted in free else []), *free][:1]:
                if self._holders[slot] != trial:
                    self._turns[slot] += 1
                self._holders[slot], self._held[slot], self._renewed[slot] = trial, True, now
                return Lease(slot, self._turns[slot])
            return None

    def renew(self, trial: str, now: float) -> None:
        with self._lock:
            for slot in self._of(trial):
                self._renewed[slot] = now

    def give_back(self, trial: str) -> None:
        with self._lock:
            for slot in self._of(trial):
                self._held[slot] = False

    def _of(self, trial: str) -> list[int]:
        return [slot for slot, holder in enumerate(self._holders) if holder == trial and self._held[slot]]
