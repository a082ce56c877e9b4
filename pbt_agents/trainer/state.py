"""Everything an update changes, as named tensors, and that state in a folder.

The adapter is stored in PEFT's format; beside it the optimizer's moments and `trainer.json`, written last, with checksums of both.
Hyper-parameters are not stored: after a restore the configuration of the day applies.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.optim import Optimizer

from pbt_agents.engine import checksum
from pbt_agents.errors import GuardError
from pbt_agents.trainer.lora import read_adapter, save_adapter

MOMENTS_FILE, STATE_FILE = "optimizer.safetensors", "trainer.json"


def start_moments(optimizer: Optimizer, adapter: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Adam's state before its first step, by name; the tensors are the optimizer's own."""
    moments: dict[str, Tensor] = {}
    for name, parameter in adapter.items():
        step = torch.zeros((), dtype=torch.float32, device=parameter.device)
        optimizer.state[parameter] = {"step": step, "exp_avg": torch.zeros_like(parameter), "exp_avg_sq": torch.zeros_like(parameter)}
        moments |= {f"{key}/{name}": tensor for key, tensor in optimizer.state[parameter].items()}
    return moments


def copy_into(live: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
    """In place, since the model, the optimizer and whoever publishes hold the live tensors."""
    with torch.no_grad():
        for name, tensor in live.items():
            tensor.copy_(values[name])


def weights_checksum(tensors: Mapping[str, Tensor]) -> str:
    """Of all values, in the order of their names."""
    return checksum(np.concatenate([tensors[name].detach().cpu().numpy().ravel() for name in sorted(tensors)]))


def save_state(folder: Path, model: PeftModel, adapter: Mapping[str, Tensor], moments: Mapping[str, Tensor], version: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    save_adapter(model, folder)
    save_file(dict(moments), folder / MOMENTS_FILE)
    state = {"version": version, "weights_checksum": weights_checksum(adapter), "moments_checksum": weights_checksum(moments)}
    (folder / STATE_FILE).write_text(json.dumps(state, indent=2))


def read_state(folder: Path, model: PeftModel) -> tuple[dict[str, Tensor], dict[str, Tensor], int]:
    """Adapter, moments and version. Raises GuardError when what was read is not what was written; nothing is changed by then."""
    state: dict[str, Any] = json.loads((folder / STATE_FILE).read_text())
    adapter, moments = read_adapter(model, folder), load_file(folder / MOMENTS_FILE)
    for kind, tensors in (("weights", adapter), ("moments", moments)):
        if weights_checksum(tensors) != state[f"{kind}_checksum"]:
            raise GuardError(f"the {kind} in {folder} are not those that {STATE_FILE} was written for. Take another checkpoint.")
    return adapter, moments, int(state["version"])
