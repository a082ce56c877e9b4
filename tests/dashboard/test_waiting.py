import pytest

from pbt_agents.dashboard.waiting import awaited


def beacon(doing="wait_for_groups", doing_s=38.0, episodes=3, begun=64, oldest_s=40.0):
    return {"doing": doing, "doing_s": doing_s, "episodes": episodes, "begun": begun, "oldest_s": oldest_s}


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (beacon(), "is waiting for 3 of 64 rollouts, oldest 40 s"),
        (beacon(doing="evaluate"), "is waiting for 3 of 64 rollouts of an evaluation, oldest 40 s"),
        (beacon(episodes=0), "waits for rollouts to begin (38 s)"),
        (beacon(doing="train", doing_s=600), "trains (10 min)"),
        (beacon(doing="wait_for_turn"), "waits for its turn to train (38 s)"),
        (beacon(doing="publish"), "brings its adapter to the engines (38 s)"),
        (beacon(doing=""), "waits for the next step (38 s)"),
    ],
)
def test_what_a_member_waits_for_is_named(said, words):
    """B84."""
    assert awaited({"agent1": said}) == f"agent1 {words}"


def test_nothing_is_said_while_everything_moves():
    assert awaited({"agent0": beacon(doing_s=9.0), "agent1": beacon("train", 2.0)}) is None


def test_of_many_members_the_three_that_wait_longest_are_named():
    said = {f"agent{number}": beacon("train", 10.0 + number) for number in range(6)}
    assert awaited(said) == "agent5 trains (15 s); agent4 trains (14 s); agent3 trains (13 s); and 3 more"
