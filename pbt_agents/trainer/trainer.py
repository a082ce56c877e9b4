"""One optimizer step on the groups it is given: objective, gradient, guards.

Owns the adapter, its optimizer and the count of steps (`version`). Which groups to train on is the buffer's word, carrying the result to
the engines is sync's. Computes in as many threads as the process allows torch: for a population on few cores that should be one.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pbt_agents.config import AgentConfig
from pbt_agents.errors import ConfigError
from pbt_agents.objective import Objective
from pbt_agents.plugins import load
from pbt_agents.trainer.advantages import Lesson, draw_lesson
from pbt_agents.trainer.batch import MicroBatch, micro_batches
from pbt_agents.trainer.guard import check_agreement, check_cap
from pbt_agents.trainer.logprobs import trained_logprobs
from pbt_agents.trainer.lora import adapter_scale, adapter_tensors, build_policy
from pbt_agents.trainer.report import LagStats, TokenStats, UpdateReport, agreement, token_metrics
from pbt_agents.trainer.state import copy_into, read_state, save_state, start_moments, weights_checksum
from pbt_agents.types import Group, PolicyId, Trajectory


class Trainer:
    def __init__(self, config: AgentConfig, model_path: str, seed: int) -> None:
        """`seed` draws the fresh adapter; nothing else here is left to chance."""
        self.objective = checked_objective(config)
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.model = build_policy(model_path, config.model, seed).to(self.device)
        self.adapter = adapter_tensors(self.model)
        """Live parameters by name: what is trained, published and copied."""
        self.scale = adapter_scale(self.model)
        self.optimizer = torch.optim.AdamW(list(self.adapter.values()), fused=True)
        self.moments = start_moments(self.optimizer, self.adapter)
        self.version = 0
        """Optimizer steps taken along the line of descent."""
        self.config = config
        self.apply(config)

    def apply(self, config: AgentConfig) -> None:
        """Take mutated values in place; weights and moments stay. What does not fit the weights is refused."""
        if config.model != self.config.model:
            raise ConfigError(f"model and adapter shape are fixed for a trainer: it has {self.config.model}, asked was {config.model}.")
        self.objective = checked_objective(config)
        self._capped = "ratio_max" not in config.objective.ignored
        settings = config.trainer
        for group in self.optimizer.param_groups:
            group["lr"] = settings.learning_rate
            group["betas"] = (settings.adam_beta1, settings.adam_beta2)
            group["weight_decay"] = settings.weight_decay
        self.config = config

    def in_use(self) -> dict[str, float]:
        """Searched values as read from what trains. An objective that ignores the cap has none in use."""
        used = {"learning_rate": float(self.optimizer.param_groups[0]["lr"])}
        return used | {"ratio_max": float(self.objective.ratio_max)} if self._capped else used

    def settings_in_use(self) -> dict[str, Any]:
        """Every setting that `apply` takes, by its name, from the optimizer and the objective where they hold it."""
        group = self.optimizer.param_groups[0]
        adam = {"adam_beta1": group["betas"][0], "adam_beta2": group["betas"][1], "weight_decay": group["weight_decay"]}
        return {**asdict(self.config.trainer), **asdict(self.config.objective), **adam, **self.in_use()}

    def update(self, groups: Sequence[Group], current: PolicyId | None = None) -> UpdateReport:
        """At most one step; none when no group teaches anything or the result would not be finite.

        Raises GuardError before the step when what `current`, the policy in training, has sampled has other log-probs here.
        """
        wall, cpu = time.perf_counter(), time.thread_time()
        lesson = draw_lesson(groups, self.config.trainer.advantage)
        metrics = {f"trainer/{name}": value for name, value in self.in_use().items()} | _lesson_metrics(lesson)
        by_lag: dict[int, LagStats] = {}
        stepped = False
        if lesson.trajectories:
            loss, padded_tokens, tokens = self._accumulate(lesson, self._normalizer(groups, lesson), current)
            learned, by_lag = token_metrics(tokens)
            check_agreement(learned, "trainer/on_policy_", current)
            stepped, outcome = self._step(loss)
            metrics |= {"trainer/loss": loss, "trainer/padded_tokens": float(padded_tokens)} | learned | outcome
        metrics["trainer/update_s"] = time.perf_counter() - wall
        metrics["trainer/update_cpu_s"] = time.thread_time() - cpu
        return UpdateReport(stepped, self.version, metrics, by_lag)

    def canary(self, trajectories: Sequence[Trajectory], temperature: float, current: PolicyId) -> dict[str, float]:
        """How far the log-probs of episodes that `current` has just played lie from those that its weights give here, nat.

        Raises GuardError when that is further than rounding explains: the engine answered with another adapter, temperature or context.
        """
        advantages, size = [0.0] * len(trajectories), self.config.trainer.micro_batch_tokens
        parts = []
        with torch.no_grad():
            for batch in micro_batches(trajectories, advantages, version=self.version, max_tokens=size):
                token_ids, loss_mask, behavior = self._tensors(batch.token_ids, batch.loss_mask, batch.behavior_logprobs)
                policy, _ = trained_logprobs(self.model, token_ids, loss_mask, temperature)
                parts.append((policy - behavior)[loss_mask].abs().cpu().numpy())
        figures = agreement(np.concatenate(parts) if parts else np.zeros(0), "canary/")
        check_agreement(figures, "canary/", current)
        return figures

    def save(self, folder: Path) -> None:
        save_state(folder, self.model, self.adapter, self.moments, self.version)

    def load(self, folder: Path) -> None:
        """Weights, moments and version from the folder; hyper-parameters from the configuration in use, applied last."""
        adapter, moments, version = read_state(folder, self.model)
        copy_into(self.adapter, adapter)
        copy_into(self.moments, moments)
        self.version = version
        self.apply(self.config)

    def checksum(self) -> str:
        """Of the adapter's weights."""
        return weights_checksum(self.adapter)

    def _normalizer(self, groups: Sequence[Group], lesson: Lesson) -> int:
        if self.config.trainer.normalizer == "token":
            return sum(int(trajectory.loss_mask.sum()) for trajectory in lesson.trajectories)
        # Every drawn episode counts, also those that were skipped: else it would not be constant.
        return sum(len(group.trajectories) for group in groups) * self.config.rollout.max_episode_tokens

    def _accumulate(self, lesson: Lesson, normalizer: int, current: PolicyId | None) -> tuple[float, int, list[TokenStats]]:
        """Leave the gradient of the whole lesson in the adapter; returns loss, padded tokens and what was seen at the trained ones."""
        self.optimizer.zero_grad()
        loss, padded_tokens, tokens = 0.0, 0, []
        size = self.config.trainer.micro_batch_tokens
        for batch in micro_batches(lesson.trajectories, lesson.advantages, version=self.version, max_tokens=size, current=current):
            part, stats = self._backward(batch, normalizer)
            loss += part
            padded_tokens += batch.token_ids.size
            tokens.append(stats)
        return loss, padded_tokens, tokens

    def _backward(self, batch: MicroBatch, normalizer: int) -> tuple[float, TokenStats]:
        token_ids, loss_mask, behavior, advantages = self._tensors(
            batch.token_ids, batch.loss_mask, batch.behavior_logprobs, batch.advantages
        )
        policy, entropy = trained_logprobs(self.model, token_ids, loss_mask, self.config.rollout.temperature)
        result = self.objective(policy, behavior, advantages, loss_mask)
        loss = result.loss / normalizer
        loss.backward()
        ratio, capped = result.ratio[loss_mask].cpu().numpy(), result.capped[loss_mask].cpu().numpy()
        seen = TokenStats(ratio, capped, entropy.cpu().numpy(), batch.lags[batch.loss_mask], batch.on_policy[batch.loss_mask])
        return loss.item(), seen

    def _tensors(self, *arrays: np.ndarray) -> tuple[Tensor, ...]:
        return tuple(torch.from_numpy(values).to(self.device) for values in arrays)

    def _step(self, loss: float) -> tuple[bool, dict[str, float]]:
        """Step unless loss or gradient is not finite, and take the step back when a weight is not."""
        norm = torch.nn.utils.clip_grad_norm_(self.adapter.values(), self.config.trainer.max_grad_norm).item()
        finite = math.isfinite(loss) and math.isfinite(norm)
        rolled_back = finite and not self._stepped_to_finite_weights()
        self.optimizer.zero_grad()
        stepped = finite and not rolled_back
        self.version += stepped
        metrics = {"grad_norm": norm, "refused_not_finite": float(not finite), "rolled_back": float(rolled_back)}
        return stepped, {f"trainer/{name}": value for name, value in metrics.items()}

    def _stepped_to_finite_weights(self) -> bool:
        live = self.adapter | self.moments
        before = {name: tensor.detach().clone() for name, tensor in live.items()}
        self.optimizer.step()
        if all(torch.isfinite(tensor).all() for tensor in live.values()):
            return True
        copy_into(live, before)
        return False


def checked_objective(config: AgentConfig) -> Objective:
    factory, _ = load("objective", config.objective.objective)
    if not callable(factory):
        raise ConfigError(f"objective '{config.objective.objective}' is no function of a configuration, it is {type(factory).__name__}.")
    objective: Objective = factory(config.objective)
    check_cap(objective, config.objective)
    return objective


def _lesson_metrics(lesson: Lesson) -> dict[str, float]:
    skipped = {f"trainer/skipped_{reason}": float(count) for reason, count in lesson.skipped.items()}
    zero_variance = sum(count for reason, count in lesson.skipped.items() if reason != "too_few")
    return skipped | {
        "trainer/skipped_zero_variance": float(zero_variance),
        "trainer/unscored": float(lesson.unscored),
        "trainer/trained_tokens": 0.0,
    }
