"""Keeps from the terminal what Ray and Tune say of things that are as they should be, or that a run says in its own words."""

import logging
import os
import warnings
from functools import partial

_SAID_BY_THE_RUN = {
    "ray.tune.execution.tune_controller": "Trial task failed for trial",
    "ray.tune.tune": "Trials did not complete",
}
_ENVIRONMENT = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # tables and event files beside the lines and logs that a run writes
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
    "TUNE_WARN_THRESHOLD_S": "10",  # on a busy machine half a second is nothing
}


def quiet_tune() -> None:
    """To be called before a Tune run. Within warnings.catch_warnings(), if its filter is not to stay."""
    os.environ.update(_ENVIRONMENT)
    warnings.filterwarnings("ignore", message="Consider boosting PBT")  # no actor ends at a clone, so there is none to reuse
    for logger, beginning in _SAID_BY_THE_RUN.items():
        logging.getLogger(logger).addFilter(partial(_says_other_than, beginning))
    # Tune may copy its state while it writes the next; the next copy makes up for it.
    logging.getLogger("ray.tune.execution.experiment_state").addFilter(_has_no_missing_file)


def _says_other_than(beginning: str, record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith(beginning)


def _has_no_missing_file(record: logging.LogRecord) -> bool:
    return record.exc_info is None or not isinstance(record.exc_info[1], FileNotFoundError)
