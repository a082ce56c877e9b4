"""How figures read."""

from typing import Any


def amount_of_time(seconds: float) -> str:
    """Two units at most: 95 s, 12 min, 3 h 05 min."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02d} min"


def amount_of_bytes(count: float) -> str:
    return f"{count / 2**20:.0f} MiB" if count < 2**30 else f"{count / 2**30:.1f} GiB"


def amount(count: float) -> str:
    return f"{count:,.0f}" if count < 1e6 else f"{count / 1e6:.1f} million"


def setting(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
