"""Bit-mask Sudoku solver: all candidates of a board are the bits of one integer.

Owns propagation and search. Bit `digit * size**2 + cell` says that the digit (from 0) may still stand in the cell, so that one shift and
one `and` ask the same question of all rows, columns, boxes or cells at once. Which puzzles are made is in `_sudoku_board.py`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from numpy.random import Generator

BOX_SHAPE = {4: (2, 2), 6: (2, 3), 9: (3, 3)}
"""Board size -> height and width of its boxes."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Exactly one candidate holds in each unit. A unit is a first bit and fixed offsets from it, the same for all units of a rule."""

    first_bits: int
    offsets: tuple[int, ...]
    spread: int
    """One unit's bits, from its first: first bits times this are whole units."""


@dataclass(frozen=True, slots=True)
class Layout:
    size: int
    rules: tuple[Rule, ...]
    """One digit a cell, and each digit once in every row, column and box."""
    everything: int
    keeps: tuple[int, ...]
    """Per candidate: all candidates that may still hold once it does, itself among them."""
    cells: tuple[int, ...]
    """Per cell: its candidates."""


@lru_cache
def layout(size: int) -> Layout:
    box_height, box_width = BOX_SHAPE[size]
    area, span = size * size, range(size)
    everything = (1 << size * area) - 1
    starts_and_offsets = (
        (range(area), [digit * area for digit in span]),
        ([digit * area + row * size for digit in span for row in span], list(span)),
        ([digit * area + column for digit in span for column in span], [row * size for row in span]),
        (
            [d * area + r * size + c for d in span for r in range(0, size, box_height) for c in range(0, size, box_width)],
            [r * size + c for r in range(box_height) for c in range(box_width)],
        ),
    )
    rules = tuple(Rule(_bits(starts), tuple(offsets), _bits(offsets)) for starts, offsets in starts_and_offsets)
    rivals = [0] * (size * area)
    for starts, offsets in starts_and_offsets:
        for start in starts:
            for offset in offsets:
                rivals[start + offset] |= _bits(offsets) << start
    keeps = tuple(everything & ~rival | 1 << candidate for candidate, rival in enumerate(rivals))
    cells = tuple(rules[0].spread << cell for cell in range(area))
    return Layout(size, rules, everything, keeps, cells)


def solve(board: Layout, candidates: int, rng: Generator | None = None) -> int:
    """The candidates of one solution, or 0 where there is none. A generator makes it a random one."""
    candidates = propagate(board, candidates)
    if candidates.bit_count() <= len(board.cells):
        return candidates
    choices = split_bits(min((candidates & cell for cell in board.cells if (candidates & cell).bit_count() > 1), key=int.bit_count))
    if rng is not None:
        rng.shuffle(choices)
    for choice in choices:
        if solution := solve(board, candidates & board.keeps[choice], rng):
            return solution
    return 0


def propagate(board: Layout, candidates: int) -> int:
    """Place what a rule leaves no choice for, until nothing changes; 0 when a unit is left without a candidate."""
    placed = 0
    while True:
        forced = 0
        for rule in board.rules:
            once = twice = 0
            for offset in rule.offsets:
                here = candidates >> offset
                twice |= once & here
                once |= here
            if rule.first_bits & ~once:
                return 0
            forced |= (rule.first_bits & ~twice) * rule.spread
        forced &= candidates & ~placed
        if not forced:
            return candidates
        placed |= forced
        for candidate in split_bits(forced):
            candidates &= board.keeps[candidate]


def split_bits(mask: int) -> list[int]:
    """The positions of the set bits, lowest first."""
    positions = []
    while mask:
        positions.append((mask & -mask).bit_length() - 1)
        mask &= mask - 1
    return positions


def _bits(positions: Iterable[int]) -> int:
    return sum(1 << position for position in positions)
