import logging
import warnings

import pytest

from pbt_agents.dashboard.quiet import quiet_tune


@pytest.fixture
def quiet(monkeypatch):
    """quiet_tune in force; environment, filters and loggers are afterwards what they were."""
    names = ("ray.tune.execution.tune_controller", "ray.tune.tune", "ray.tune.execution.experiment_state")
    before = {name: list(logging.getLogger(name).filters) for name in names}
    monkeypatch.setattr("os.environ", {})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        quiet_tune()
        yield
    for name, filters in before.items():
        logging.getLogger(name).filters[:] = filters


def test_what_the_run_says_in_its_own_words_is_not_said_again(quiet, caplog):
    logging.getLogger("ray.tune.execution.tune_controller").error("Trial task failed for trial agent1")
    logging.getLogger("ray.tune.tune").error("Trials did not complete: %s", ["agent1"])
    assert caplog.messages == []


def test_whatever_else_goes_wrong_is_still_said(quiet, caplog):
    logging.getLogger("ray.tune.execution.tune_controller").error("Failed to restore the run state.")
    logging.getLogger("ray.tune.execution.experiment_state").error("Saving experiment state failed")
    try:
        raise OSError(28, "No space left on device")
    except OSError:
        logging.getLogger("ray.tune.execution.experiment_state").exception("Saving experiment state failed")
    assert len(caplog.messages) == 3


def test_a_file_that_was_replaced_while_tune_copied_it_is_no_failure(quiet, caplog):
    try:
        raise FileNotFoundError(2, "No such file")
    except FileNotFoundError:
        logging.getLogger("ray.tune.execution.experiment_state").exception("Saving experiment state failed")
    assert caplog.messages == []


def test_tunes_advice_on_actors_is_no_warning_but_others_are(quiet):
    warnings.warn("Consider boosting PBT performance by enabling `reuse_actors`", UserWarning, stacklevel=1)
    with pytest.raises(UserWarning, match="else"):
        warnings.warn("something else", UserWarning, stacklevel=1)
