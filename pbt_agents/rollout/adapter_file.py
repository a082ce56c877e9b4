"""Reading a published adapter, and refusing one that is not what its reference says."""

import math
import os

import numpy as np

from pbt_agents.engine import AdapterLayout, checksum
from pbt_agents.errors import EngineError
from pbt_agents.types import AdapterRef, FloatArray


def read_adapter(adapter: AdapterRef, layout: AdapterLayout) -> FloatArray:
    """The adapter's values in slot order, in memory of their own: the publisher may write its next one meanwhile."""
    count = sum(math.prod(tensor.shape) for tensor in layout)
    try:
        size = os.path.getsize(adapter.path)
        values = np.fromfile(adapter.path, np.float32)
    except OSError as error:
        raise EngineError(f"adapter of {adapter.policy} cannot be read: {error}.") from error
    if size != 4 * count:
        raise EngineError(f"adapter of {adapter.policy} has {size} bytes, the slot takes {4 * count}. Do ranks and target modules agree?")
    if not np.isfinite(values).all():
        raise EngineError(f"adapter of {adapter.policy} has values that are not finite; the old one stays.")
    if checksum(values) != adapter.checksum:
        raise EngineError(
            f"adapter of {adapter.policy} has checksum {checksum(values)}, announced was {adapter.checksum}; the old one stays."
        )
    return values
