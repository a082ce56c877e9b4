"""How long a Sudoku puzzle takes to make, in the sizes that are trained on.

OMP_NUM_THREADS=1 python experiments/bench_sudoku.py --puzzles 300
"""

import time
from dataclasses import dataclass

import _interpreter  # noqa: F401
import numpy as np
from _figures import Figures, show

from pbt_agents.command_line import parse
from pbt_agents.environments._sudoku_board import make_puzzle


@dataclass
class Args:
    puzzles: int = 300
    """Of each size."""


def milliseconds(size: int, removed: int, puzzles: int) -> list[float]:
    """Per puzzle; seeds and splits as training and evaluation use them."""
    durations = []
    for seed in range(puzzles):
        start = time.perf_counter()
        make_puzzle(size, removed, ("train", "validation", "test")[seed % 3], np.random.default_rng(seed))
        durations.append(1000 * (time.perf_counter() - start))
    return durations


def measure(args: Args) -> Figures:
    figures: Figures = {}
    for size, removed in ((4, 6), (4, 10), (6, 20), (9, 50)):
        median, p99 = np.percentile(milliseconds(size, removed, args.puzzles), [50, 99])
        figures |= {
            f"puzzle_{size}x{size}_{removed}_empty_ms_median": float(median),
            f"puzzle_{size}x{size}_{removed}_empty_ms_p99": float(p99),
        }
    return figures


if __name__ == "__main__":
    show("environment", measure(parse(Args)))
