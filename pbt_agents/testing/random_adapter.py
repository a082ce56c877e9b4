"""An adapter of the tiny model as peft itself saves one, with random weights: for tests of what takes a folder."""

from pathlib import Path
from typing import Any


def random_adapter(folder: Path, model_path: str | None = None, rank: int = 8, spread: float = 0.02, **lora: Any) -> Path:
    """Save it to `folder` and return the folder. `lora` are further settings of peft's LoraConfig."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    from pbt_agents.models import resolve_model
    from pbt_agents.trainer.lora import TARGETS

    base = AutoModelForCausalLM.from_pretrained(model_path or resolve_model("tiny"), dtype=torch.float32)
    model = get_peft_model(
        base, LoraConfig(**{"r": rank, "lora_alpha": 16, "target_modules": list(TARGETS), "task_type": "CAUSAL_LM", **lora})
    )
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=spread)
    model.save_pretrained(folder)
    return folder
