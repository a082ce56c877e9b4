"""Against a brute-force solver written here, and every one of the 288 solutions of 4x4."""

from itertools import permutations
from typing import get_args

import numpy as np
import pytest

from pbt_agents.environments._sudoku_board import Grid, class_of, is_solution, make_puzzle, split_of_solution
from pbt_agents.types import Split

SPLITS: tuple[Split, ...] = get_args(Split)
BOXES = {4: (2, 2), 6: (2, 3), 9: (3, 3)}


def grid(text: str) -> Grid:
    return tuple(int(digit) for digit in text.replace("/", ""))


def peers(size: int, cell: int) -> set[int]:
    height, width = BOXES[size]
    row, column = divmod(cell, size)
    return {
        other
        for other in range(size * size)
        for r, c in [divmod(other, size)]
        if r == row or c == column or (r // height == row // height and c // width == column // width)
    } - {cell}


PEERS = {size: [peers(size, cell) for cell in range(size * size)] for size in BOXES}


def solutions(size: int, board: Grid, limit: int = 2) -> list[Grid]:
    """Up to `limit` completions, by trying every digit in the cell with the fewest left."""
    left = {cell: set(range(1, size + 1)) - {board[peer] for peer in PEERS[size][cell]} for cell, digit in enumerate(board) if digit == 0}
    if not left:
        return [board]
    cell = min(left, key=lambda cell: len(left[cell]))
    found: list[Grid] = []
    for digit in left[cell]:
        if len(found) < limit:
            found += solutions(size, (*board[:cell], digit, *board[cell + 1 :]), limit - len(found))
    return found


def all_4x4() -> set[Grid]:
    rows = list(permutations(range(1, 5)))
    pairs = [(*upper, *lower) for upper in rows for lower in rows if not {*upper[:2]} & {*lower[:2]} and not {*upper[2:]} & {*lower[2:]}]
    return {(*top, *bottom) for top in pairs for bottom in pairs if all(len({*top[c::4], *bottom[c::4]}) == 4 for c in range(4))}


def puzzle(size: int, removed: int, split: Split, seed: int):
    return make_puzzle(size, removed, split, np.random.default_rng(seed))


@pytest.mark.parametrize(("size", "removed", "seeds"), [(4, 6, 100), (4, 15, 200), (6, 35, 30), (9, 50, 30), (9, 80, 10)])
def test_every_puzzle_has_exactly_one_solution(size: int, removed: int, seeds: int):
    """B56."""
    for seed in range(seeds):
        made = puzzle(size, removed, SPLITS[seed % 3], seed)
        assert solutions(size, made.clues) == [made.solution]


def test_a_puzzle_falls_short_only_where_no_further_cell_can_be_emptied():
    """B57: fewer empty cells than asked for are what uniqueness allows, and are reported."""
    for seed in range(20):
        made = puzzle(4, 15, "train", seed)
        assert made.empty_cells == made.clues.count(0) < 15
        for cell in np.flatnonzero(made.clues):
            assert len(solutions(4, (*made.clues[:cell], 0, *made.clues[cell + 1 :]))) == 2


def test_removed_is_the_number_of_cells_taken_away():
    """B57: GEM's 30 leaves 51 of 81 cells on the board, and reverted cells are not made up for."""
    assert [puzzle(9, 30, "train", seed).empty_cells for seed in range(10)] == [30] * 10
    assert [puzzle(9, 50, "train", seed).empty_cells for seed in range(10)] == [50] * 10
    assert [puzzle(4, 10, "train", seed).empty_cells for seed in range(50)] == [10] * 50


def test_the_scorer_accepts_every_completion_and_checks_clues_and_rules():
    """B56."""
    clues = grid("0034/3412/0043/4321")
    assert len(solutions(4, clues, limit=9)) == 2
    assert is_solution(4, clues, grid("1234/3412/2143/4321"))
    assert is_solution(4, clues, grid("2134/3412/1243/4321"))
    assert not is_solution(4, clues, grid("1234/3412/1243/4321"))  # column 1 holds 1 twice
    assert not is_solution(4, clues, grid("0134/3412/1243/4321"))  # not filled
    assert not is_solution(4, clues, grid("1243/3421/2134/4312"))  # follows the rules, moves the clues
    assert not is_solution(4, grid("0" * 16), grid("1234/2341/3412/4123"))  # rows and columns hold, boxes do not


def test_splits_of_4x4_are_disjoint_over_all_grids():
    everything = all_4x4()
    assert len(everything) == 288
    classes = {split: {class_of(4, solution) for solution in everything if split_of_solution(4, solution) == split} for split in SPLITS}
    assert {split: len(names) for split, names in classes.items()} == {"train": 8, "validation": 2, "test": 2}
    assert len(set.union(*classes.values())) == 12


def test_a_class_is_what_renaming_the_digits_cannot_change():
    everything = sorted(all_4x4())
    for solution in everything[::17]:
        renamed = {tuple((0, *names)[digit] for digit in solution) for names in permutations(range(1, 5))}
        assert len(renamed) == 24
        assert {other for other in everything if class_of(4, other) == class_of(4, solution)} == renamed


@pytest.mark.parametrize(("size", "removed"), [(4, 6), (6, 18), (9, 30)])
def test_equal_seeds_of_different_splits_share_no_class(size: int, removed: int):
    made = {split: [puzzle(size, removed, split, seed) for seed in range(40)] for split in SPLITS}
    classes = {split: {class_of(size, one.solution) for one in puzzles} for split, puzzles in made.items()}
    assert not classes["train"] & classes["validation"]
    assert not classes["train"] & classes["test"]
    assert not classes["validation"] & classes["test"]
    for split, puzzles in made.items():
        assert {split_of_solution(size, one.solution) for one in puzzles} == {split}


@pytest.mark.parametrize("size", [6, 9])
def test_renaming_digits_leaves_a_solution_in_its_split(size: int):
    rng = np.random.default_rng(0)
    for seed in range(40):
        solution = puzzle(size, 1, SPLITS[seed % 3], seed).solution
        names = (0, *(rng.permutation(size) + 1).tolist())
        assert split_of_solution(size, tuple(names[digit] for digit in solution)) == SPLITS[seed % 3]


def test_every_class_of_4x4_is_met_in_its_split():
    met = {split: {class_of(4, puzzle(4, 1, split, seed).solution) for seed in range(150)} for split in SPLITS}
    assert {split: len(names) for split, names in met.items()} == {"train": 8, "validation": 2, "test": 2}


def test_boards_of_9x9_do_not_repeat():
    assert len({class_of(9, puzzle(9, 1, "test", seed).solution) for seed in range(100)}) == 100
