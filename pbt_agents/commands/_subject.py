"""Who is to play what: an adapter, its base model and its environment, checked before any engine starts.

What is not given is taken from the run that the adapter lies in, where there is one.
"""

import json
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pbt_agents.config import AgentConfig
from pbt_agents.environment import environment_maker
from pbt_agents.errors import ConfigError
from pbt_agents.json_files import as_written
from pbt_agents.models import check_context, check_model, resolve_model
from pbt_agents.run_folder import MANIFEST, manifest_around

_CONFIG_FILE = "adapter_config.json"


@dataclass(frozen=True)
class Subject:
    """An adapter (None for the base alone), and all that it plays with."""

    adapter: Path | None
    config: AgentConfig
    model_path: str
    run: Path | None
    """That the settings come from."""

    def __str__(self) -> str:
        config = self.config
        source = f", by {self.run / MANIFEST}" if self.run else ""
        return f"environment {config.environment.id}, base model {config.model.path}, seed {config.seed}{source}"


def subject(adapter: Path | None, environment: str | None, model: str | None, seed: int | None) -> Subject:
    """Raises ConfigError when the adapter is none, or is not one of this base model, or the environment cannot be made."""
    lora = _read_lora(adapter) if adapter else {}
    found = manifest_around(adapter) if adapter else None
    with as_written(found[0] / MANIFEST) if found else nullcontext():
        config = _of_run(found[1]) if found else _recipe(model or "tiny")
    if environment is not None and environment != config.environment.id:
        config = config.with_values({"environment.id": environment, "environment.options": {}})
    if model is not None and model != config.model.path:
        config = config.with_values({"model.path": model})
    own_engine = {"fleet.fleet": "shared", "fleet.engines": 1, "fleet.slots": 1}
    config = config.with_values({**own_engine, **lora, **({} if seed is None else {"seed": seed})})
    environment_maker(config.environment, "test")
    model_path = resolve_model(config.model.path)
    check_model(model_path)
    check_context(model_path, config.rollout.max_episode_tokens)
    if adapter:
        _check_fits(adapter, config, model_path)
    return Subject(adapter, config, model_path, found[0] if found else None)


def _read_lora(adapter: Path) -> dict[str, Any]:
    """Rank and alpha of an adapter, as settings."""
    file = adapter / _CONFIG_FILE
    if not file.is_file():
        raise ConfigError(f"'{adapter}' has no {_CONFIG_FILE}. Name a folder in PEFT's format, such as the `best` of a run.")
    try:
        stored = json.loads(file.read_text())
        lora = {"lora_rank": stored["r"], "lora_alpha": stored["lora_alpha"]}
        AgentConfig().with_values(lora)
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"'{file}' is no configuration of a LoRA adapter: {error!r}. Save it with peft's save_pretrained.") from error
    except ConfigError as error:
        raise ConfigError(f"the engine cannot serve the adapter in '{adapter}': {error}") from error
    return lora


def _of_run(manifest: Mapping[str, Any]) -> AgentConfig:
    """The agents of a run. Of an older one, which noted only its flags, what these say of environment and model."""
    population, settings = manifest.get("population"), manifest["settings"]
    if population:
        return AgentConfig.from_dict(population["agent"])
    flags = {"environment.id": "environment", "model.path": "model", "seed": "seed"}
    given = {name: settings[flag] for name, flag in flags.items() if flag in settings}
    return _recipe(given.get("model.path", "tiny")).with_values(given)


def _recipe(model: str) -> AgentConfig:
    from pbt_agents.populations.sudoku import CHAT_MODEL, POPULATION

    return POPULATION.agent.with_values({} if model == "tiny" else {"model.path": model, **CHAT_MODEL})


def _check_fits(adapter: Path, config: AgentConfig, model_path: str) -> None:
    from pbt_agents.trainer.lora import check_adapter

    check_adapter(adapter, model_path, config.model)
