"""What is trained on is compared with what its environment gives, told anew."""

import asyncio
import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from pbt_agents.audit import audit
from pbt_agents.environment import StepResult
from pbt_agents.errors import EpisodeError, GuardError
from pbt_agents.rollout import episode
from pbt_agents.rollout.episode import Limits, play
from pbt_agents.rollout.renderer import ChatRenderer
from pbt_agents.testing.character_tokenizer import CharacterTokenizer, ids
from pbt_agents.testing.fake_engine import FakeEngine
from pbt_agents.types import Trajectory

RENDERER, SEED = ChatRenderer(CharacterTokenizer(), "toy"), 5


class Countdown:
    """Three turns; the first has no verdict, the last pays 1."""

    def reset(self, seed):
        self.left = 3
        return f"start {seed}"

    def step(self, action):
        self.left -= 1
        return StepResult(str(self.left), {2: math.nan, 1: 0.0, 0: 1.0}[self.left], terminated=self.left == 0)


def played(budget=400):
    engine = FakeEngine(("agent0",), policy=lambda prompt, sampling: ids("go$")[: sampling.max_tokens].tolist())
    return asyncio.run(play(Countdown, engine, RENDERER, "agent0", SEED, Limits(8, budget), 1.0))


def again(environment=Countdown):
    return lambda seed, actions: asyncio.run(episode.replay(environment, seed, actions, None))


def test_an_episode_as_it_was_played_agrees():
    trajectory = played()
    assert "".join(map(chr, trajectory.token_ids)) == "<start 5>@go$<2>@go$<1>@go$"
    assert audit(trajectory, SEED, again(), RENDERER) == "agreed"


def test_one_that_was_cut_at_its_token_budget_agrees():
    trajectory = played(budget=21)
    assert (trajectory.stop_reason, len(trajectory.turns)) == ("length", 2)
    assert audit(trajectory, SEED, again(), RENDERER) == "agreed"


def in_turn(number, **changes):
    """A trajectory with one turn changed."""

    def change(trajectory):
        turns = list(trajectory.turns)
        turns[number] = replace(turns[number], **changes)
        return replace(trajectory, turns=tuple(turns))

    return change


def later_spans(trajectory):
    return replace(
        trajectory, policy_spans=tuple(replace(span, start=span.start + 1, stop=span.stop + 1) for span in trajectory.policy_spans)
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (in_turn(1, observation_ids=ids("<3>@")), "token ids differ from position 14 of 27: 50, given is 51"),
        (in_turn(1, observation_ids=ids("<2>")), "token ids are 27, given are 26"),
        (in_turn(2, reward=0.0), r"rewards are \[nan, 0.0, 1.0\], stored are \[nan, 0.0, 0.0\]"),
        (in_turn(0, reward=0.0), r"rewards are \[nan, 0.0, 1.0\], stored are \[0.0, 0.0, 1.0\]"),
        (
            lambda trajectory: replace(trajectory, turns=trajectory.turns[:2]),
            "it is still going on after 2 turns, stored are 2, terminated",
        ),
        (lambda trajectory: replace(trajectory, stop_reason="truncated"), "it is terminated after 3 turns, stored are 3, truncated"),
        (later_spans, r"policy spans cover \[11, 12, 13, .*\], not the sampled tokens"),
    ],
)
def test_what_differs_from_its_environment_is_not_trained_on(change, message):
    """B18, B20 and B28, of what is really trained on."""
    with pytest.raises(GuardError, match=f"attempt at task 5 .* {message}"):
        audit(change(played()), SEED, again(), RENDERER)


def test_a_mask_that_is_shifted_in_the_batch_is_found(monkeypatch):
    """B20: the trainer's own rows are looked at, not only what is stored."""
    monkeypatch.setattr(Trajectory, "loss_mask", property(lambda self: np.roll(mask_of(self), 1)))
    with pytest.raises(GuardError, match="trained tokens differ from position 10 of 27: True, given is False"):
        audit(played(), SEED, again(), RENDERER)


def mask_of(trajectory):
    return np.concatenate([np.repeat([False, True], [len(turn.observation_ids), len(turn.action_ids)]) for turn in trajectory.turns])


def test_the_task_of_another_seed_is_found():
    with pytest.raises(GuardError, match="token ids differ from position 7 of 27: 54, given is 53"):
        audit(played(), 6, again(), RENDERER)


def test_an_environment_that_does_not_repeat_itself_proves_nothing():
    calls = itertools.count()

    class Moody(Countdown):
        def reset(self, seed):
            return super().reset(seed) + str(next(calls))

    assert audit(played(), SEED, again(Moody), RENDERER) == "not_reproducible"


def test_an_environment_that_fails_this_time_proves_nothing():
    class Broken(Countdown):
        def step(self, action):
            raise OSError("gone")

    assert audit(played(), SEED, again(Broken), RENDERER) == "lost"
    with pytest.raises(EpisodeError, match=r"Broken\.step raised OSError: gone"):
        again(Broken)(SEED, ["go"])
