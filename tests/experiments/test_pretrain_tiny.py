"""Pre-training of the tiny model: its loss, and that it repeats."""

import numpy as np
import pytest
import torch
from _tiny_lessons import Batch
from pretrain_tiny import TEACHER, Args, imitation_loss, learning_rate, train


def test_shares_of_the_player_sum_to_one():
    assert sum(vars(TEACHER).values()) == pytest.approx(1)


def test_a_token_counts_by_the_chance_that_the_player_gets_there():
    """After a certain token, one reached in half the moves with 3/4 and 1/4. Of a uniform model over 4: log 4 + (log 4 - H) / 2."""
    targets = torch.tensor([[[1.0, 0, 0, 0], [0, 0.375, 0.125, 0], [0, 0, 0, 0]]])
    lessons = Batch({}, targets, moves=1)
    assert imitation_loss(torch.log(targets + 1e-12), lessons).item() == pytest.approx(0, abs=1e-5)
    entropy = -(0.75 * np.log(0.75) + 0.25 * np.log(0.25))
    assert imitation_loss(torch.zeros(1, 3, 4), lessons).item() == pytest.approx(1.5 * np.log(4) - entropy / 2, abs=1e-6)
    assert imitation_loss(torch.zeros(1, 3, 4), lessons._replace(moves=2)).item() == pytest.approx(0.75 * np.log(4) - entropy / 4, abs=1e-6)


def test_the_rate_warms_up_and_ends_at_a_thirtieth():
    args = Args(board_steps=600, episode_steps=400, learning_rate=1e-3)
    assert learning_rate(args, 0) == pytest.approx(1e-3 / 50)
    assert learning_rate(args, 500) == pytest.approx(1e-3 * (0.03 + 0.97 / 2))
    assert learning_rate(args, 1000) == pytest.approx(0.03e-3)


def test_the_same_seed_trains_the_same_weights_and_another_seed_others():
    def weights(seed):
        model = train(Args(board_steps=1, episode_steps=1, boards=2, episodes=1, seed=seed))
        return torch.cat([weight.detach().flatten() for weight in model.parameters()])

    assert torch.equal(weights(0), weights(0))
    assert not torch.equal(weights(0), weights(1))
