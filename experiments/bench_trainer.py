"""What an update costs, beside a bare loop of transformers, peft and torch on the same episodes.

OMP_NUM_THREADS=1 python experiments/bench_trainer.py
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import _interpreter  # noqa: F401
import numpy as np
import torch
from _figures import Figures, show
from peft import LoraConfig, get_peft_model
from torch.nn.utils import clip_grad_norm_
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM

from pbt_agents.assets import tiny_model_path
from pbt_agents.command_line import parse
from pbt_agents.config import AgentConfig
from pbt_agents.testing.random_groups import random_group
from pbt_agents.trainer.lora import TARGETS
from pbt_agents.trainer.trainer import Trainer
from pbt_agents.types import Group


@dataclass
class Args:
    groups: int = 4
    """Of eight episodes each, of four to six turns of 32 tokens."""
    micro_batch_tokens: int = 1024
    """Padded tokens per forward pass."""
    repeats: int = 5
    """Pairs of a bare update and one of ours; the machine may be shared."""


def bare_loop(groups: Sequence[Group], micro_batch_tokens: int) -> Callable[[], object]:
    """Forward, log-probs, capped weight, backward and AdamW on prepared tensors: no guards, no metrics."""
    base = AutoModelForCausalLM.from_pretrained(tiny_model_path(), dtype=torch.float32)
    model = get_peft_model(base, LoraConfig(r=8, lora_alpha=16, target_modules=list(TARGETS)))
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=1e-3)
    rows = sorted((torch.from_numpy(t.token_ids).long() for group in groups for t in group.trajectories), key=len)
    masks = sorted((torch.from_numpy(t.loss_mask) for group in groups for t in group.trajectories), key=len)
    size = micro_batch_tokens // len(rows[-1])
    batches = [[pad_sequence(part[i : i + size], batch_first=True) for part in (rows, masks)] for i in range(0, len(rows), size)]

    def update() -> None:
        optimizer.zero_grad()
        for token_ids, mask in batches:
            logits = model(input_ids=token_ids, use_cache=False).logits[:, :-1]
            policy = torch.log_softmax(logits, -1).gather(-1, token_ids[:, 1:, None])[..., 0]
            weight = (policy.detach() + 3.0).exp().clamp(max=5.0)
            (-(weight * policy * mask[:, 1:]).sum() / 1000).backward()
        clip_grad_norm_(parameters, 1.0)
        optimizer.step()

    return update


def cpu_seconds(update: Callable[[], object]) -> float:
    start = time.process_time()
    update()
    return time.process_time() - start


def measure(args: Args) -> Figures:
    """Fastest of both, and the median of each pair's ratio."""
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    groups = [random_group(rng, list(rng.permutation([0.0, 1.0] * 4)), turns=6) for _ in range(args.groups)]
    tokens = sum(len(trajectory.token_ids) for group in groups for trajectory in group.trajectories)
    trainer = Trainer(AgentConfig().with_values({"micro_batch_tokens": args.micro_batch_tokens}), str(tiny_model_path()), seed=0)
    bare = bare_loop(groups, args.micro_batch_tokens)
    _, *pairs = [(cpu_seconds(bare), cpu_seconds(lambda: trainer.update(groups))) for _ in range(args.repeats + 1)]  # the first warms up
    seconds = np.array(pairs)
    fastest_bare, fastest_ours = seconds.min(axis=0)
    return {
        "tokens_per_update": float(tokens),
        "bare_loop_tokens_per_cpu_s": tokens / fastest_bare,
        "trainer_tokens_per_cpu_s": tokens / fastest_ours,
        "trainer_to_bare_ratio": float(np.median(seconds[:, 0] / seconds[:, 1])),
    }


if __name__ == "__main__":
    show("training", measure(parse(Args)))
