"""What every member has scored so far, on its line of descent: so that members are compared at the same amount of training."""

import bisect
import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from statistics import median
from typing import Any


@dataclass(frozen=True)
class Measured:
    """A result of a member, or of the ancestor that it was then."""

    step: float
    score: float
    """Higher is better."""
    error: float
    """Standard error; NaN where it is not known."""


class Progress:
    """Steps count along the line of descent, in the scheduler's unit."""

    def __init__(self) -> None:
        self._measured: dict[str, list[Measured]] = {}

    def add(self, member: str, step: float, score: float, error: float = math.nan) -> None:
        """A result. Those from here on were lost, where a member goes on from a checkpoint."""
        self._measured[member] = [*self._until(member, step, inclusive=False), Measured(step, score, error)]

    def clone(self, member: str, parent: str, step: float) -> None:
        """From now on the member has its parent's past, up to the checkpoint that it took over."""
        self._measured[member] = self._until(parent, step)

    def at(self, member: str, step: float = math.inf) -> Measured | None:
        """The member as it was at this step: its last result until then, else its first. None while there is none."""
        measured = self._measured.get(member)
        if not measured:
            return None
        return (self._until(member, step) or measured[:1])[-1]

    def has_collapsed(self, member: str, share: float) -> bool:
        """Whether the last score is not finite, or below this share of the best before it or of the others' first, at their median: a
        member may have collapsed before its own first. Scores that are not above 0 tell nothing by their share."""
        measured = self._measured[member]
        if not math.isfinite(measured[-1].score):
            return True
        others = [score for other in self._measured if other != member for score in _finite(self._measured[other][:1])]
        reference = max([*_finite(measured[:-1]), median(others) if len(others) > 1 else 0.0])
        return reference > 0 and measured[-1].score < share * reference

    def state_dict(self) -> dict[str, list[tuple[float, ...]]]:
        return {member: [astuple(one) for one in measured] for member, measured in self._measured.items()}

    def load_state_dict(self, state: Mapping[str, Sequence[Sequence[float]]]) -> None:
        self._measured = {member: [Measured(*one) for one in measured] for member, measured in state.items()}

    def _until(self, member: str, step: float, inclusive: bool = True) -> list[Measured]:
        measured = self._measured.get(member, [])
        find: Any = bisect.bisect_right if inclusive else bisect.bisect_left
        return measured[: find(measured, step, key=lambda one: one.step)]


def _finite(measured: Sequence[Measured]) -> list[float]:
    return [one.score for one in measured if math.isfinite(one.score)]
