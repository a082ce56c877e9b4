"""Slots of a run's engines and who has them, on a clock of its own."""

import pytest

from pbt_agents.rollout.slot_leases import Lease, SlotLeases


@pytest.fixture
def leases():
    return SlotLeases(2, lease_s=10.0)


def test_a_member_of_a_population_has_the_slot_of_its_number(leases):
    assert leases.take("x_00001", 1, 0.0) == Lease(1, 0)
    assert leases.take("x_00000", 0, 0.0) == Lease(0, 0)


def test_a_member_that_starts_again_has_its_slot_and_turn_again(leases):
    """Whether it gave it back, or died with it."""
    leases.take("b", None, 0.0)
    assert leases.take("b", None, 1.0) == Lease(0, 0)
    leases.give_back("b")
    assert leases.take("b", None, 2.0) == Lease(0, 0)
    assert leases.take("b", None, 50.0) == Lease(0, 0)


def test_a_trial_of_a_sweep_takes_what_is_free_and_comes_after_who_had_it(leases):
    leases.take("a", None, 0.0)
    leases.take("b", None, 0.0)
    assert leases.take("c", 7, 1.0) is None
    leases.give_back("b")
    assert leases.take("c", 7, 2.0) == Lease(1, 1)
    assert leases.take("b", None, 3.0) is None


def test_who_lost_a_slot_to_another_comes_after_that_one(leases):
    leases.take("a", None, 0.0)
    leases.give_back("a")
    assert leases.take("b", 0, 1.0) == Lease(0, 1)
    leases.give_back("b")
    assert leases.take("a", 0, 2.0) == Lease(0, 2)


def test_a_slot_is_free_when_its_lease_has_run_out_and_not_before(leases):
    leases.take("a", None, 0.0)
    leases.take("b", None, 0.0)
    leases.renew("a", 8.0)
    assert leases.take("c", None, 10.0) is None
    assert leases.take("c", None, 10.5) == Lease(1, 1)
    assert leases.take("d", None, 18.0) is None


def test_who_is_not_heard_of_does_not_disturb_who_has_its_slot_now(leases):
    leases.take("a", None, 0.0)
    leases.take("b", 0, 20.0)
    leases.give_back("a")
    leases.renew("a", 100.0)
    assert leases.take("c", 0, 21.0) == Lease(1, 0)
    assert leases.take("d", 0, 29.0) is None
