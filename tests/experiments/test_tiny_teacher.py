"""The scripted player: its probabilities, and how they read in tokens."""

import numpy as np
import pytest
from _tiny_teacher import MALFORMED, MoveTree, Teacher, candidates, draw
from _tiny_tokenizer import build_tokenizer

TEACHER = Teacher(right=0.40, legal=0.20, guess=0.15, favourite=0.10, filled=0.10, malformed=0.05)
SOLUTION = (1, 2, 3, 4, 3, 4, 1, 2, 2, 1, 4, 3, 4, 3, 2, 1)
FORCED = (0, 0, 3, 4, 3, 4, 1, 2, 2, 1, 4, 3, 4, 3, 2, 1)
"""Both empty cells have one candidate."""
OPEN = (0, 0, 3, 4, 3, 4, 1, 2, 0, 0, 4, 3, 4, 3, 2, 1)
"""All four empty cells could be 1 or 2."""
MIXED = (*OPEN[:-1], 0)
"""As OPEN, and the last cell is forced to be 1."""


@pytest.fixture(scope="module")
def ids():
    return build_tokenizer().get_vocab()


def line(tree, node):
    """From the root of the tree to this node."""
    nodes = [node]
    while tree.parents[nodes[0]] >= 0:
        nodes.insert(0, tree.parents[nodes[0]])
    return nodes


def test_candidates_are_the_digits_that_row_column_and_box_leave():
    possible = candidates(OPEN)
    assert np.flatnonzero(possible[0, 0]).tolist() == [0, 1]
    assert possible.sum() == 8
    corner = (0,) * 15 + (4,)
    assert candidates(corner)[..., 3].sum() == 16 - 4 - 3 - 1  # 4 is gone from a row, the rest of a column and of a box


@pytest.mark.parametrize("board", [FORCED, OPEN, MIXED, SOLUTION[:5] + (0,) * 11])
def test_the_players_moves_sum_to_one(board):
    assert TEACHER.moves(board, SOLUTION).sum() == pytest.approx(1, abs=1e-12)


def test_a_cell_with_one_candidate_gets_the_right_digit_first():
    moves = TEACHER.moves(FORCED, SOLUTION)
    assert moves[0, 0, 0] == pytest.approx(0.40 / 2 + 0.20 / 2 + 0.15 / 8 + 0.10 / 2)
    assert moves[0, 1, 1] == pytest.approx(0.40 / 2 + 0.20 / 2 + 0.15 / 8)
    assert moves[0, 1, 0] == pytest.approx(0.15 / 8 + 0.10 / 2)
    assert moves[3, 3, 2] == pytest.approx(0.10 / 14 / 4)
    assert moves[2, 1, MALFORMED] == pytest.approx(0.05 / 16)


def test_without_a_forced_cell_the_player_still_leans_to_the_solution():
    moves = TEACHER.moves(OPEN, SOLUTION)
    assert moves[0, 1, 1] == pytest.approx(0.40 / 4 + 0.20 / 4 / 2 + 0.15 / 16)
    assert moves[0, 1, 0] == pytest.approx(0.20 / 4 / 2 + 0.15 / 16 + 0.10 / 4)
    assert moves[0, 1, 2] == pytest.approx(0.15 / 16)


def test_the_right_move_goes_to_forced_cells_alone_and_legal_ones_to_every_empty_cell_alike():
    moves = TEACHER.moves(MIXED, SOLUTION)
    assert moves[3, 3, 0] == pytest.approx(0.40 + 0.20 / 5 + 0.15 / 20 + 0.10 / 5)
    assert moves[0, 1, 1] == pytest.approx(0.20 / 5 / 2 + 0.15 / 20)


def test_a_refused_move_is_not_tried_again_and_leaves_its_chance_to_the_others():
    fresh, later = TEACHER.moves(OPEN, SOLUTION), TEACHER.moves(OPEN, SOLUTION, refused=[(1, 2, 1)])
    assert later[0, 1, 0] == 0
    others = np.ones_like(fresh, dtype=bool)
    others[0, 1, 0] = False
    assert later[others] == pytest.approx(fresh[others] / (1 - fresh[0, 1, 0]))


def test_the_tree_holds_the_probability_of_every_move(ids):
    """Along each path, the conditional probabilities multiply to the player's own."""
    moves, tree = TEACHER.moves(OPEN, SOLUTION), MoveTree(ids)
    after = tree.targets(moves)
    conditional = after / after.sum(1, keepdims=True)
    places = {tuple(tree.token_ids[at] for at in line(tree, node)): node + 1 for node in range(len(tree.token_ids))}
    for (row, column, digit), expected in np.ndenumerate(moves):
        tokens = ["\\boxed{", str(row + 1), " ", str(column + 1), *([" ", str(digit + 1)] if digit != MALFORMED else ["}"])]
        path = tuple(ids[token] for token in tokens)
        chance = conditional[0, path[0]] * np.prod([conditional[places[path[:length]], path[length]] for length in range(1, len(path))])
        assert chance == pytest.approx(expected, abs=1e-12)


def test_a_node_sees_its_ancestors_and_no_other_branch(ids):
    tree = MoveTree(ids)
    for node in range(len(tree.token_ids)):
        assert np.flatnonzero(tree.sees[node]).tolist() == line(tree, node)
        assert tree.depths[node] == len(line(tree, node)) - 1


def test_moves_are_drawn_as_often_as_the_player_says():
    """5,000 moves: right ones are 0.6875 of them, with a standard error of 0.007, malformed ones 0.05, with 0.003."""
    rng, moves = np.random.default_rng(1), TEACHER.moves(FORCED, SOLUTION)
    written = [draw(moves, rng) for _ in range(5000)]
    right = sum(text in ("\\boxed{1 1 1}", "\\boxed{1 2 2}") for text in written) / len(written)
    assert right == pytest.approx(2 * (0.40 / 2 + 0.20 / 2 + 0.15 / 8) + 0.10 / 2, abs=0.03)
    assert sum(text.count(" ") == 1 for text in written) / len(written) == pytest.approx(0.05, abs=0.015)
