import pytest

from pbt_agents.errors import ConfigError
from pbt_agents.rollout.vllm_build import EngineSpec


@pytest.mark.parametrize("agents", [(), ("a0", "a0"), ("a0", "")])
def test_agents_need_names_of_their_own(agents):
    with pytest.raises(ConfigError, match="agents must be distinct names"):
        EngineSpec("model", agents, lora_rank=8, max_tokens=64)
