"""A trial whose best learning rate is known, to test population schedulers with.

It keeps the contract of InPlaceTrainable the way a real trainer must: its checkpoint holds the rate of whoever saved it.
"""

import json
import math
import os
from pathlib import Path
from typing import Any

from pbt_agents.scheduling.in_place import InPlaceTrainable

BEST_RATE = 1.0
STABLE_BELOW = 5.0
"""From here on fitness is NaN, and stays NaN in the same state."""


class Landscape(InPlaceTrainable):
    """Fitness approaches a height that depends on `rate`; `width` is searched and changes nothing.

    `gate` in the config names a Gate actor, where all members of a population wait for each other before they start.
    """

    def setup(self, config: dict[str, Any]) -> None:
        self.optimizer = {"rate": float(config["rate"]), "width": config["width"]}
        self.state: dict[str, Any] = {"fitness": 0.0, "steps": 0, "origin": self.trial_id}
        """`origin` is inherited by clones, and so tells whose weights these are."""
        if "gate" in config:
            import ray

            ray.get(ray.get_actor(config["gate"]).arrive.remote())

    def step(self) -> dict[str, Any]:
        self.state["steps"] += 1
        self.state["fitness"] += 0.3 * (height(self.optimizer["rate"]) - self.state["fitness"])
        return {**self.state, **self.in_use(), "process": os.getpid()}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        Path(checkpoint_dir, "state.json").write_text(json.dumps({"state": self.state, "optimizer": self.optimizer}))

    def load_checkpoint(self, checkpoint: str) -> None:
        saved = json.loads(Path(checkpoint, "state.json").read_text())
        self.state, self.optimizer = saved["state"], saved["optimizer"]

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self.optimizer.update(rate=float(new_config["rate"]), width=new_config["width"])
        return True

    def values_in_use(self) -> dict[str, Any]:
        return dict(self.optimizer)

    def in_use(self) -> dict[str, Any]:
        return {f"{name}_in_use": value for name, value in self.optimizer.items()}


class Gate:
    """Opens when `size` members have arrived. A Ray actor: `ray.remote(Gate).options(name=...).remote(size)`."""

    def __init__(self, size: int) -> None:
        import asyncio

        self._missing, self._open = size, asyncio.Event()

    async def arrive(self) -> None:
        self._missing -= 1
        if self._missing <= 0:
            self._open.set()
        await self._open.wait()


def height(rate: float) -> float:
    """1 at the best rate, less by the square of the distance in its logarithm."""
    return math.nan if rate >= STABLE_BELOW else math.exp(-(math.log(rate / BEST_RATE) ** 2) / 4)
