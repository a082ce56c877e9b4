"""A Ray of our own on this machine, or the cluster whose address is given."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS": "0",
    # One thread for each trainer and engine: more of them spin and take each other's core.
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "RAY_AIR_NEW_OUTPUT": "0",  # Tune's tables: a run prints its own lines
}
_OBJECT_STORE_BYTES = 80 << 20
"""Ray's smallest, nearly: nothing large goes through it."""


@contextmanager
def ray_session(out: Path, address: str | None = None) -> Iterator[None]:
    """Ray for the time of the block. A local one ends with it, and with this process however it dies."""
    import ray

    os.environ.update({name: value for name, value in _ENVIRONMENT.items() if name not in os.environ})
    if address is not None:
        ray.init(address=address, configure_logging=False)
        try:
            yield
        finally:
            ray.shutdown()
        return
    with _session_folder(out / "ray") as folder:
        ray.init(
            num_cpus=os.cpu_count(),
            include_dashboard=False,
            object_store_memory=_OBJECT_STORE_BYTES,
            _temp_dir=str(folder),
            configure_logging=False,
            log_to_driver=False,
        )
        try:
            yield
        finally:
            ray.shutdown()


@contextmanager
def _session_folder(link: Path) -> Iterator[Path]:
    """Ray's sockets need a short path, so its folder stands in the temporary folder and is linked from the run's."""
    if link.is_symlink():  # a run in this directory was killed
        shutil.rmtree(link.resolve(), ignore_errors=True)
        link.unlink()
    folder = Path(tempfile.mkdtemp(prefix="ray-"))
    link.symlink_to(folder)
    try:
        yield folder
    finally:
        link.unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
