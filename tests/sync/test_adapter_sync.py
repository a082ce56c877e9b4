import asyncio
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from pbt_agents.engine import RolloutEngine
from pbt_agents.errors import EngineDiedError, EngineError, GuardError
from pbt_agents.sync.adapter_sync import AdapterPublisher
from pbt_agents.testing.fake_engine import TWO_LAYERS, FakeEngine
from pbt_agents.types import AdapterRef, PolicyId


def adapter(value: float = 1.0) -> dict[str, Tensor]:
    return {
        f"base_model.model.{tensor.projection}.lora_{tensor.matrix.upper()}.default.weight": torch.full(tensor.shape, value)
        for tensor in TWO_LAYERS
    }


def publisher(folder: Path, *engines: RolloutEngine) -> AdapterPublisher:
    return AdapterPublisher(TWO_LAYERS, engines, folder / "a0", scale=2.0)


def test_every_engine_holds_and_confirms_the_adapter(tmp_path):
    engines = FakeEngine(), FakeEngine()
    policy = PolicyId("a0", 1, 3)

    report = asyncio.run(publisher(tmp_path, *engines).publish(adapter(), policy))

    for engine in engines:
        assert engine.policies["a0"] == policy
        assert engine.slots["a0"][:16].tolist() == [1.0] * 8 + [2.0] * 8
    assert report.policy == policy
    assert report.size == 48 * 4
    assert len(report.engine_s) == 2
    assert report.seconds == pytest.approx(report.prepare_s + max(report.engine_s))


def test_fifty_publications_are_read_once_each_and_leave_two_files(tmp_path):
    """B41."""
    engine = FakeEngine()

    async def publish_all() -> None:
        own = publisher(tmp_path, engine)
        for version in range(50):
            await own.publish(adapter(float(version)), PolicyId("a0", 0, version))

    asyncio.run(publish_all())
    assert engine.reads == 50
    assert len(list((tmp_path / "a0").iterdir())) == 2


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_an_adapter_that_is_not_finite_reaches_no_engine(tmp_path, bad):
    """B15."""
    engine = FakeEngine()

    async def publish() -> None:
        own = publisher(tmp_path, engine)
        await own.publish(adapter(), PolicyId("a0", 0, 1))
        with pytest.raises(GuardError, match="not finite"):
            await own.publish(adapter(bad), PolicyId("a0", 0, 2))

    asyncio.run(publish())
    assert engine.policies["a0"] == PolicyId("a0", 0, 1)
    assert engine.reads == 1


def test_an_incomplete_adapter_reaches_no_engine(tmp_path):
    """B39."""
    engine = FakeEngine()
    incomplete = adapter()
    incomplete.popitem()
    with pytest.raises(GuardError, match="matches 5 of 6"):
        asyncio.run(publisher(tmp_path, engine).publish(incomplete, PolicyId("a0", 0, 1)))
    assert engine.reads == 0


class Stubborn(FakeEngine):
    """Answers with the policy it had."""

    async def load_adapter(self, adapter: AdapterRef) -> PolicyId:
        return self.policies[adapter.policy.agent]


class Refusing(FakeEngine):
    async def load_adapter(self, adapter: AdapterRef) -> PolicyId:
        raise EngineError("no room")


def test_an_engine_that_answers_with_another_policy_is_a_fault(tmp_path):
    """B28."""
    with pytest.raises(GuardError, match=r"was given a0\.0\.1 and answers with a0\.-1\.0"):
        asyncio.run(publisher(tmp_path, Stubborn()).publish(adapter(), PolicyId("a0", 0, 1)))


@pytest.mark.parametrize(("broken", "error"), [(Refusing(), EngineError), (FakeEngine(), EngineDiedError)], ids=["refuses", "dead"])
def test_one_failing_engine_is_reported_after_the_others_have_answered(tmp_path, broken, error):
    if error is EngineDiedError:
        broken.die()
    healthy = FakeEngine()
    with pytest.raises(error):
        asyncio.run(publisher(tmp_path, broken, healthy).publish(adapter(), PolicyId("a0", 0, 1)))
    assert healthy.policies["a0"] == PolicyId("a0", 0, 1)


def test_publishing_again_completes_what_failed_half_way(tmp_path):
    first, second = FakeEngine(), FakeEngine()
    engines: list[RolloutEngine] = [first, Refusing()]
    policy = PolicyId("a0", 0, 1)

    async def publish() -> None:
        own = AdapterPublisher(TWO_LAYERS, engines, tmp_path, scale=1.0)
        with pytest.raises(EngineError, match="no room"):
            await own.publish(adapter(), policy)
        engines[1] = second
        await own.publish(adapter(), policy)

    asyncio.run(publish())
    assert first.policies["a0"] == second.policies["a0"] == policy


class Slow(FakeEngine):
    """Reads a file only when told."""

    def __init__(self) -> None:
        super().__init__()
        self.told: asyncio.Queue[str] = asyncio.Queue()
        self.go = asyncio.Event()

    async def load_adapter(self, adapter: AdapterRef) -> PolicyId:
        await self.told.put(adapter.path)
        await self.go.wait()
        return await super().load_adapter(adapter)


def test_the_next_adapter_is_not_written_where_a_slow_engine_still_reads(tmp_path):
    slow = Slow()

    async def publish() -> tuple[str, str]:
        own = publisher(tmp_path, slow)
        abandoned = asyncio.ensure_future(own.publish(adapter(1.0), PolicyId("a0", 0, 1)))
        first = await slow.told.get()
        abandoned.cancel()
        await asyncio.gather(abandoned, return_exceptions=True)
        later = asyncio.ensure_future(own.publish(adapter(2.0), PolicyId("a0", 0, 2)))
        second = await slow.told.get()
        assert Path(first).read_bytes() != Path(second).read_bytes()
        slow.go.set()
        await later
        return first, second

    first, second = asyncio.run(publish())
    assert first != second
    assert Path(first).exists()
