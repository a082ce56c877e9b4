"""What a vLLM engine is built from, and with which settings."""

from dataclasses import dataclass
from typing import Any

from pbt_agents.errors import ConfigError

ENGINE_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine lives in this process: a third of the memory, no second hop
    "TORCHDYNAMO_DISABLE": "1",  # compiling two small sampler functions takes 13 s and gains nothing
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # the default pins every engine to core 0
    "OMP_NUM_THREADS": "1",  # more threads than free cores spin: a step of 6 ms becomes one of 700
    "MKL_NUM_THREADS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
"""To be set before torch or vllm is imported."""

UNPUBLISHED = -1
"""Lineage of a slot that nobody published to yet."""

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""Linear layers of a block, as checkpoints name them."""


@dataclass(frozen=True)
class EngineSpec:
    """What an engine is built from."""

    model_path: str
    """A local folder. Its generation config is never consulted."""
    agents: tuple[str, ...]
    """Each gets a slot."""
    lora_rank: int
    max_tokens: int
    """Prompt and action together."""
    max_sequences: int = 64
    kv_cache_bytes: int = 64 << 20
    target_modules: tuple[str, ...] = PROJECTIONS
    seed: int = 0
    dtype: str = "float32"
    gpu_share: float = 1.0
    """Of a GPU's memory: so much must be free when the engine starts. Without a GPU it means nothing."""

    def __post_init__(self) -> None:
        if not self.agents or "" in self.agents or len(set(self.agents)) < len(self.agents):
            raise ConfigError(f"agents must be distinct names, at least one, got {self.agents}.")


def build_engine(spec: EngineSpec) -> Any:
    """vLLM's synchronous engine, in this process. Raises ConfigError when it refuses the settings."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.platforms import current_platform
    from vllm.v1.engine.llm_engine import LLMEngine

    from pbt_agents.rollout import vllm_cpu_lora

    vllm_cpu_lora.install()
    # The CPU's default block of 128 tokens would leave short episodes without any prefix reuse.
    if current_platform.is_cpu():
        platform: dict[str, Any] = {"block_size": 32, "enforce_eager": True}
    else:  # the default wants nearly a whole GPU to be free, which a second engine on it never finds
        platform = {"gpu_memory_utilization": min(spec.gpu_share, 0.92)}
    arguments = EngineArgs(
        model=spec.model_path,
        dtype=spec.dtype,
        seed=spec.seed,
        skip_tokenizer_init=True,  # ids in, ids out
        generation_config="vllm",  # never the model folder's sampling defaults
        max_model_len=spec.max_tokens,
        max_num_seqs=spec.max_sequences,
        kv_cache_memory_bytes=spec.kv_cache_bytes,
        enable_prefix_caching=True,
        logprobs_mode="processed_logprobs",  # of the distribution that was sampled from: temperature applied
        async_scheduling=False,  # a step's tokens are known when it returns, so a slot written after it did not sample them
        disable_log_stats=True,
        use_tqdm_on_load=False,
        enable_lora=True,
        max_lora_rank=spec.lora_rank,
        max_loras=len(spec.agents),
        max_cpu_loras=len(spec.agents),
        lora_target_modules=list(spec.target_modules),
        worker_extension_cls="pbt_agents.rollout.vllm_extension.AdapterSlots",
        **platform,
    )
    try:
        return LLMEngine.from_engine_args(arguments)
    except ValueError as error:  # too little cache for one sequence, more tokens than the model was made for, an unknown dtype
        raise ConfigError(f"vLLM builds no engine from {spec}: {error}") from error


def lora_request(agent: str, slot: int) -> Any:
    """What tells vLLM which slot a request uses. The path is never read: slots are registered before any request comes."""
    from vllm.lora.request import LoRARequest

    return LoRARequest(lora_name=agent, lora_int_id=slot, lora_path=f"slot-{slot}")
