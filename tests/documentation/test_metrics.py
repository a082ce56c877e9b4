"""docs/metrics.md holds the names that a run writes: every one, and no others."""

import dataclasses
import re
from typing import get_args

import numpy as np
import pytest
from pages import ROOT, first_cells

from pbt_agents.audit import Verdict
from pbt_agents.config import AgentConfig
from pbt_agents.engine import SlotTensor
from pbt_agents.models import resolve_model
from pbt_agents.pipeline import drift
from pbt_agents.ring import Place, Ring, fitness
from pbt_agents.testing.fake_engine import FakeEngine
from pbt_agents.testing.random_groups import random_group
from pbt_agents.trainer.advantages import SKIP_REASONS
from pbt_agents.trainer.lora import adapter_tensors, build_policy
from pbt_agents.trainer.report import LagStats, agreement

EXPLAINED = first_cells((ROOT / "docs" / "metrics.md").read_text())
STANDING = {"updates", "version", "lineage", "learning_rate", "ratio_max", "window"}
"""What pipeline.py puts beside them."""
NOW_AND_THEN = {"remark", "cut_short", *(f"rollout/groups_{reason}" for reason in SKIP_REASONS)}


@pytest.fixture(scope="module")
def reported(tmp_path_factory):
    """Names of an update, an evaluation and the totals of a ring."""
    config = AgentConfig().with_values({"groups_per_batch": 1, "group_size": 2, "window": 4, "micro_batch_tokens": 256})
    model, folder = build_policy(resolve_model("tiny"), config.model, seed=0), tmp_path_factory.mktemp("ring")
    parts = [(*name.removeprefix("base_model.model.").split(".lora_"), tensor) for name, tensor in adapter_tensors(model).items()]
    layout = tuple(SlotTensor(module, 0, matrix[0].lower(), tuple(tensor.shape)) for module, matrix, tensor in parts)
    engine = FakeEngine(("agent0",), layout)
    engine.hold()

    async def connect():
        return [engine]

    ring = Ring(Place("agent0", 0, resolve_model("tiny"), folder, folder, trainers_at_once=1), config, layout, connect)
    ring.start()
    ring.buffer.append(random_group(np.random.default_rng(0), (0.0, 1.0), turns=2, version=0))
    row = ring.update(lambda: False)
    assert row is not None
    lags = {str(lag): {"tokens": 1, "log_ratio_abs_mean": 0.0} for lag in range(12)}
    guards = {*agreement(np.zeros(1), "canary/"), *(f"audit/{verdict}" for verdict in get_args(Verdict)), *drift([{"by_lag": lags}])}
    names = {*guards, *row, *ring.stats(), *fitness(np.array([0.0, 1.0]))}
    ring.close()
    return names - {"by_lag"}


def test_every_name_that_a_ring_reports_is_explained(reported):
    assert reported - set(EXPLAINED) == set()


@pytest.mark.parametrize(
    ("file", "counts", "prefix"),
    [
        ("ring.py", r'_timed\("(\w+)"\)|_seconds\["(\w+)"\]', "time/"),
        ("rollout/worker.py", r'_counts\["(\w+)"\]|_lose\("(\w+)"', "rollout/"),
    ],
)
def test_every_counter_is_explained_also_those_that_rarely_count(file, counts, prefix):
    found = {prefix + "".join(match) for match in re.findall(counts, (ROOT / "pbt_agents" / file).read_text())}
    assert len(found) >= 5
    assert found - set(EXPLAINED) == set()


def test_the_tokens_of_a_lag_are_told_by_the_names_that_are_explained():
    assert {field.name for field in dataclasses.fields(LagStats)} <= set(EXPLAINED)


def test_no_name_is_explained_that_the_code_does_not_have():
    source = "\n".join(path.read_text() for path in sorted((ROOT / "pbt_agents").rglob("*.py")))
    words = set(re.findall(r"\w+", source))
    assert [name for name in EXPLAINED if name not in NOW_AND_THEN | STANDING and not is_written(name, words)] == []


def is_written(name, words):
    """Some are put together: `trainer/skipped_solved` of skipped_{reason}, `trainer/on_policy_gap_mean` of a prefix and gap_mean."""
    leaf = name.rpartition("/")[2]
    cuts = [(leaf[: cut + 1], leaf[cut + 1 :]) for cut, letter in enumerate(leaf) if letter == "_"]
    return leaf in words or any(set(parts) <= words for parts in cuts)
