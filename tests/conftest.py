"""One thread for torch in every test's processes: beside engines and rollouts on few cores, threads that spin for each other cost more."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
