"""From an adapter's tensors, as PEFT names them, to one flat array in the order of the engines' slots.

Every tensor must find its place and every place its tensor: an adapter of which a part were dropped would serve as another policy.
"""

import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from pbt_agents.engine import AdapterLayout
from pbt_agents.errors import GuardError
from pbt_agents.types import FloatArray

if TYPE_CHECKING:
    from torch import Tensor

_PEFT_NAME = re.compile(r"base_model\.model\.(?P<module>.+)\.lora_(?P<matrix>[AB])(\.default)?\.weight")


class SlotOrder:
    """Flattens the adapters of one model for the engines that share `layout`."""

    def __init__(self, layout: AdapterLayout, scale: float):
        self._places: dict[tuple[str, str], tuple[int, int]] = {(tensor.projection, tensor.matrix): tensor.shape for tensor in layout}
        self._scale = scale
        """alpha / rank, or alpha / sqrt(rank) for rsLoRA: what the trainer multiplies B(Ax) with."""
        self.count = sum(math.prod(shape) for shape in self._places.values())

    def flatten(self, tensors: Mapping[str, "Tensor"]) -> FloatArray:
        """[count], B scaled. Raises GuardError naming what does not fit, or is not finite."""
        by_place = self._match(tensors)
        values = np.empty(self.count, np.float32)
        start = 0
        for (module, matrix), tensor in by_place.items():
            part = values[start : start + tensor.numel()]
            part[:] = tensor.detach().float().cpu().numpy().ravel()
            if matrix == "b":
                part *= self._scale
            if not np.isfinite(part).all():
                raise GuardError(
                    f"lora_{matrix.upper()} of {module} is not finite: it is not published, the engines keep the policy before it."
                )
            start += tensor.numel()
        return values

    def _match(self, tensors: Mapping[str, "Tensor"]) -> dict[tuple[str, str], "Tensor"]:
        """The tensors by their places, in slot order."""
        named = {}
        unknown = []
        for name, tensor in tensors.items():
            parsed = _PEFT_NAME.fullmatch(name)
            place = (parsed["module"], parsed["matrix"].lower()) if parsed else ("", "")
            if self._places.get(place) == tuple(tensor.shape):
                named[place] = tensor
            else:
                unknown.append(f"{name} {tuple(tensor.shape)}")
        missing = [
            f"lora_{matrix.upper()} of {module} {shape}"
            for (module, matrix), shape in self._places.items()
            if (module, matrix) not in named
        ]
        if unknown or missing:
            raise GuardError(
                f"adapter matches {len(named)} of {len(self._places)} places of the engines. "
                f"Without a place: {_few(unknown)}. Without a tensor: {_few(missing)}."
            )
        return {place: named[place] for place in self._places}


def _few(names: list[str]) -> str:
    return (", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")) or "none"
