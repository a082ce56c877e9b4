"""What a benchmark found: named values with their unit in the name, and how they are shown."""

from collections.abc import Mapping, Sequence

import numpy as np

Figures = dict[str, float]


def show(title: str, figures: Mapping[str, float]) -> None:
    print(title)
    for name, value in figures.items():
        print(f"  {name:<52} {_text(value):>12}")


def latency_ms(name: str, seconds: Sequence[float]) -> Figures:
    """Median, 99th percentile and longest. Empty where nothing was timed."""
    if not len(seconds):
        return {}
    return {f"{name}_ms_{at}": 1e3 * float(np.quantile(seconds, q)) for at, q in (("median", 0.5), ("p99", 0.99), ("longest", 1.0))}


def _text(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
