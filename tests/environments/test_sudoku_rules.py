"""The reader of moves, and the rule set `gem` move by move against GEM's own class."""

import importlib
import importlib.util
import random
import sys
from collections import Counter
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from pbt_agents.environments._sudoku_board import Puzzle, make_puzzle
from pbt_agents.environments._sudoku_rules import read_gem_move, read_move
from pbt_agents.environments.sudoku import VARIANTS, Sudoku, SudokuSettings


@pytest.mark.parametrize(
    ("action", "move"),
    [
        (r"\boxed{1 3 2}", (1, 3, 2)),
        (r"\boxed{1  3 2}", (1, 3, 2)),
        (r"\boxed{1, 3, 2}", (1, 3, 2)),
        (r"\boxed{ 1,3,2 }", (1, 3, 2)),
        (r"\boxed{1 1 5} no, \boxed{2 3 4}", (2, 3, 4)),
        (r"\boxed{99 0 12}", (99, 0, 12)),
        (r"\boxed{\frac{1}{2}}", None),
        (r"\boxed{1 3 2} so \boxed{done}", None),
        (r"\boxed{1 3}", None),
        (r"\boxed{1 3 2 4}", None),
        (r"\boxed{132}", None),
        (r"\boxed{-1 3 2}", None),
        (r"\boxed{1 3 2", None),
        ("1 3 2", None),
        ("", None),
        (r"\boxed{1 1 " + "9" * 5000 + "}", None),
    ],
)
def test_a_move_is_read_from_the_last_complete_box_whatever_parts_the_numbers(action: str, move: tuple[int, int, int] | None):
    """B57, B58."""
    assert read_move(action) == move


def test_gem_reads_single_blanks_only_and_skips_boxes_without_a_move():
    assert read_gem_move(r"\boxed{1 3 2} so \boxed{done}") == (1, 3, 2)
    assert read_gem_move("\\boxed{1\n3\t2}") == (1, 3, 2)
    assert read_gem_move(r"\boxed{1  3 2}") is None
    assert read_gem_move(r"\boxed{1, 3, 2}") is None


@pytest.fixture(scope="module")
def gem_class() -> Iterator[Any]:
    """GEM's Sudoku without the packages around it, whose imports want dependencies that nothing here needs."""
    spec = importlib.util.find_spec("gem")
    assert spec is not None, "gem-llm is missing: pip install --no-deps gem-llm==0.1.0"
    assert spec.submodule_search_locations is not None
    [root] = spec.submodule_search_locations
    before, state, numpy_state = set(sys.modules), random.getstate(), np.random.get_state()
    for package in ("gem", "gem.utils", "gem.envs", "gem.envs.game_env"):
        stub = ModuleType(package)
        stub.__path__ = [root + package.removeprefix("gem").replace(".", "/")]
        sys.modules[package] = stub
    yield importlib.import_module("gem.envs.game_env.sudoku").SudokuEnv
    for name in set(sys.modules) - before:
        if name == "gem" or name.startswith("gem."):
            del sys.modules[name]
    random.setstate(state)
    np.random.set_state(numpy_state)


def gem_playing(gem_class: Any, puzzle: Puzzle, max_turns: int) -> Any:
    """GEM's environment with our board in place of the one that its constructor made."""
    environment = gem_class(clues=1, max_turns=max_turns, scale=puzzle.size)
    rows = range(0, puzzle.size**2, puzzle.size)
    environment.full_grid = [list(puzzle.solution[start : start + puzzle.size]) for start in rows]
    environment.board = [list(puzzle.clues[start : start + puzzle.size]) for start in rows]
    environment.init_num_empty = puzzle.empty_cells
    environment.turn_count = 0
    return environment


KINDS = {"correct": 0.62, "wrong": 0.1, "filled": 0.1, "out": 0.08, "several": 0.08, "malformed": 0.02}
MALFORMED = (
    "", "1 2 3", r"\boxed{1 2 3", r"\boxed{1  2 3}", r"\boxed{1, 2, 3}", r"\boxed{ 1 2 3 }", r"\boxed{{1 2 3}}", r"\boxed{1 2}",
    r"\boxed{1 2 3 4}", r"\boxed{-1 2 3}", r"\boxed {1 2 3}", r"\boxed{a b c}", r"\boxed{1 2 " + "9" * 5000 + "}",
)  # fmt: skip


def action_of(kind: str, puzzle: Puzzle, board: tuple[int, ...], rng: np.random.Generator) -> str:
    size = puzzle.size
    cell = int(rng.choice(np.flatnonzero(np.equal(board, 0) ^ (kind == "filled"))))
    row, column = divmod(cell, size)
    right = f"{row + 1} {column + 1} {puzzle.solution[cell]}"
    match kind:
        case "correct":
            return f"I think \\boxed{{{right}}} fits."
        case "wrong":
            return f"\\boxed{{{row + 1} {column + 1} {puzzle.solution[cell] % size + 1}}}"
        case "filled":
            return f"\\boxed{{{row + 1}\n{column + 1}\t{rng.integers(1, size + 1)}}}"
        case "out":
            numbers = rng.integers(1, size + 1, size=3)
            numbers[rng.integers(3)] = rng.choice([0, size + 1, 12345])
            return "\\boxed{" + " ".join(map(str, numbers)) + "}"
        case "several":
            first, last = (right, "1 1 1") if rng.random() < 0.5 else ("1 1 1", right)
            return f"\\boxed{{{first}}} or \\boxed{{{last}}}" + rng.choice(["", r" \boxed{sure}", r" \boxed{2 2"])
        case _:
            return str(rng.choice(MALFORMED))


@pytest.mark.parametrize("games", [[(4, 10, 15), (4, 6, 6)], [(9, 50, 50), (9, 12, 20)]], ids=["4x4", "9x9"])
def test_rewards_and_endings_are_gems(gem_class: Any, games: list[tuple[int, int, int]]):
    """300 episodes of every kind of move, to every kind of ending."""
    rng = np.random.default_rng(0)
    endings: Counter[str] = Counter()
    played: Counter[str] = Counter()
    for seed in range(150):
        size, removed, max_turns = games[seed % 2]
        puzzle = make_puzzle(size, removed, "train", np.random.default_rng(seed))
        ours = Sudoku(SudokuSettings(size, removed, max_turns, rules="gem"), "train")
        ours.start(puzzle)
        gems = gem_playing(gem_class, puzzle, max_turns)
        over = False
        while not over:
            kind = str(rng.choice(list(KINDS), p=list(KINDS.values())))
            action = action_of(kind, puzzle, ours.board, rng)
            result = ours.step(action)
            _, reward, terminated, truncated, _ = gems.step(action)
            assert (result.reward, result.terminated, result.truncated) == (reward, terminated, truncated), action
            assert ours.board == tuple(digit for row in gems.board for digit in row)
            over = terminated or truncated
            played[kind] += 1
        endings["solved" if result.metrics["solved"] else "turns" if truncated else "format"] += 1
    assert min(played[kind] for kind in KINDS) >= 20, played
    assert min(endings[ending] for ending in ("solved", "turns", "format")) >= 10, endings


def test_a_format_error_on_the_last_turn_ends_as_gems(gem_class: Any):
    puzzle = make_puzzle(4, 6, "train", np.random.default_rng(0))
    ours = Sudoku(SudokuSettings(4, 6, max_turns=1, rules="gem"), "train")
    ours.start(puzzle)
    result = ours.step("nothing")
    assert (
        (result.reward, result.terminated, result.truncated) == gem_playing(gem_class, puzzle, 1).step("nothing")[1:4] == (-0.1, True, True)
    )


def test_the_variants_have_gems_sizes_and_limits():
    # gem/envs/__init__.py registers Sudoku-v0-easy with (4, 10, 15) and Sudoku-v0-hard with (9, 50, 50).
    limits = {name: (settings.size, settings.removed, settings.max_turns) for name, settings in VARIANTS.items()}
    assert limits["easy"] == (4, 10, 15)
    assert limits["hard"] == (9, 50, 50)
