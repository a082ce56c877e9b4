"""How long a Sudoku puzzle takes to make, in the sizes that are trained on.

OMP_NUM_THREADS=1 python experiments/bench_sudoku.py --puzzles 300
"""

import argparse
import time

import _interpreter  # noqa: F401
import numpy as np

from pbt_agents.environments._sudoku_board import make_puzzle


def milliseconds(size: int, removed: int, puzzles: int) -> list[float]:
    """Per puzzle; seeds and splits as training and evaluation use them."""
    durations = []
    for seed in range(puzzles):
        start = time.perf_counter()
        make_puzzle(size, removed, ("train", "validation", "test")[seed % 3], np.random.default_rng(seed))
        durations.append(1000 * (time.perf_counter() - start))
    return durations


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--puzzles", type=int, default=300, help="of each size")
    puzzles = parser.parse_args().puzzles
    for size, removed in ((4, 6), (4, 10), (6, 20), (9, 50)):
        median, p99 = np.percentile(milliseconds(size, removed, puzzles), [50, 99])
        print(f"{size}x{size} with up to {removed} removed: median {median:.2f} ms, p99 {p99:.2f} ms")
