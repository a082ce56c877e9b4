"""A Ray of our own on this machine, or the cluster whose address is given.

Owns what a run puts into the temporary folder, too: it is one folder, which ends with the session.
"""

import logging
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

from pbt_agents.errors import ConfigError
from pbt_agents.ray_reaper import mark, reaped

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
_ANSWER_S = 5.0
"""For a cluster that is far away, too."""
_TEMPORARY_LENGTH = 107 - len("/ray-12345678/session_2026-01-01_00-00-00_000000_1234567/sockets/plasma_store")
"""Bytes that a path may have to which Ray adds so much: the system takes no socket beyond 107."""


def temporary_folder() -> Path:
    """Where a session puts its files. Raises ConfigError when nothing can be written there, or Ray cannot do with its path."""
    try:
        folder = Path(tempfile.gettempdir())
    except FileNotFoundError as error:
        raise ConfigError("no temporary directory can be written, neither TMPDIR nor /tmp. Set TMPDIR to one that can.") from error
    if not str(folder).isascii():
        raise ConfigError(f"the temporary directory '{folder}' has letters in its path that Ray cannot read. Set TMPDIR to one without.")
    length = len(os.fsencode(folder))
    if length > _TEMPORARY_LENGTH:
        raise ConfigError(
            f"the temporary directory '{folder}' has a path of {length} bytes, and Ray's sockets leave room for {_TEMPORARY_LENGTH}. "
            "Set TMPDIR to a shorter one."
        )
    return folder


@contextmanager
def ray_session(out: Path | None, address: str | None = None) -> Iterator[None]:
    """Ray for the time of the block. A local one ends with it, and with this process however it dies.

    A link in `out`, if it is given, leads to all that is temporary.
    Raises ConfigError when no cluster answers at the address.
    """
    os.environ.update({name: value for name, value in _ENVIRONMENT.items() if name not in os.environ})
    if address is not None:
        check_address(address)
        with _ray({}, address=address):
            yield
        return
    with _temporary_folder(out and out / "ray") as folder:
        local = {"num_cpus": os.cpu_count(), "include_dashboard": False, "object_store_memory": _OBJECT_STORE_BYTES}
        with (
            reaped(folder),
            _exported(_token()),
            _ray(mark(folder), address="local", **local, _temp_dir=str(folder), log_to_driver=False),
        ):
            yield


def check_address(address: str) -> None:
    """Raises ConfigError when nobody listens at host:port, where Ray would try for minutes. Words, as 'auto', are left to Ray."""
    if not address:
        raise ConfigError("the address is empty. Name a Ray cluster as host:port, or leave it out for a local one.")
    host, colon, port = address.rpartition("://")[2].rpartition(":")
    if colon:
        try:
            socket.create_connection((host.strip("[]"), int(port)), _ANSWER_S).close()
        except (OSError, ValueError) as error:
            raise _no_cluster(address, error) from error


def _no_cluster(address: str, error: Exception) -> ConfigError:
    return ConfigError(f"no Ray cluster answers at '{address}': {error}. Leave the address out for a local one.")


def _token() -> dict[str, str]:
    """The word by which Ray's processes know each other, unless the user has one.

    Ray would put one into HOME, which need not be writable. A process keeps the first that it has, so all its sessions have the same.
    """
    if any(name in os.environ for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")):
        return {}
    with suppress(OSError, RuntimeError):  # it cannot be looked at, or there is no HOME at all
        if Path("~/.ray/auth_token").expanduser().exists():
            return {}
    return {"RAY_AUTH_TOKEN": _own_token()}


@cache
def _own_token() -> str:
    return secrets.token_hex(32)


@contextmanager
def _ray(environment: Mapping[str, str], **options: Any) -> Iterator[None]:
    """`environment` is that of Ray's own processes, beside the driver's."""
    import ray

    # That a local Ray asks for a token is as it should be, and nothing to warn of.
    logging.getLogger("ray._private.authentication.authentication_token_setup").setLevel(logging.ERROR)
    try:
        try:
            with _starting(), _exported(environment):
                ray.init(configure_logging=False, **options)
        except ConnectionError as error:
            raise _no_cluster(options["address"], error) from error
        yield
    finally:
        ray.shutdown()


@contextmanager
def _starting() -> Iterator[None]:
    """Ray's start can neither be interrupted nor shut down half-way, and there is nothing to lose yet: a signal ends this process at once.

    The reaper ends the rest. After the block, signals do what they did before; Ray's own way to end on SIGTERM is not kept.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    outer = {number: signal.signal(number, _leave) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in outer.items():
            signal.signal(number, handler)


def _leave(number: int, frame: FrameType | None) -> None:
    print("interrupted while Ray was starting", file=sys.stderr, flush=True)
    os._exit(130)


@contextmanager
def _temporary_folder(link: Path | None) -> Iterator[Path]:
    """The temporary folder of this process and all that it starts, until the block ends.

    Ray's sockets need a short path, so it stands in the outer temporary folder; `link` leads to it. The reaper removes it.
    """
    if link and link.is_symlink():  # a run in this directory was killed
        shutil.rmtree(link.resolve(), ignore_errors=True)
        link.unlink()
    outer = tempfile.tempdir
    folder = Path(tempfile.mkdtemp(prefix="ray-", dir=temporary_folder()))
    if link:
        link.symlink_to(folder)
    tempfile.tempdir = str(folder)
    try:
        with _exported({"TMPDIR": str(folder)}):
            yield folder
    finally:
        tempfile.tempdir = outer
        if link:
            link.unlink(missing_ok=True)


@contextmanager
def _exported(variables: Mapping[str, str]) -> Iterator[None]:
    """Variables of this process, and of those that it starts, until the block ends."""
    former = {name: os.environ[name] for name in variables if name in os.environ}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            del os.environ[name]
        os.environ.update(former)
