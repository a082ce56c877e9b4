"""A run with made-up results, for a terminal: it shows a table until it is interrupted."""

import logging
import os
import sys
import time
import warnings

from pbt_agents.dashboard.events import Cloned, Failed, MemberResult, Progress, StageStarted
from pbt_agents.dashboard.reporter import reporter_for

logger = logging.getLogger("other")
logger.addHandler(logging.StreamHandler(sys.stderr))  # it keeps the stream of now

if __name__ == "__main__":
    with reporter_for() as reporter:
        try:
            reporter.tell(StageStarted("training", "training 2 members"))
            for number in range(2):
                reporter.tell(
                    MemberResult(f"agent{number}", number, 20, 0.4125, 0.03, 1.5e-3, 5.0, 8, 2.34, 512.0, "agent0" if number else None)
                )
            reporter.tell(Cloned("agent1", "agent0", 0.1, 0.5, {"window": 4}, {"window": 8}, 0.1))
            reporter.tell(Progress("training", 95.0, 120, 400, "updates", 180.0, 210.0, {"agent1": 25}, "agent0 trains (40 s)"))
            print("a print of other code")
            logger.warning("a logger's warning")
            warnings.warn("a warning", stacklevel=1)
            os.write(2, b"from below Python\n")
            time.sleep(600)
        except KeyboardInterrupt:
            reporter.tell(Failed("interrupted"))
            sys.exit(130)
