"""The scripted Sudoku player that the tiny model imitates: imperfect on purpose, and known exactly.

A sampled demonstration tells one token; this player tells the probability of every token, which is what makes a small model learn in
minutes. Owns what it plays and how that reads in tokens; which boards, and the training, are in `pretrain_tiny.py`.
"""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from pbt_agents.environments._sudoku_board import Grid
from pbt_agents.environments._sudoku_rules import Move
from pbt_agents.environments._sudoku_solver import BOX_SHAPE

SIZE = 4
MALFORMED = SIZE
"""Stands where a digit would: the box is closed after the column."""
ONES = np.arange(SIZE) == 0

Probabilities = NDArray[np.float64]


@dataclass(frozen=True)
class Teacher:
    """A mixture of habits, each a uniform choice among what it allows. The shares sum to 1."""

    right: float
    """The solution's digit, into a cell that has no other candidate (any empty cell when there is none)."""
    legal: float
    """An empty cell, and one of its candidates."""
    guess: float
    """An empty cell, and any digit."""
    favourite: float
    """An empty cell, and the digit 1."""
    filled: float
    """A cell that already holds a digit, and any digit."""
    malformed: float
    """Row and column only."""

    def moves(self, board: Grid, solution: Grid, refused: Collection[Move] = ()) -> Probabilities:
        """[row, column, digit or MALFORMED] of the next move. What was refused already is not tried again; nothing else is remembered."""
        possible = candidates(board)
        empty = np.reshape(board, (SIZE, SIZE, 1)) == 0
        forced = possible.sum(-1, keepdims=True) == 1
        solved = np.reshape(solution, (SIZE, SIZE, 1)) == np.arange(1, SIZE + 1)
        anywhere = np.ones((SIZE, SIZE, SIZE))
        digits = self.right * _uniform(solved & (forced if forced.any() else empty))
        digits += self.legal * _uniform(possible / np.maximum(possible.sum(-1, keepdims=True), 1))
        digits += self.guess * _uniform(anywhere * empty) + self.favourite * _uniform(anywhere * empty * ONES)
        digits += self.filled * _uniform(anywhere * ~empty)
        for row, column, digit in refused:
            digits[row - 1, column - 1, digit - 1] = 0
        malformed = np.full((SIZE, SIZE, 1), self.malformed / SIZE**2)
        return _uniform(np.concatenate([digits, malformed], axis=-1))


def candidates(board: Grid) -> NDArray[np.bool_]:
    """[row, column, digit] that no cell of the same row, column or box holds; none in filled cells."""
    cells = np.reshape(board, (SIZE, SIZE))
    held = cells[..., None] == np.arange(1, SIZE + 1)
    height, width = BOX_SHAPE[SIZE]
    boxes = held.reshape(SIZE // height, height, SIZE // width, width, SIZE).any((1, 3))
    seen = held.any(1, keepdims=True) | held.any(0, keepdims=True) | boxes.repeat(height, 0).repeat(width, 1)
    allowed: NDArray[np.bool_] = ~seen & (cells == 0)[..., None]
    return allowed


def _uniform(weights: NDArray[np.generic]) -> Probabilities:
    shares: Probabilities = weights / weights.sum()
    return shares


def draw(moves: Probabilities, rng: Generator) -> str:
    """One of the moves, as it is written."""
    row, column, digit = np.unravel_index(rng.choice(moves.size, p=moves.ravel()), moves.shape)
    numbers = [row + 1, column + 1] if digit == MALFORMED else [row + 1, column + 1, digit + 1]
    return "\\boxed{" + " ".join(map(str, numbers)) + "}"


class MoveTree:
    """All moves at once: a tree of tokens in which moves share what they begin with.

    Behind a prompt it tells a model the whole distribution of the player, with nothing left to sampling. Only what follows the digit is
    missing: that is the same for all moves.
    """

    def __init__(self, ids: dict[str, int]) -> None:
        self.ids = ids
        box, space, digits, cells = ids["\\boxed{"], ids[" "], [ids[str(digit)] for digit in range(1, SIZE + 1)], SIZE**2
        self.token_ids = [box, *digits, *[space] * SIZE, *digits * SIZE, *[space] * cells]
        """[N] by layers: the box, rows, a space each, columns of every row, a space each."""
        row_spaces, columns = SIZE + 1 + np.arange(SIZE), 2 * SIZE + 1 + np.arange(cells)
        self.parents = [-1, *[0] * SIZE, *range(1, SIZE + 1), *np.repeat(row_spaces, SIZE).tolist(), *columns.tolist()]
        self.sees = np.eye(len(self.parents), dtype=bool)
        """[N, N] node, itself and its ancestors."""
        for node, parent in enumerate(self.parents[1:], start=1):
            self.sees[node] |= self.sees[parent]
        self.depths = self.sees.sum(1) - 1
        """[N] places after the prompt."""

    def targets(self, moves: Probabilities) -> Probabilities:
        """[1 + N, vocabulary] after the prompt and after each node: the chance that the player gets there and writes this token."""
        ids, digits, cells = self.ids, self.token_ids[1 : 1 + SIZE], moves.reshape(SIZE**2, -1)
        chances = np.zeros((1 + len(self.parents), len(ids)))
        after_row, after_row_space, after_column, after_column_space = np.split(chances[2:], np.cumsum([SIZE, SIZE, SIZE**2]))
        chances[0, ids["\\boxed{"]] = 1
        chances[1, digits] = moves.sum((1, 2))
        after_row[:, ids[" "]] = moves.sum((1, 2))
        after_row_space[:, digits] = moves.sum(2)
        after_column[:, ids[" "]], after_column[:, ids["}"]] = cells[:, :MALFORMED].sum(1), cells[:, MALFORMED]
        after_column_space[:, digits] = cells[:, :MALFORMED]
        return chances
