import pickle
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pbt_agents.config import AgentConfig
from pbt_agents.errors import ConfigError, GuardError
from pbt_agents.plugins import names
from pbt_agents.testing.random_groups import random_group
from pbt_agents.trainer.logprobs import trained_logprobs
from pbt_agents.trainer.lora import adapter_tensors, build_policy
from pbt_agents.trainer.trainer import Trainer
from pbt_agents.types import Group, PolicyId, PolicySpan, Trajectory, Turn

CONFIG = AgentConfig().with_values({"micro_batch_tokens": 256})
MakeTrainer = Callable[..., Trainer]


@pytest.fixture
def make(model_path: str) -> MakeTrainer:
    def trainer(seed: int = 0, **values: object) -> Trainer:
        return Trainer(CONFIG.with_values(values), model_path, seed)

    return trainer


def groups(*scores: Sequence[float], seed: int = 0, version: int = 0) -> list[Group]:
    rng = np.random.default_rng(seed)
    return [random_group(rng, group, turns=3, action_tokens=4, version=version) for group in scores]


TWO_GROUPS = groups([0.0, 1.0, 0.5], [1.0, 0.0, 0.0])


def with_behavior(group: Group, logprobs: Callable[[Trajectory], np.ndarray]) -> Group:
    """The group as if its tokens had been sampled with these log-probs [T]."""

    def resampled(trajectory: Trajectory) -> Trajectory:
        values, turns, stop = logprobs(trajectory), [], 0
        for turn in trajectory.turns:
            start = stop + len(turn.observation_ids)
            stop = start + len(turn.action_ids)
            turns.append(replace(turn, behavior_logprobs=values[start:stop].astype(np.float32)))
        return replace(trajectory, turns=tuple(turns))

    return replace(group, trajectories=tuple(resampled(trajectory) for trajectory in group.trajectories))


def plain_logprobs(model: nn.Module, trajectory: Trajectory, temperature: float = 1.0) -> Tensor:
    """[T - 1], one row at a time over all positions: an independent reference."""
    ids = torch.from_numpy(trajectory.token_ids).long()
    logits = model(input_ids=ids[None]).logits[0, :-1] / temperature
    return torch.log_softmax(logits, -1)[torch.arange(len(ids) - 1), ids[1:]]


def sampled_by(model: nn.Module, temperature: float = 1.0) -> Callable[[Trajectory], np.ndarray]:
    def logprobs(trajectory: Trajectory) -> np.ndarray:
        with torch.no_grad():
            return np.concatenate([[0.0], plain_logprobs(model, trajectory, temperature).numpy()])

    return logprobs


def weights(trainer: Trainer) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in trainer.adapter.items()}


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return all(torch.equal(first[name], second[name]) for name in first)


def test_an_update_is_the_step_that_a_plain_loop_takes(make: MakeTrainer, model_path: str):
    """CISPO by hand, trajectory by trajectory, with torch's own AdamW: two steps, ratios on both sides of the cap."""
    trainer = make(learning_rate=0.01, ratio_max=1.5)
    model = build_policy(model_path, CONFIG.model, seed=0)
    parameters = list(adapter_tensors(model).values())
    optimizer = torch.optim.AdamW(parameters, lr=0.01, betas=(0.9, 0.95), weight_decay=0.0)
    data = [with_behavior(group, lambda t: sampled_by(model)(t) + np.cos(np.arange(len(t.token_ids)))) for group in TWO_GROUPS]
    for _ in range(2):
        loss, count = torch.zeros(()), sum(group.action_tokens for group in data)
        for group in data:
            deviations = group.scores - group.scores.mean()
            for trajectory, advantage in zip(group.trajectories, deviations / group.scores.std(), strict=True):
                own = torch.from_numpy(trajectory.loss_mask[1:])
                policy = plain_logprobs(model, trajectory)[own]
                ratio = (policy - torch.from_numpy(trajectory.behavior_logprobs[1:])[own]).exp().detach()
                loss = loss - (ratio.clamp(max=1.5) * float(advantage) * policy).sum() / count
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        report = trainer.update(data)
        assert report.stepped
        assert report.metrics["trainer/loss"] == pytest.approx(loss.item(), abs=1e-5)
        assert report.metrics["trainer/grad_norm"] == pytest.approx(norm.item(), rel=1e-3)
        assert 0.1 < report.metrics["trainer/capped_fraction"] < 0.9
        assert report.metrics["trainer/trained_tokens"] == count
    for expected, actual in zip(parameters, trainer.adapter.values(), strict=True):
        # Adam makes a whole step of the sign of a gradient that is all rounding, so single elements may differ.
        assert (actual - expected).norm() < 1e-3 * expected.norm()
    assert trainer.version == 2


@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_on_policy_the_ratio_is_one_at_any_temperature(make: MakeTrainer, temperature: float):
    """B12, B17."""
    trainer = make(temperature=temperature)
    data = [with_behavior(group, sampled_by(trainer.model, temperature)) for group in TWO_GROUPS]
    report = trainer.update(data)
    assert report.metrics["trainer/log_ratio_abs_max"] < 1e-4
    assert report.metrics["trainer/ratio_mean"] == pytest.approx(1.0, abs=1e-4)
    assert list(report.by_lag) == [0]


def test_stale_data_are_weighed_by_what_the_sampler_said(make: MakeTrainer):
    """B14: stored 0.5 below the current log-prob -> ratio 1.6487 everywhere, and not 1, told under lag 2."""
    trainer = make()
    trainer.version = 2
    data = [with_behavior(group, lambda t: sampled_by(trainer.model)(t) - 0.5) for group in TWO_GROUPS]
    report = trainer.update(data)
    assert report.by_lag[2].ratio_mean == pytest.approx(1.6487, rel=1e-4)
    assert report.by_lag[2].tokens == report.metrics["trainer/trained_tokens"]
    assert report.metrics["trainer/ratio_identically_one"] == 0


def test_recomputed_behavior_log_probs_raise_the_warning(make: MakeTrainer):
    """B14: with the trainer's own log-probs as behaviour the ratio is exactly 1 although the data are two versions old."""
    trainer = make(micro_batch_tokens=1)
    trainer.version = 2

    def recomputed(trajectory: Trajectory) -> np.ndarray:
        ids, mask = torch.from_numpy(trajectory.token_ids).long()[None], torch.from_numpy(trajectory.loss_mask)[None]
        return trained_logprobs(trainer.model, ids, mask, 1.0)[0][0].detach().numpy()

    report = trainer.update([with_behavior(group, recomputed) for group in TWO_GROUPS])
    assert report.metrics["trainer/ratio_identically_one"] == 1


def test_micro_batches_only_change_the_rounding(make: MakeTrainer):
    small, large = make(micro_batch_tokens=1, learning_rate=0.01), make(micro_batch_tokens=10_000, learning_rate=0.01)
    first, second = small.update(TWO_GROUPS), large.update(TWO_GROUPS)
    assert first.metrics["trainer/padded_tokens"] < second.metrics["trainer/padded_tokens"]
    assert first.metrics["trainer/loss"] == pytest.approx(second.metrics["trainer/loss"], abs=1e-5)
    assert first.metrics["trainer/grad_norm"] == pytest.approx(second.metrics["trainer/grad_norm"], rel=1e-4)


def test_a_constant_normaliser_counts_every_drawn_episode_in_full(make: MakeTrainer):
    """Six episodes of two groups, one of them skipped: the token loss times trained tokens over 6 * 480."""
    data = groups([0.0, 1.0, 0.5], [1.0, 1.0, 1.0])
    token, constant = make(normalizer="token").update(data).metrics, make(normalizer="constant").update(data).metrics
    expected = token["trainer/loss"] * token["trainer/trained_tokens"] / (6 * 480)
    assert constant["trainer/loss"] == pytest.approx(expected, rel=1e-5)


def test_nothing_is_stepped_when_no_group_teaches(make: MakeTrainer):
    """B01."""
    trainer = make()
    before = weights(trainer)
    report = trainer.update(groups([1.0, 1.0], [0.0, 0.0]))
    assert not report.stepped
    assert report.version == trainer.version == 0
    assert report.metrics["trainer/skipped_zero_variance"] == 2
    assert report.metrics["trainer/skipped_solved"] == report.metrics["trainer/skipped_failed"] == 1
    assert report.metrics["trainer/trained_tokens"] == 0
    assert same(weights(trainer), before)


def test_skipped_groups_and_episodes_without_verdict_leave_the_step_as_it_is(make: MakeTrainer):
    """B01, B06."""
    alone, beside = make(), make()
    scored = groups([0.0, 1.0])
    unscored = replace(scored[0].trajectories[0], turns=(*scored[0].trajectories[0].turns[:-1], _without_verdict(scored[0])))
    extended = replace(scored[0], trajectories=(*scored[0].trajectories, unscored))
    alone.update(scored)
    report = beside.update([extended, *groups([0.5, 0.5], seed=1)])
    assert report.metrics["trainer/unscored"] == 1
    assert same(weights(alone), weights(beside))


def _without_verdict(group: Group) -> Turn:
    return replace(group.trajectories[0].turns[-1], reward=float("nan"))


def test_action_tokens_alone_are_trained(make: MakeTrainer):
    """B20."""
    report = make().update(TWO_GROUPS)
    assert report.metrics["trainer/trained_tokens"] == sum(group.action_tokens for group in TWO_GROUPS)


def test_a_loss_that_is_not_finite_is_never_stepped(make: MakeTrainer):
    """B15: neither weights, moments nor version move, and the next update is as if nothing had been."""
    trainer, untouched = make(), make()
    report = trainer.update([with_behavior(group, lambda t: np.full(len(t.token_ids), np.nan)) for group in TWO_GROUPS])
    assert not report.stepped
    assert report.version == 0
    assert report.metrics["trainer/refused_not_finite"] == 1
    trainer.update(TWO_GROUPS)
    untouched.update(TWO_GROUPS)
    assert same(weights(trainer), weights(untouched))
    assert same(trainer.moments, untouched.moments)


def test_a_step_to_weights_that_are_not_finite_is_taken_back(make: MakeTrainer):
    """B15: a moment near the end of float32 is finite, the weight it leads to is not."""
    trainer = make()
    next(tensor for name, tensor in trainer.moments.items() if name.startswith("exp_avg/")).fill_(3e38)
    before, moments = weights(trainer), {name: tensor.clone() for name, tensor in trainer.moments.items()}
    report = trainer.update(TWO_GROUPS)
    assert not report.stepped
    assert report.metrics["trainer/rolled_back"] == 1
    assert trainer.version == 0
    assert same(weights(trainer), before)
    assert same(trainer.moments, moments)


def test_the_gradient_norm_is_clipped_before_the_step(make: MakeTrainer):
    trainer = make(max_grad_norm=1e-3)
    report = trainer.update(TWO_GROUPS)
    assert report.metrics["trainer/grad_norm"] > 1e-2
    # After one step exp_avg is (1 - beta1) of the clipped gradient.
    norm = torch.stack([tensor.norm() for name, tensor in trainer.moments.items() if name.startswith("exp_avg/")]).norm()
    assert norm.item() == pytest.approx(1e-4, rel=1e-3)


def test_mutated_values_apply_in_place_and_are_read_back(make: MakeTrainer):
    """B44: rate and cap of the next update are the new ones, Adam's moments the old ones."""
    trainer = make(learning_rate=1e-4, ratio_max=4.0)
    trainer.update(TWO_GROUPS)
    moments = {name: tensor.clone() for name, tensor in trainer.moments.items()}
    trainer.apply(trainer.config.with_values({"learning_rate": 2e-4, "ratio_max": 1.25, "adam_beta2": 0.8, "weight_decay": 0.1}))
    assert trainer.in_use() == {"learning_rate": 2e-4, "ratio_max": 1.25}
    assert same(trainer.moments, moments)
    (settings,) = trainer.optimizer.param_groups
    assert (settings["lr"], settings["betas"], settings["weight_decay"]) == (2e-4, (0.9, 0.8), 0.1)
    metrics = trainer.update(TWO_GROUPS).metrics
    assert metrics["trainer/learning_rate"] == 2e-4
    assert metrics["trainer/ratio_max"] == 1.25
    assert trainer.version == 2


@pytest.mark.parametrize("name", ["lora_rank", "lora_alpha"])
def test_another_shape_of_adapter_is_refused_and_nothing_changes(make: MakeTrainer, name: str):
    """B40."""
    trainer = make()
    with pytest.raises(ConfigError, match="fixed for a trainer"):
        trainer.apply(trainer.config.with_values({name: 32, "learning_rate": 0.5}))
    assert trainer.in_use()["learning_rate"] == CONFIG.trainer.learning_rate


@pytest.mark.parametrize("name", names("objective"))
def test_the_same_configuration_again_reads_back_what_was_configured(make: MakeTrainer, name: str):
    """B44, whatever the objective: a clone, a restart and a resumed run all compare what is in use with what was asked for."""
    trainer = make(objective=name, ratio_max=3.0)
    trainer.apply(trainer.config)
    assert {setting: trainer.config.value(setting) for setting in trainer.in_use()} == trainer.in_use()


def test_an_objective_without_a_cap_has_none_in_use(make: MakeTrainer):
    trainer = make(objective="reinforce")
    assert trainer.in_use() == {"learning_rate": CONFIG.trainer.learning_rate}
    assert "trainer/ratio_max" not in trainer.update(TWO_GROUPS).metrics
    trainer.apply(CONFIG.with_values({"objective": "cispo", "ratio_max": 3.0}))
    assert trainer.in_use()["ratio_max"] == 3.0


def test_a_clone_has_its_donors_state_and_its_own_values(make: MakeTrainer, tmp_path: Path):
    """B44, B43: donor rate 1e-4, mutated 1.2e-4."""
    donor, clone = make(learning_rate=1e-4, ratio_max=5.0), make(seed=1, learning_rate=1.2e-4, ratio_max=3.0)
    donor.update(TWO_GROUPS)
    donor.save(tmp_path)
    live = clone.adapter
    clone.load(tmp_path)
    assert clone.in_use() == {"learning_rate": 1.2e-4, "ratio_max": 3.0}
    assert same(clone.moments, donor.moments)
    assert clone.version == 1
    assert clone.checksum() == donor.checksum()
    assert all(clone.adapter[name] is tensor for name, tensor in live.items())
    assert clone.update(TWO_GROUPS).metrics["trainer/learning_rate"] == 1.2e-4


def test_saving_what_was_loaded_gives_the_same_bytes(make: MakeTrainer, tmp_path: Path):
    """B43."""
    donor, clone = make(), make(seed=1)
    donor.update(TWO_GROUPS)
    donor.save(tmp_path / "first")
    clone.load(tmp_path / "first")
    clone.save(tmp_path / "second")
    for file in ("adapter_model.safetensors", "optimizer.safetensors", "trainer.json"):
        assert (tmp_path / "first" / file).read_bytes() == (tmp_path / "second" / file).read_bytes()


def test_a_damaged_folder_changes_nothing(make: MakeTrainer, tmp_path: Path):
    donor, clone = make(), make(seed=1)
    donor.save(tmp_path)
    file = tmp_path / "trainer.json"
    file.write_text(file.read_text().replace('"moments_checksum": "', '"moments_checksum": "0'))
    before = weights(clone)
    with pytest.raises(GuardError, match="moments"):
        clone.load(tmp_path)
    assert same(weights(clone), before)


NEXT_UPDATE = """
import pickle, sys
from pathlib import Path
from pbt_agents.trainer.trainer import Trainer
config, model_path, folder, groups = pickle.loads(Path(sys.argv[1]).read_bytes())
trainer = Trainer(config, model_path, seed=99)
trainer.load(folder)
trainer.update(groups)
print(trainer.version, trainer.checksum())
"""


def test_the_next_update_in_another_process_is_bit_for_bit_the_same(make: MakeTrainer, model_path: str, tmp_path: Path):
    trainer = make()
    trainer.update(TWO_GROUPS)
    trainer.save(tmp_path / "state")
    later = groups([0.0, 1.0], [0.3, 0.2], seed=5)
    (tmp_path / "task").write_bytes(pickle.dumps((trainer.config, model_path, tmp_path / "state", later)))
    command = [sys.executable, "-c", NEXT_UPDATE, str(tmp_path / "task")]
    other = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout.split()
    trainer.update(later)
    assert other == ["2", trainer.checksum()]


@pytest.mark.parametrize(("paid", "better"), [(1.0, True), (-1.0, False)])
def test_the_policy_moves_toward_what_is_paid(make: MakeTrainer, paid: float, better: bool):
    """One action after one prompt; the even tokens are paid. On-policy sampling, ten updates."""
    trainer, rng = make(learning_rate=3e-3), np.random.default_rng(0)
    prompt = np.array([3, 1, 4], np.int32)

    def probabilities() -> np.ndarray:
        with torch.no_grad():
            logits = trainer.model(input_ids=torch.from_numpy(prompt).long()[None]).logits[0, -1]
        return torch.softmax(logits.double(), -1).numpy()

    def attempt(token: int, probability: float) -> Trajectory:
        turn = Turn(prompt, np.array([token], np.int32), np.log([probability]).astype(np.float32), paid * (token % 2 == 0))
        return Trajectory((turn,), (PolicySpan(3, 4, PolicyId("agent", 0, trainer.version)),), "terminated")

    before = probabilities()[::2].sum()
    for _ in range(10):
        chances = probabilities()
        tokens = rng.choice(32, 16, p=chances / chances.sum())
        trainer.update([Group("g", "arithmetic", 0, tuple(attempt(int(token), chances[token]) for token in tokens))])
    change = probabilities()[::2].sum() - before
    assert change > 0.1 if better else change < -0.1


CURRENT = PolicyId("agent", 0, 0)


def on_policy(trainer: Trainer, temperature: float = 1.0) -> list[Group]:
    """The two groups as the trainer's own policy would have sampled them; random groups are stamped as CURRENT's."""
    return [with_behavior(group, sampled_by(trainer.model, temperature)) for group in TWO_GROUPS]


def moved(trainer: Trainer, by: float = 1e-3) -> None:
    """Weights that differ as after one small optimizer step."""
    for tensor in trainer.adapter.values():
        tensor.data += by


def test_what_the_trainer_itself_would_have_sampled_agrees(make: MakeTrainer):
    trainer = make(temperature=0.7)
    moved(trainer, by=0.05)
    report = trainer.update(on_policy(trainer, temperature=0.7), CURRENT)
    assert report.stepped
    assert report.metrics["trainer/on_policy_tokens"] == report.metrics["trainer/trained_tokens"]
    assert 0 <= report.metrics["trainer/on_policy_gap_max"] < 1e-5


@pytest.mark.parametrize("sampled_at", [1.0, 0.5])
def test_no_step_is_taken_on_what_was_sampled_at_another_temperature(make: MakeTrainer, sampled_at: float):
    """B12."""
    trainer = make(temperature=0.7)
    moved(trainer, by=0.05)
    before = weights(trainer)
    with pytest.raises(GuardError, match=r"disagree on agent\.0\.0"):
        trainer.update(on_policy(trainer, sampled_at), CURRENT)
    assert same(before, trainer.adapter)
    assert trainer.version == 0


def test_what_others_have_sampled_is_stale_and_no_fault(make: MakeTrainer):
    assert make().update(TWO_GROUPS, PolicyId("agent", 1, 0)).stepped
    assert make().update(TWO_GROUPS).stepped


def test_a_canary_of_ones_own_policy_sings(make: MakeTrainer):
    trainer = make(temperature=0.7, micro_batch_tokens=64)
    moved(trainer, by=0.05)
    played = [trajectory for group in on_policy(trainer) for trajectory in group.trajectories]
    figures = trainer.canary(played, 1.0, CURRENT)
    assert figures["canary/tokens"] == sum(trajectory.loss_mask.sum() for trajectory in played)
    assert figures["canary/gap_max"] < 1e-5
    assert not any(tensor.grad is not None and tensor.grad.any() for tensor in trainer.adapter.values())


def test_a_canary_tells_weights_of_one_small_step_apart(make: MakeTrainer):
    """B37 and B39: the engine still answers with the adapter before, or with none."""
    trainer = make()
    moved(trainer, by=0.05)
    played = [trajectory for group in on_policy(trainer) for trajectory in group.trajectories]
    moved(trainer, by=1e-3)
    with pytest.raises(GuardError, match=r"disagree on agent\.0\.0"):
        trainer.canary(played, 1.0, CURRENT)


def test_a_canary_that_heard_nothing_proves_nothing(make: MakeTrainer):
    assert make().canary([], 1.0, CURRENT) == {"canary/tokens": 0.0}


def test_every_setting_is_read_back_from_what_acts_by_it(make: MakeTrainer):
    """B44: the optimizer's own values where it has them."""
    trainer = make()
    trainer.optimizer.param_groups[0].update(lr=0.25, betas=(0.5, 0.75), weight_decay=0.125)
    used = trainer.settings_in_use()
    assert [used[name] for name in ("learning_rate", "adam_beta1", "adam_beta2", "weight_decay")] == [0.25, 0.5, 0.75, 0.125]
    assert used["ratio_max"] == trainer.objective.ratio_max
    assert used["groups_per_batch"] == CONFIG.trainer.groups_per_batch
