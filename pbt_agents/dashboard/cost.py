"""What a training comes to, from what was measured of it: plain arithmetic.

Nothing is assumed of a machine. The figures come from the first results of every member, in a run or in a dry run.
"""

from dataclasses import dataclass

from pbt_agents.dashboard.events import Estimate

_CHECKPOINTS = 2
"""That a member keeps."""


@dataclass(frozen=True)
class Measured:
    """Of the whole population, while all its members train side by side."""

    seconds: float
    """So far."""
    cpu_s: float
    """So far."""
    cpu_per_s: float
    tokens_per_s: float
    experience_bytes: int
    """Of experience and logs, which grow with the updates."""
    other_bytes: int
    """Of all else, mostly one checkpoint of each member."""


def estimate(measured: Measured, left_s: float, gpus: int, price_per_hour: float | None, capacity_bytes: int) -> Estimate:
    """Of the end, `left_s` from now, when all goes on as it went. `capacity_bytes`: more experience is not kept."""
    seconds = measured.seconds + left_s
    grown = measured.experience_bytes * seconds / measured.seconds
    gpu_hours = gpus * seconds / 3600
    return Estimate(
        seconds=seconds,
        cpu_hours=(measured.cpu_s + measured.cpu_per_s * left_s) / 3600,
        gpu_hours=gpu_hours,
        tokens=measured.tokens_per_s * seconds,
        disk_bytes=min(grown, capacity_bytes) + _CHECKPOINTS * measured.other_bytes,
        money=money(seconds, gpu_hours, price_per_hour),
        price_per_hour=price_per_hour,
    )


def money(seconds: float, gpu_hours: float, price_per_hour: float | None) -> float | None:
    """The price is that of a GPU, or of the machine where no GPU is held."""
    return None if price_per_hour is None else price_per_hour * (gpu_hours or seconds / 3600)
