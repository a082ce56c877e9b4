"""Lessons of the tiny model: what a token sees and what it is told."""

import numpy as np
import pytest
import torch
from _tiny_lessons import School, batch
from pretrain_tiny import TEACHER, build_model

from pbt_agents.environments._sudoku_board import split_of_solution


@pytest.fixture(scope="module")
def school():
    return School(TEACHER, seed=0)


def test_only_boards_of_the_train_split_are_taught(monkeypatch):
    taught = []
    real = type(TEACHER).moves

    def moves(self, board, solution, refused=()):
        taught.append(solution)
        return real(self, board, solution, refused)

    monkeypatch.setattr(type(TEACHER), "moves", moves)
    school = School(TEACHER, seed=3)
    for _ in range(40):
        school.board(), school.episode()
    assert len(set(taught)) > 40
    assert {split_of_solution(4, solution) for solution in taught} == {"train"}


def test_the_tree_of_a_turn_reads_like_the_turn_itself(school):
    """A model's answer at a node equals its answer at the end of the plain sequence with the same tokens."""
    lesson, model = school.episode(), build_model(seed=1).eval()
    tree, line = school.tree, len(lesson.token_ids) - lesson.moves * len(school.tree.token_ids)
    turn = lesson.moves - 1
    first = line + turn * len(tree.token_ids)
    with torch.no_grad():
        within = model(**batch([lesson]).inputs).logits[0]
        for node in (0, 3, 7, 15, len(tree.token_ids) - 1):
            path = np.flatnonzero(tree.sees[node])
            prompt = lesson.token_ids[: lesson.positions[first]]
            alone = model(input_ids=torch.from_numpy(np.append(prompt, np.array(tree.token_ids)[path]))[None]).logits[0, -1]
            torch.testing.assert_close(within[first + node], alone, atol=1e-5, rtol=1e-4)


def test_the_turns_of_an_episode_see_no_tree(school):
    lesson, model = school.episode(), build_model(seed=1).eval()
    line = len(lesson.token_ids) - lesson.moves * len(school.tree.token_ids)
    with torch.no_grad():
        within = model(**batch([lesson]).inputs).logits[0, :line]
        alone = model(input_ids=torch.from_numpy(lesson.token_ids[:line])[None]).logits[0]
    torch.testing.assert_close(within, alone, atol=1e-5, rtol=1e-4)


def test_padding_beside_a_longer_lesson_changes_nothing(school):
    short, long, model = school.board(), school.episode(), build_model(seed=1).eval()
    length = len(short.token_ids)
    together = batch([short, long])
    assert together.moves == short.moves + long.moves
    with torch.no_grad():
        beside = model(**together.inputs).logits[0, :length]
        alone = model(**batch([short]).inputs).logits[0]
    torch.testing.assert_close(beside, alone, atol=1e-5, rtol=1e-4)
    assert not together.targets[0, length:].any()


def test_a_lesson_tells_what_is_certain_after_a_drawn_move(school):
    end, close = 2, school.encode("}")[0]
    lesson = school.board()
    line = lesson.token_ids[: len(lesson.token_ids) - len(school.tree.token_ids)]
    assert line[-1] == end
    assert lesson.targets[len(line) - 2, end] == 1
    assert line[-2] == close
    assert not lesson.targets[len(line) - 1].any()


def test_a_seed_gives_the_same_lessons():
    one, other = (School(TEACHER, seed=5).episode() for _ in range(2))
    assert one.token_ids.tolist() == other.token_ids.tolist()
    assert School(TEACHER, seed=6).episode().token_ids.tolist() != one.token_ids.tolist()
