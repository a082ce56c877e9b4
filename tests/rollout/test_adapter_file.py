import numpy as np
import pytest

from pbt_agents.engine import checksum
from pbt_agents.errors import EngineError
from pbt_agents.rollout.adapter_file import read_adapter
from pbt_agents.testing.fake_engine import TWO_LAYERS
from pbt_agents.types import AdapterRef, PolicyId

POLICY = PolicyId("a0", 1, 7)
COUNT = 8 + 8 + 8 + 6 + 10 + 8


def written(path, values: np.ndarray, announced: np.ndarray | None = None) -> AdapterRef:
    values.tofile(path / "adapter")
    return AdapterRef(POLICY, str(path / "adapter"), checksum(values if announced is None else announced))


def test_the_values_come_back_in_memory_of_their_own(tmp_path):
    values = np.arange(COUNT, dtype=np.float32)
    adapter = written(tmp_path, values)

    read = read_adapter(adapter, TWO_LAYERS)
    np.zeros(COUNT, np.float32).tofile(adapter.path)

    np.testing.assert_array_equal(read, values)


def test_a_file_of_another_rank_is_refused(tmp_path):
    with pytest.raises(EngineError, match="has 376 bytes, the slot takes 192"):
        read_adapter(written(tmp_path, np.zeros(94, np.float32)), TWO_LAYERS)


def test_a_file_that_is_not_the_announced_one_is_refused(tmp_path):
    values = np.ones(COUNT, np.float32)
    with pytest.raises(EngineError, match="checksum"):
        read_adapter(written(tmp_path, values, announced=2 * values), TWO_LAYERS)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_an_adapter_that_is_not_finite_is_refused(tmp_path, bad):
    """B15."""
    values = np.ones(COUNT, np.float32)
    values[5] = bad
    with pytest.raises(EngineError, match="not finite"):
        read_adapter(written(tmp_path, values), TWO_LAYERS)


def test_a_missing_file_is_an_engine_error(tmp_path):
    with pytest.raises(EngineError, match=r"a0\.1\.7 cannot be read"):
        read_adapter(AdapterRef(POLICY, str(tmp_path / "nothing"), ""), TWO_LAYERS)
