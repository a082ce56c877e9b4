import re

import pytest

from pbt_agents.environments._sudoku_board import Puzzle
from pbt_agents.environments.sudoku import ENVIRONMENT, VARIANTS, Sudoku
from pbt_agents.errors import ConfigError

SOLUTION = (1, 2, 3, 4, 3, 4, 1, 2, 2, 1, 4, 3, 4, 3, 2, 1)
CLUES = (0, 2, 3, 4, 3, 4, 1, 2, 2, 1, 0, 0, 4, 3, 2, 0)
"""Empty: 1 at (1, 1), 4 at (3, 3), 3 at (3, 4), 1 at (4, 4)."""


def playing(variant: str, **options: object) -> Sudoku:
    environment = ENVIRONMENT(variant, "train", **options)
    assert isinstance(environment, Sudoku)
    environment.start(Puzzle(4, CLUES, SOLUTION))
    return environment


def first(environment: Sudoku) -> str:
    return environment.start(environment.puzzle)


def test_compact_text_is_a_word_and_the_rows_of_the_board():
    """The tiny model's tokenizer rests on this text."""
    environment = playing("tiny")
    assert first(environment) == "start\n.234\n3412\n21..\n432."
    assert environment.step(r"\boxed{1 1 1}").observation == "correct\n1234\n3412\n21..\n432."
    assert environment.step(r"\boxed{3 3 3}").observation == "wrong\n1234\n3412\n21..\n432."
    assert environment.step(r"\boxed{1 1 2}").observation == "filled\n1234\n3412\n21..\n432."
    environment = playing("tiny")
    assert environment.step(r"\boxed{5 1 1}").observation == "out\n.234\n3412\n21..\n432."
    assert environment.step("hm").observation == "format\n.234\n3412\n21..\n432."


def test_a_solved_board_scores_one_and_terminates():
    environment = playing("tiny")
    results = [environment.step(rf"\boxed{{{move}}}") for move in ("1 1 1", "3 3 4", "3 4 3", "4 4 1")]
    assert [result.reward for result in results] == [0.25] * 4
    assert [(result.terminated, result.truncated) for result in results] == [(False, False)] * 3 + [(True, False)]
    assert [result.metrics for result in results[:3]] == [{}] * 3
    assert results[3].metrics == {"solved": 1, "filled_fraction": 1, "format_errors": 0, "invalid_moves": 0, "empty_cells": 4}


def test_tiny_has_no_spare_turn_unless_asked_for():
    for spare, turns in ((0, 4), (2, 6)):
        environment = playing("tiny", spare_turns=spare)
        results = [environment.step(action) for action in (r"\boxed{1 1 1}", r"\boxed{1 1 1}", "hm", r"\boxed{0 0 0}", "hm", "hm")[:turns]]
        assert [result.truncated for result in results] == [False] * (turns - 1) + [True]
        assert not any(result.terminated for result in results)
        expected = {"solved": 0, "filled_fraction": 0.25, "format_errors": 1 + spare, "invalid_moves": 2, "empty_cells": 4}
        assert results[-1].metrics == expected


def test_an_invalid_move_is_worth_nothing_and_leaves_the_board():
    environment = playing("tiny")
    for move in ("3 3 3", "1 2 1", "0 1 1"):
        assert environment.step(rf"\boxed{{{move}}}").reward == 0
    assert environment.board == CLUES


def test_a_format_error_costs_a_turn_unless_configured_otherwise():
    """B57."""
    tolerant = playing("easy").step("no move")
    assert (tolerant.reward, tolerant.terminated) == (0.0, False)
    strict = playing("easy", format_penalty=0.5, format_error_ends=True).step("no move")
    assert (strict.reward, strict.terminated, strict.truncated) == (-0.5, True, False)
    gem = playing("easy", rules="gem").step("no move")
    assert (gem.reward, gem.terminated) == (-0.1, True)
    assert not playing("easy", rules="gem", format_error_ends=False).step("no move").terminated


def test_full_text_names_the_real_blocks_and_shows_the_board():
    """B57: a prompt for 4x4 that speaks of nine 4x4 blocks."""
    for size, block in ((4, "2x2"), (6, "2x3"), (9, "3x3")):
        prompt = ENVIRONMENT("hard", "train", size=size, removed=5).reset(0)
        assert f"every {block} block" in prompt
        assert f"{size}x{size} Sudoku" in prompt
        assert f"from 1 to {size}" in prompt
        assert prompt.count(".", prompt.index("\n\n"), prompt.rindex("\n\n")) == 5
    assert first(playing("easy")).endswith("\n\n. 2 | 3 4\n3 4 | 1 2\n----+----\n2 1 | . .\n4 3 | 2 .\n\nTurns left: 15.")


def test_the_lines_between_blocks_meet():
    """6x6 has three bands of two stacks, 9x9 three of three."""
    for size, bars, lines in ((4, 1, 1), (6, 1, 2), (9, 2, 2)):
        board = ENVIRONMENT("hard", "train", size=size, removed=1).reset(0).split("\n\n")[1].splitlines()
        assert len(board) == size + lines
        rows = [row for row in board if "-" not in row]
        assert all(row.count("|") == bars for row in rows)
        [columns] = {tuple(match.start() for match in re.finditer(r"\|", row)) for row in rows}
        for line in set(board) - set(rows):
            assert tuple(match.start() for match in re.finditer(r"\+", line)) == columns
            assert len(line) == len(rows[0])


@pytest.mark.parametrize(
    ("move", "sentence"),
    [
        ("3 4 3", "Correct: 3 in row 3, column 4."),
        ("1 1 4", "Wrong: 4 in row 1, column 1 breaks a rule, its row has one."),
        ("4 4 2", "Wrong: 2 in row 4, column 4 breaks a rule, its row has one."),
        ("1 2 2", "Filled: row 1, column 2 already holds a digit."),
        ("9 9 9", "Out of range: row, column and digit all go from 1 to 4."),
        ("3 3", "No move found."),
    ],
)
def test_the_verdict_is_told_in_a_sentence(move: str, sentence: str):
    observation = playing("easy").step(rf"\boxed{{{move}}}").observation
    assert observation.startswith(sentence)
    assert observation.endswith("Turns left: 14.")


def test_a_broken_rule_is_named_and_a_legal_move_is_only_not_the_solution():
    """B57: GEM tells of every wrong move that it violates the rules."""
    # A board with nothing but a 1 in row 1, column 1.
    environment = ENVIRONMENT("easy", "train")
    assert isinstance(environment, Sudoku)
    environment.start(Puzzle(4, (1, *[0] * 15), (1, 2, 3, 4, 3, 4, 1, 2, 2, 1, 4, 3, 4, 3, 2, 1)))
    assert "breaks a rule, its column has one" in environment.step(r"\boxed{4 1 1}").observation
    assert "breaks a rule, its block has one" in environment.step(r"\boxed{2 2 1}").observation
    assert "is not the solution" in environment.step(r"\boxed{3 3 1}").observation


def test_the_prompt_example_is_a_move_that_is_read():
    prompt = ENVIRONMENT("easy", "train").reset(0)
    environment = ENVIRONMENT("easy", "train")
    environment.reset(0)
    assert environment.step(prompt).metrics == {}
    assert not environment.step(prompt).observation.startswith("No move")


def test_seed_split_and_options_make_the_board():
    def boards(**options: object) -> list[str]:
        return [ENVIRONMENT("tiny", "train", **options).reset(seed) for seed in range(20)]

    assert boards() == boards()
    assert len(set(boards())) > 15
    assert boards(removed=4) != boards()
    assert all(board.count(".") == 6 for board in boards())


def test_the_number_of_empty_cells_is_told_as_reached():
    """B57: 15 cannot be emptied on a 4x4 board."""
    environment = ENVIRONMENT("easy", "train", removed=15, max_turns=1)
    assert isinstance(environment, Sudoku)
    environment.reset(0)
    assert environment.empty_cells == environment.board.count(0) < 15
    assert environment.step("").metrics["empty_cells"] == environment.empty_cells


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 5}, r"size .* one of \[4, 6, 9\], got 5"),
        ({"removed": 0}, "removed must be 1 to 15 of the 16 cells, got 0"),
        ({"removed": 16}, "removed must be 1 to 15 of the 16 cells, got 16"),
        ({"max_turns": 0}, "max_turns must be above 0"),
        ({"max_turns": 5, "spare_turns": 1}, "got 5 and 1"),
        ({"spare_turns": -1}, "spare_turns .* got -1"),
        ({"rules": "gme"}, "Did you mean 'gem'"),
        ({"text": "compct"}, "Did you mean 'compact'"),
        ({"format_penalty": -0.1}, "format_penalty .* got -0.1"),
        ({"format_penalty": float("nan")}, "format_penalty .* got nan"),
    ],
)
def test_a_value_that_makes_no_sense_is_refused(options: dict[str, object], message: str):
    with pytest.raises(ConfigError, match=message):
        ENVIRONMENT("tiny", "train", **options)


def test_tiny_is_calibrated_as_described():
    tiny = VARIANTS["tiny"]
    assert (tiny.size, tiny.removed, tiny.max_turns, tiny.spare_turns, tiny.text, tiny.rules) == (4, 6, None, 0, "compact", "default")
