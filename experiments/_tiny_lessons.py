"""What the tiny model is taught: boards and episodes of the train split, with the player's exact say after every token.

Owns what a lesson is and how lessons lie in a batch. The player is in `_tiny_teacher.py`, the training in `pretrain_tiny.py`.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from _tiny_teacher import SIZE, MoveTree, Probabilities, Teacher, draw
from _tiny_tokenizer import SPECIAL, VOCABULARY_SIZE, build_tokenizer
from numpy.typing import NDArray

from pbt_agents.environments._sudoku_board import Grid, make_puzzle
from pbt_agents.environments._sudoku_rules import Move, read_move
from pbt_agents.environments._sudoku_text import TEXTS
from pbt_agents.environments.sudoku import VARIANTS, Sudoku
from pbt_agents.rollout.renderer import ChatRenderer
from pbt_agents.types import IntArray

END = SPECIAL.index("<|im_end|>")
COMPACT = TEXTS["compact"]
REMOVED = range(2, 9)
"""Cells to empty; agents then play with 6."""


class Turn(NamedTuple):
    observed: IntArray
    """[O] token ids since the last move."""
    moves: Probabilities
    """What the player might have played."""
    written: str
    """What it played."""


class Lesson(NamedTuple):
    """Tokens and what to say after each: the turns of an episode, then a tree of all moves for every turn."""

    token_ids: NDArray[np.int64]
    """[T]"""
    positions: NDArray[np.int64]
    """[T] A tree begins where its turn's move begins."""
    sees: NDArray[np.bool_]
    """[T, T] Whom each token attends to: a tree sees its prompt and itself, and nobody sees a tree."""
    targets: Probabilities
    """[T, vocabulary] Chance that the player gets here and writes this token next; 0 where others speak."""
    moves: int


class School:
    """Endless lessons; all chance in them comes from one generator."""

    def __init__(self, teacher: Teacher, seed: int) -> None:
        self.teacher = teacher
        self.rng = np.random.default_rng(seed)
        tokenizer = build_tokenizer()
        self.encode = tokenizer.encode
        self.renderer = ChatRenderer(tokenizer, "tiny")
        self.tree = MoveTree(tokenizer.get_vocab())

    def board(self) -> Lesson:
        """One turn on a board as it stands at any moment of an episode."""
        puzzle = make_puzzle(SIZE, int(self.rng.choice(REMOVED)), "train", self.rng)
        later = np.where(self.rng.random(SIZE**2) < 0.25, puzzle.solution, puzzle.clues)
        board: Grid = tuple(later.tolist()) if 0 in later else puzzle.clues
        verdict = self.rng.choice(["start", "correct", "wrong", "filled", "format"])
        observed = self.renderer.first(COMPACT.later(SIZE, board, verdict, None, 0))
        moves = self.teacher.moves(board, puzzle.solution)
        return self._lesson([Turn(observed, moves, draw(moves, self.rng))])

    def episode(self) -> Lesson:
        """The player on a puzzle of its own, with a turn to spare."""
        environment = Sudoku(replace(VARIANTS["tiny"], removed=int(self.rng.choice(REMOVED)), spare_turns=1), "train")
        observed = self.renderer.first(environment.reset(int(self.rng.integers(1 << 62))))
        turns: list[Turn] = []
        refused: list[Move] = []
        while True:
            moves = self.teacher.moves(environment.board, environment.puzzle.solution, refused)
            written = draw(moves, self.rng)
            turns.append(Turn(observed, moves, written))
            result, move = environment.step(written), read_move(written)
            if move is not None and not result.reward:
                refused.append(move)
            if result.terminated or result.truncated:
                return self._lesson(turns)
            observed = self.renderer.later(result.observation, np.array([END], np.int32))

    def _lesson(self, turns: list[Turn]) -> Lesson:
        line = np.concatenate([[*turn.observed, *self.encode(turn.written), END] for turn in turns])
        size = len(self.tree.token_ids)
        length = len(line) + len(turns) * size
        positions, targets, sees = np.arange(length), np.zeros((length, VOCABULARY_SIZE)), np.tri(length, dtype=bool)
        end = 0
        for index, turn in enumerate(turns):
            prompt = end + len(turn.observed)
            end = prompt + len(self.encode(turn.written)) + 1
            tree = slice(len(line) + index * size, len(line) + (index + 1) * size)
            positions[tree] = prompt + self.tree.depths
            sees[tree] = np.arange(length) < prompt
            sees[tree, tree] = self.tree.sees
            targets[prompt - 1], targets[tree] = np.split(self.tree.targets(turn.moves), [1])
            # What the tree leaves out: the box is closed after a digit, and the turn ended after the box.
            certain = np.arange(end - (3 if turn.written.count(" ") == 2 else 2), end - 1)
            targets[certain, line[certain + 1]] = 1
        return Lesson(np.append(line, np.tile(self.tree.token_ids, len(turns))), positions, sees, targets, len(turns))


class Batch(NamedTuple):
    """Lessons side by side, padded on the right."""

    inputs: dict[str, torch.Tensor]
    targets: torch.Tensor
    moves: int


def batch(lessons: Sequence[Lesson]) -> Batch:
    shape = len(lessons), max(len(lesson.token_ids) for lesson in lessons)
    token_ids, positions = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    sees, targets = np.zeros((*shape, shape[1]), bool), np.zeros((*shape, VOCABULARY_SIZE), np.float32)
    sees[:] = np.eye(shape[1], dtype=bool)
    for row, lesson in enumerate(lessons):
        own = slice(len(lesson.token_ids))
        token_ids[row, own], positions[row, own], targets[row, own] = lesson.token_ids, lesson.positions, lesson.targets
        sees[row, own, own] = lesson.sees
    inputs = {"input_ids": token_ids, "position_ids": positions, "attention_mask": sees[:, None]}
    tensors = {name: torch.from_numpy(values) for name, values in inputs.items()}
    return Batch(tensors, torch.from_numpy(targets), sum(lesson.moves for lesson in lessons))
