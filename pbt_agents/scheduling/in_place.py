"""The contract of a Trainable that can become a clone without leaving its process.

Owns the order of events inside the trial's actor: the donor's state first, the values of the trial's own config last,
then a read-back. What the state is, and what trains with the values, is the subclass's.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from ray import tune

from pbt_agents.errors import GuardError

CUT_SHORT = "cut_short"
"""In a result that ends a trial before its next score: its score is the last one again, and counts for nothing."""


class InPlaceTrainable(tune.Trainable, ABC):
    """A Tune Trainable with two more verbs: `reset_config` applies values to what lives, `values_in_use` reads them back.

    `load_checkpoint` may bring the values of whoever saved the checkpoint: after every restore (a clone, a crash, a
    resumed run) `reset_config` is called with the trial's own config, so that a mutation cannot be undone by a donor's state.
    """

    @abstractmethod
    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Apply the values of this config to the living optimizer, objective and buffer. True when all are applied."""

    @abstractmethod
    def values_in_use(self) -> Mapping[str, Any]:
        """The searched values by name, read from what trains with them and not from the config."""

    def restore(self, checkpoint_path: Any) -> None:
        super().restore(checkpoint_path)
        if not self.reset_config(self.config):
            raise GuardError(f"{type(self).__name__}.reset_config did not return True: the values of {self.trial_id} are not applied.")

    def exploit_in_place(self, config: dict[str, Any], source: Any) -> dict[str, Any]:
        """Become a clone: the state of `source` (Tune's result of a save), this trial's new config. Returns the values in use."""
        self.config = config
        self.restore(source)
        # A checkpoint saved before the next result carries the metrics of this one.
        self._last_result = dict(source.metrics)
        return dict(self.values_in_use())


def check_read_back(member: str, decided: Mapping[str, Any], in_use: Mapping[str, Any]) -> None:
    """Raise GuardError, with the figures, when a clone trains with other values than were decided for it."""
    wrong = {name: in_use.get(name) for name, value in decided.items() if not _same(value, in_use.get(name))}
    if wrong:
        asked = {name: decided[name] for name in wrong}
        raise GuardError(
            f"clone {member} trains with {wrong} where {asked} was decided. Does reset_config apply them, does values_in_use read them?"
        )


def _same(decided: Any, in_use: Any) -> bool:
    if isinstance(decided, float) and isinstance(in_use, float):
        # The optimizer or the objective may hold it in single precision.
        return math.isclose(decided, in_use, rel_tol=1e-6)
    return bool(decided == in_use)
