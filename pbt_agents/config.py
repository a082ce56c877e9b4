"""What one agent is made of, as typed values.

Owns names, defaults and checks. Unknown names are refused with the nearest known one, and `from_dict(to_dict())` is the
identity. Any field can be set by its own name (`learning_rate`) or by its path (`trainer.learning_rate`), since no two
sections share a field name.
"""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pbt_agents import plugins
from pbt_agents.checks import is_json, like, require, whole
from pbt_agents.errors import unknown_name

ADVANTAGES = ("group_standardized", "group_centered", "group_shuffled")
"""How scores of a group become advantages."""
BOUNDS = ("ratio_max", "ratio_min")
"""Of the trust region; an objective may have no use for them."""


@dataclass(frozen=True)
class EnvironmentConfig:
    """Which task is learned."""

    id: str = "sudoku:tiny"
    """File in environments/ and variant after a colon, or `package.module:Factory` for one's own."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Handed to the environment, which checks them."""

    def __post_init__(self) -> None:
        require(all(isinstance(name, str) for name in self.options), f"options are named by words, got {dict(self.options)}.")
        require(is_json(self.options), f"options hold numbers, words, lists and None, as JSON does, got {dict(self.options)}.")


@dataclass(frozen=True)
class ModelConfig:
    """The base model and the adapter trained on it."""

    path: str = "tiny"
    """`tiny` for the model in the package; else a local folder or a hub id."""
    lora_rank: int = 8
    lora_alpha: int = 16

    def __post_init__(self) -> None:
        allowed = (1, 8, 16, 32, 64, 128, 256, 320, 512)
        require(self.lora_rank in allowed, f"lora_rank must be one that the engine serves {allowed}, got {self.lora_rank}.")
        whole(self, "lora_alpha", 1, 1 << 20)


@dataclass(frozen=True)
class RolloutConfig:
    """How episodes are played."""

    group_size: int = 8
    """Attempts at one task; group-relative advantages need at least 2."""
    groups_in_flight: int = 3
    """Groups one agent plays at the same time: its share of the engines."""
    temperature: float = 1.0
    max_action_tokens: int = 12
    max_episode_tokens: int = 480
    """Prompt and all turns together; an episode that reaches it stops with reason `length`."""
    group_timeout_s: float = 600.0
    """A group that takes longer is dropped whole."""
    environment_threads: int = 0
    """Threads that run the environment; 0 runs it in the rollout loop, best for steps well under a millisecond."""
    prefix_salt: str = "turn"
    """`turn`: no cached key or value outlives an update. `episode`: an episode keeps its cache across updates (faster, mixed)."""

    def __post_init__(self) -> None:
        whole(self, "group_size", 2, 1 << 12, "Advantages are relative to the group.")
        whole(self, "groups_in_flight", 1, 1 << 12)
        require(0 < self.temperature < math.inf, f"temperature must be finite, and above 0 to explore, got {self.temperature}.")
        whole(self, "max_action_tokens", 1, 1 << 20)
        whole(self, "max_episode_tokens", 1, 1 << 24)
        require(
            self.max_episode_tokens > self.max_action_tokens,
            f"max_episode_tokens must exceed max_action_tokens ({self.max_action_tokens}), got {self.max_episode_tokens}.",
        )
        require(self.group_timeout_s > 0, f"group_timeout_s must be above 0, got {self.group_timeout_s}.")
        whole(self, "environment_threads", 0, 1 << 10, "0 needs none.")
        require(self.prefix_salt in ("turn", "episode"), f"prefix_salt is 'turn' or 'episode', got '{self.prefix_salt}'.")


@dataclass(frozen=True)
class BufferConfig:
    """Which experience may be trained on."""

    window: int = 4
    """Policy versions (optimizer steps) a group may lag behind. 0 is the synchronous mode."""
    max_reuse: int = 1
    """How often one group may be trained on."""
    capacity_bytes: int = 1 << 30
    """On disk; the oldest groups go first."""
    segment_groups: int = 64
    """Groups per Arrow segment file."""
    fsync_groups: int = 0
    """Groups stored between two fsyncs, for what must survive a power cut; a killed process loses none, with 0 too."""

    def __post_init__(self) -> None:
        whole(self, "window", 0, 1 << 16, "It counts policy versions; 0 is synchronous.")
        whole(self, "max_reuse", 1, 1 << 16)
        whole(self, "capacity_bytes", 1 << 20, 1 << 50, "That is 1 MiB.")
        whole(self, "fsync_groups", 0, 1 << 20, "0 leaves it to the system.")
        whole(self, "segment_groups", 1, 1 << 16)


@dataclass(frozen=True)
class ObjectiveConfig:
    """The policy objective and its trust region."""

    objective: str = "cispo"
    """File in objectives/, or `package.module:factory`."""
    ratio_max: float = 5.0
    """Absolute cap on policy / behaviour probability; float('inf') for none."""
    ratio_min: float = 0.0
    """Absolute lower bound; 0 leaves the lower side open."""

    def __post_init__(self) -> None:
        plugins.locate("objective", self.objective)
        require(
            self.ratio_max > 1.0,
            f"ratio_max caps policy / behaviour probability and must be above 1, got {self.ratio_max}. For no cap use float('inf').",
        )
        require(0.0 <= self.ratio_min < 1.0, f"ratio_min must lie in [0, 1), got {self.ratio_min}. 0 leaves the lower side open.")

    @property
    def ignored(self) -> tuple[str, ...]:
        """The bounds here that this objective does not use, as its file says in IGNORES. Read without importing it, which takes torch."""
        ignored = plugins.declared("objective", self.objective, "IGNORES", ())
        for name in ignored:
            if name not in BOUNDS:
                raise unknown_name(f"bound in IGNORES of objective '{self.objective}'", name, BOUNDS)
        return tuple(ignored)


@dataclass(frozen=True)
class TrainerConfig:
    """One optimizer step."""

    learning_rate: float = 1e-3
    groups_per_batch: int = 4
    advantage: str = "group_standardized"
    """`group_standardized` (centred, divided by the deviation), `group_centered`, or `group_shuffled`: standardized and dealt to the
    attempts at random, a control from which nothing can be learned."""
    normalizer: str = "token"
    """Loss divided by the trained tokens of the batch (`token`), or by episodes * max_episode_tokens (`constant`)."""
    max_grad_norm: float = 1.0
    micro_batch_tokens: int = 1024
    """Padded tokens per forward pass."""
    adam_beta1: float = 0.9
    adam_beta2: float = 0.95
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        rate = self.learning_rate
        require(0 < rate < 1 and math.isfinite(rate), f"learning_rate must lie in (0, 1), got {rate}. Common are 1e-5 to 1e-3.")
        whole(self, "groups_per_batch", 1, 1 << 12)
        require(self.advantage in ADVANTAGES, f"advantage is one of {ADVANTAGES}, got '{self.advantage}'.")
        require(self.normalizer in ("token", "constant"), f"normalizer is 'token' or 'constant', got '{self.normalizer}'.")
        require(
            0 < self.max_grad_norm < math.inf,
            f"max_grad_norm must be finite and above 0, got {self.max_grad_norm}. One that no gradient reaches clips nothing.",
        )
        whole(self, "micro_batch_tokens", 1, 1 << 24)
        for name in ("adam_beta1", "adam_beta2"):
            require(0 <= getattr(self, name) < 1, f"{name} must lie in [0, 1), got {getattr(self, name)}.")
        require(0 <= self.weight_decay < math.inf, f"weight_decay must be finite and cannot be negative, got {self.weight_decay}.")


@dataclass(frozen=True)
class FleetConfig:
    """The engines. `shared`: every engine serves every agent; `per_agent`: each agent has engines of its own."""

    fleet: str = "shared"
    engines: int = 1
    """In all when shared, for each agent otherwise."""
    slots: int = 4
    """Agents that can be served: at least the size of the population."""
    max_sequences: int = 64
    """Sequences one engine decodes at the same time."""
    kv_cache_bytes: int = 0
    """Per engine; 0 is room for half of the sequences at their full length, which shared prefixes rarely exceed."""
    gpus_per_engine: float = 0.0

    def __post_init__(self) -> None:
        require(self.fleet in ("shared", "per_agent"), f"fleet is 'shared' or 'per_agent', got '{self.fleet}'.")
        whole(self, "engines", 1, 1 << 10)
        whole(self, "slots", 1, 1 << 10)
        whole(self, "max_sequences", 1, 1 << 12)
        whole(self, "kv_cache_bytes", 0, 1 << 50, "0 takes what is needed.")
        require(0 <= self.gpus_per_engine <= 1, f"gpus_per_engine must lie in [0, 1], got {self.gpus_per_engine}. 0 runs on the CPU.")


@dataclass(frozen=True)
class EvaluationConfig:
    """How often fitness is measured, and on how much."""

    updates_per_evaluation: int = 10
    evaluation_episodes: int = 64
    """Played once each on fixed tasks of the validation split, sampled at temperature 1, whatever temperature trains."""
    audited_trajectories: int = 1
    """Played again at each evaluation, in a fresh environment, and compared. 0 where steps cost or change something."""
    patience: int = 8
    """Evaluations in a row without an optimizer step after which an agent ends: there is nothing left to learn, or it cannot play."""

    def __post_init__(self) -> None:
        whole(self, "updates_per_evaluation", 1, 1 << 20)
        whole(self, "evaluation_episodes", 2, 1 << 20, "One has no standard error.")
        whole(self, "audited_trajectories", 0, 1 << 10, "0 plays none.")
        whole(self, "patience", 1, 1 << 20)


@dataclass(frozen=True)
class AgentConfig:
    """One agent: a whole ring."""

    environment: EnvironmentConfig = EnvironmentConfig()
    model: ModelConfig = ModelConfig()
    rollout: RolloutConfig = RolloutConfig()
    buffer: BufferConfig = BufferConfig()
    objective: ObjectiveConfig = ObjectiveConfig()
    trainer: TrainerConfig = TrainerConfig()
    fleet: FleetConfig = FleetConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    seed: int = 0
    """Of the population; each member draws its own streams from it and its slot."""

    def __post_init__(self) -> None:
        whole(self, "seed", 0, (1 << 63) - 1)

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "AgentConfig":
        sections = {f.name: f.default for f in dataclasses.fields(cls)}
        built = {}
        for name, value in values.items():
            if name not in sections:
                raise unknown_name("setting", name, sections)
            build = _section if dataclasses.is_dataclass(sections[name]) else like
            built[name] = build(sections[name], name, value)
        return cls(**built)

    def with_values(self, values: Mapping[str, Any]) -> "AgentConfig":
        """A copy with fields set by name or path, each in its own type. Integers stay integers: a fraction is refused for them."""
        changed: dict[str | None, dict[str, Any]] = {}
        defaults = AgentConfig()
        for name, value in values.items():
            section, leaf = field_path(name)
            changed.setdefault(section, {})[leaf] = like(defaults.value(name), name, value)
        # A section at a time, since its fields are checked against each other.
        own = changed.pop(None, {})
        sections = {section: dataclasses.replace(getattr(self, section), **leaves) for section, leaves in changed.items() if section}
        return dataclasses.replace(self, **own, **sections)

    def value(self, name: str) -> Any:
        """The field of this name or path."""
        section, leaf = field_path(name)
        return getattr(self if section is None else getattr(self, section), leaf)


def field_path(name: str) -> tuple[str | None, str]:
    """`learning_rate` and `trainer.learning_rate` -> ('trainer', 'learning_rate'); `seed` -> (None, 'seed')."""
    paths = field_paths()
    if name in paths:
        return paths[name]
    alike = [path for path in paths if ("." in path) == ("." in name)]
    raise unknown_name("setting", name, alike, listed="pbt_agents/config.py")


def field_paths() -> dict[str, tuple[str | None, str]]:
    """Every settable name and path, to where it lives."""
    paths: dict[str, tuple[str | None, str]] = {"seed": (None, "seed")}
    for section in dataclasses.fields(AgentConfig):
        if dataclasses.is_dataclass(section.default):
            for leaf in dataclasses.fields(section.default):
                paths[f"{section.name}.{leaf.name}"] = (section.name, leaf.name)
                paths.setdefault(leaf.name, (section.name, leaf.name))
    return paths


def _section(default: Any, name: str, values: Any) -> Any:
    """A section of the default's kind; what it does not name has its default."""
    require(isinstance(values, Mapping), f"'{name}' is a section and holds settings by name, got {values!r}.")
    known = {f.name for f in dataclasses.fields(default)}
    for key in values:
        if key not in known:
            raise unknown_name(f"setting in '{name}'", key, known)
    return dataclasses.replace(default, **{key: like(getattr(default, key), f"{name}.{key}", value) for key, value in values.items()})
