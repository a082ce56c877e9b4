"""The contract's order: the donor's state, then the values of the trial's own config, then the read-back."""

import math
from types import SimpleNamespace

import pytest

from pbt_agents.errors import GuardError
from pbt_agents.scheduling.in_place import InPlaceTrainable, check_read_back
from pbt_agents.testing.landscape import Landscape


def landscape(rate, tmp_path, kind=Landscape):
    # Without a storage Tune would write to the user's home.
    storage = SimpleNamespace(trial_fs_path=str(tmp_path), trial_working_directory=str(tmp_path / f"{rate}"))
    return kind(config={"rate": rate, "width": 1, "seed": rate}, storage=storage)


@pytest.fixture
def donor(tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_CHDIR_TO_TRIAL_DIR", "0")
    donor = landscape(1.0, tmp_path)
    donor._storage = None
    for _ in range(3):
        donor.train()
    return donor


def test_a_clone_has_the_donors_state_and_its_own_values(donor, tmp_path):
    """B44, B48."""
    clone = landscape(0.1, tmp_path)
    before = clone.values_in_use()
    in_use = clone.exploit_in_place({"rate": 1.25, "width": 2, "seed": 7}, donor.save())
    assert before == {"rate": 0.1, "width": 1}
    assert in_use == clone.values_in_use() == {"rate": 1.25, "width": 2}
    assert clone.state == donor.state
    assert clone.training_iteration == 3
    assert clone.config["seed"] == 7


def test_what_a_clone_saves_before_its_next_result_counts_as_the_donors_step(donor, tmp_path):
    clone = landscape(0.1, tmp_path)
    clone._storage = None
    clone.train()
    clone.exploit_in_place({"rate": 1.25, "width": 2}, donor.save())
    assert clone.save().metrics["training_iteration"] == 3


def test_every_restore_ends_with_the_trials_own_values(donor, tmp_path):
    """B44. A crash and a resumed run restore without an exploit."""
    restarted = landscape(1.25, tmp_path)
    restarted.restore(donor.save())
    assert restarted.values_in_use()["rate"] == 1.25
    assert restarted.state == donor.state


def test_a_reset_config_that_applies_nothing_is_an_error(donor, tmp_path):
    class Deaf(Landscape):
        def reset_config(self, new_config):
            return False

    with pytest.raises(GuardError, match=r"Deaf\.reset_config did not return True"):
        landscape(0.1, tmp_path, Deaf).exploit_in_place({"rate": 1.25, "width": 2}, donor.save())


def test_a_trainable_without_the_contracts_verbs_cannot_be_made():
    class Incomplete(InPlaceTrainable):
        def reset_config(self, new_config):
            return True

    with pytest.raises(TypeError, match="values_in_use"):
        Incomplete()


def test_a_read_back_that_differs_is_an_error_with_the_figures():
    """B44."""
    with pytest.raises(GuardError, match=r"clone m1 trains with \{'rate': 0\.1\} where \{'rate': 0\.2\} was decided"):
        check_read_back("m1", {"rate": 0.2, "window": 4}, {"rate": 0.1, "window": 4, "more": 1})
    with pytest.raises(GuardError, match="window"):
        check_read_back("m1", {"window": 4}, {})
    check_read_back("m1", {"rate": 0.2, "window": 4, "cap": math.inf}, {"rate": 0.2 * (1 + 1e-7), "window": 4, "cap": math.inf})
