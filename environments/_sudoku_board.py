"""Sudoku puzzles: made from a seed, with one solution, each in one of three splits.

Owns what a puzzle is, which split its solution belongs to, and which cells are emptied. `_sudoku_solver.py` solves, `sudoku.py` plays.
"""

from dataclasses import dataclass
from functools import reduce

import numpy as np
from numpy.random import Generator

from pbt_agents.environments._splits import split_of
from pbt_agents.environments._sudoku_solver import BOX_SHAPE, Layout, layout, solve, split_bits
from pbt_agents.types import Split

Grid = tuple[int, ...]
"""Row by row; 0 is an empty cell."""

VALIDATION_4X4 = frozenset({"1234341221434321", "1234341223414123"})
TEST_4X4 = frozenset({"1234341243212143", "1234342121434312"})
"""Of the 12 classes of 4x4 solutions. Moving lines and mirroring makes a family of 4 and one of 8: each split has some of both."""

SHUFFLES_PER_FILL = 32


@dataclass(frozen=True, slots=True)
class Puzzle:
    size: int
    clues: Grid
    solution: Grid

    @property
    def empty_cells(self) -> int:
        return self.clues.count(0)


def make_puzzle(size: int, removed: int, split: Split, rng: Generator) -> Puzzle:
    """A puzzle of the split with one solution. It has fewer than `removed` empty cells where uniqueness allows no more."""
    board = layout(size)
    solution = solution_of_split(board, split, rng)
    given = {cell: (digit - 1) * size * size + cell for cell, digit in enumerate(solution)}
    for cell in rng.permutation(size * size).tolist():
        if len(given) <= size * size - removed:
            break
        candidate = given.pop(cell)
        if _other_solution(board, given, candidate):
            given[cell] = candidate
    return Puzzle(size, tuple(digit if cell in given else 0 for cell, digit in enumerate(solution)), solution)


def _other_solution(board: Layout, given: dict[int, int], candidate: int) -> bool:
    """Whether the given cells can also be completed without this candidate, which is part of the one known solution."""
    open_candidates = reduce(int.__and__, map(board.keeps.__getitem__, given.values()), board.everything)
    return solve(board, open_candidates & ~(1 << candidate)) != 0


def solution_of_split(board: Layout, split: Split, rng: Generator) -> Grid:
    """A random solution of the split. Most tries are cheap: rows and columns of one filled board change places."""
    height, width = BOX_SHAPE[board.size]
    while True:
        filled = np.empty(board.size**2, dtype=np.int64)
        for candidate in split_bits(solve(board, board.everything, rng)):
            digit, cell = divmod(candidate, board.size**2)
            filled[cell] = digit + 1
        square = filled.reshape(board.size, board.size)
        for _ in range(SHUFFLES_PER_FILL):
            turned = square.T if height == width and rng.integers(2) else square
            lines = np.ix_(_shuffled_lines(board.size, height, rng), _shuffled_lines(board.size, width, rng))
            grid: Grid = tuple(turned[lines].ravel().tolist())
            if split_of_solution(board.size, grid) == split:
                return grid


def _shuffled_lines(size: int, band: int, rng: Generator) -> list[int]:
    """An order of rows (or columns) that keeps every box a box: bands change places, and lines within a band."""
    return [int(start + line) for start in rng.permutation(range(0, size, band)) for line in rng.permutation(band)]


def split_of_solution(size: int, solution: Grid) -> Split:
    """Solutions that differ only in the names of their digits are of one class, and a class is in one split."""
    name = class_of(size, solution)
    if size == 4:
        return "validation" if name in VALIDATION_4X4 else "test" if name in TEST_4X4 else "train"
    return split_of(name)


def class_of(size: int, solution: Grid) -> str:
    """The solution with its digits renamed so that the first row counts up from 1."""
    rename = {digit: str(place) for place, digit in enumerate(solution[:size], start=1)}
    return "".join(rename[digit] for digit in solution)


def is_solution(size: int, clues: Grid, filled: Grid) -> bool:
    """Whether a filled grid keeps the clues and the rules; any completion counts, not only the one a puzzle was made from."""
    if 0 in filled or any(clue not in (0, digit) for clue, digit in zip(clues, filled, strict=True)):
        return False
    height, width = BOX_SHAPE[size]
    placed = set()
    for cell, digit in enumerate(filled):
        row, column = divmod(cell, size)
        placed |= {("row", row, digit), ("column", column, digit), ("box", row // height * height + column // width, digit)}
    return set(filled) == set(range(1, size + 1)) and len(placed) == 3 * size * size
