"""A Weights & Biases run for each member, in one group, logged from the driver.

Values are logged against `updates`, which only rises; W&B drops rows whose own step goes back, as a clone's would.
Without a key nothing is asked and nothing is sent: the runs are kept in the run's folder for `wandb sync`.
"""

import logging
import os
import secrets
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import Any

import psutil
from ray.tune import Callback

from pbt_agents.errors import ConfigError
from pbt_agents.scheduling.in_place import CUT_SHORT

logger = logging.getLogger(__name__)


class WandbRuns(Callback):
    """`member(trial)` names a member, `parent(member)` whose clone it is; the end waits `finish_s` for uploads.

    A logger that fails says so once and never stops the training.
    """

    def __init__(
        self,
        project: str,
        folder: Path,
        members: Sequence[str],
        member: Callable[[Any], str],
        parent: Callable[[str], str | None],
        finish_s: float = 15.0,
    ) -> None:
        self._project, self._folder, self._member, self._parent = project, folder, member, parent
        self._finish_s = finish_s
        self._mode = wandb_mode()
        self._members = members if self._mode != "disabled" else ()
        self._runs: dict[str, Any] = {}

    def setup(self, **info: Any) -> None:
        """All runs are opened before the first result: opening one takes a second or two, in which no other result is looked at."""
        with self._training_goes_on(), _somewhere_for_its_cache(self._folder):
            group = _group(self._folder)
            self._runs = {name: self._open(name, group) for name in self._members}

    def on_trial_result(self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any) -> None:
        name = self._member(trial)
        run = self._runs.get(name)
        if run is None or result.get(CUT_SHORT):
            return
        with self._training_goes_on():
            run.config.update(trial.config, allow_val_change=True)
            numbers = {key: value for key, value in result.items() if isinstance(value, int | float) and not isinstance(value, bool)}
            run.log({**numbers, "parent": self._parent(name)})

    def on_experiment_end(self, trials: list[Any], **info: Any) -> None:
        """Uploading may take for ever, and neither the engines nor the run's end wait for it."""
        finishing = [Thread(target=self._finish, args=(run,), name="wandb-finish", daemon=True) for run in self._runs.values()]
        for thread in finishing:
            thread.start()
        deadline = time.monotonic() + self._finish_s
        for thread in finishing:
            thread.join(max(deadline - time.monotonic(), 0.0))
        if any(thread.is_alive() for thread in finishing):
            _end_writers()
            logger.warning("W&B is not done after %.0f s and is left behind. %s", self._finish_s, self._how_to_sync())

    def _finish(self, run: Any) -> None:
        with self._training_goes_on():
            run.finish()

    def _open(self, name: str, group: str) -> Any:
        import wandb

        run = wandb.init(
            project=self._project,
            group=group,
            name=name,
            id=f"{group}-{name}",
            resume="allow" if self._mode == "online" else None,
            dir=self._folder,
            mode=self._mode,
            reinit="create_new",
            settings=wandb.Settings(silent=True, console="off", x_disable_stats=True, finish_timeout=self._finish_s),
        )
        run.define_metric("updates")
        run.define_metric("*", step_metric="updates")
        return run

    @contextmanager
    def _training_goes_on(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._runs = {}
            logger.warning("W&B logging stopped, training goes on. %s: %s", self._how_to_sync(), error)

    def _how_to_sync(self) -> str:
        return f"Send what there is with: wandb sync {shlex.quote(str(self._folder / 'wandb'))}/*run-*"


@contextmanager
def _somewhere_for_its_cache(folder: Path) -> Iterator[None]:
    """W&B's own process writes its log into the user's cache, and where there is none, on the terminal."""
    cache = os.environ.get("XDG_CACHE_HOME") or (os.environ.get("HOME") and f"{os.environ['HOME']}/.cache")
    if cache and _is_made(Path(cache, "wandb")):
        yield
        return
    former = os.environ.get("XDG_CACHE_HOME")
    os.environ["XDG_CACHE_HOME"] = str(folder.resolve() / "wandb" / "cache")
    try:
        yield
    finally:
        if former is None:
            del os.environ["XDG_CACHE_HOME"]
        else:
            os.environ["XDG_CACHE_HOME"] = former


def _is_made(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK)


def _end_writers() -> None:
    """End W&B's own process, which would be waited for when this one exits."""
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if process.name().startswith("wandb"):
                process.kill()


def _group(folder: Path) -> str:
    """Names the run of this directory among all of the project, and is the same when it is resumed."""
    file = folder / "wandb-group.txt"
    if not file.exists():
        file.write_text(f"{folder.resolve().name}-{secrets.token_hex(3)}")
    return file.read_text()


def wandb_mode() -> Any:
    """`online` with a key, `offline` without; WANDB_MODE overrides both."""
    asked = os.environ.get("WANDB_MODE")
    if asked is not None:
        if asked not in ("online", "offline", "disabled", "shared"):
            raise ConfigError(f"WANDB_MODE is '{asked}'. Set it to online, offline or disabled, or leave it out.")
        return asked
    has_key = "WANDB_API_KEY" in os.environ or "api.wandb.ai" in _netrc()
    return "online" if has_key else "offline"


def _netrc() -> str:
    path = Path(os.environ.get("NETRC", Path.home() / ".netrc"))
    try:
        return path.read_text()
    except OSError:
        return ""
