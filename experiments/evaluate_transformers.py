"""Score a model, with or without an adapter, by transformers and peft alone.

Conversations go through the tokenizer's own chat template and `generate`, so this shares nothing with the engines and the ring: it confirms
(or not) what they report.

    OMP_NUM_THREADS=1 python experiments/evaluate_transformers.py --adapter runs/mine/best
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import _interpreter  # noqa: F401
import numpy as np
import torch

from pbt_agents.command_line import parse
from pbt_agents.environment import Environment
from pbt_agents.errors import ConfigError
from pbt_agents.models import resolve_model
from pbt_agents.plugins import load
from pbt_agents.types import Split

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True)
class Args:
    model: str = "tiny"
    """`tiny`, a folder or a hub id."""
    adapter: Path | None = None
    """Folder in PEFT's format; none scores the base model."""
    environment: str = "sudoku:tiny"
    """As in a population's recipe."""
    split: Split = "test"
    """Which tasks."""
    episodes: int = 512
    """Played once sampled at temperature 1 and once greedy."""
    max_action_tokens: int = 12
    """Where an action is cut."""
    seed: int = 0
    """Of the tasks and the sampling."""


@torch.no_grad()
def scores(model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerBase", args: Args, greedy: bool) -> np.ndarray:
    """[episodes] sums of rewards."""
    make, variant = load("environment", args.environment)
    tasks = np.random.default_rng(args.seed).integers(1 << 62, size=args.episodes).tolist()
    with torch.random.fork_rng():
        torch.manual_seed(args.seed)
        parts = [play(model, tokenizer, [(make(variant, args.split), task) for task in some], args, greedy) for some in _batches(tasks, 64)]
    return np.concatenate(parts)


def play(model: Any, tokenizer: Any, tasks: list[tuple[Environment, int]], args: Args, greedy: bool) -> np.ndarray:
    """Play these side by side, a turn of all that still run at a time."""
    totals = np.zeros(len(tasks))
    talks = [[{"role": "user", "content": environment.reset(seed)}] for environment, seed in tasks]
    running = list(range(len(tasks)))
    choice: dict[str, Any] = {"do_sample": False} if greedy else {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
    while running:
        prompts = tokenizer.apply_chat_template([talks[index] for index in running], tokenize=False, add_generation_prompt=True)
        inputs = tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left", add_special_tokens=False)
        inputs = {name: inputs[name] for name in ("input_ids", "attention_mask")}
        written = model.generate(**inputs, **choice, max_new_tokens=args.max_action_tokens, pad_token_id=tokenizer.pad_token_id)
        actions = tokenizer.batch_decode(written[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
        still = []
        for index, action in zip(running, actions, strict=True):
            result = tasks[index][0].step(action)
            totals[index] += result.reward
            talks[index] += [{"role": "assistant", "content": action}, {"role": "user", "content": result.observation}]
            if not (result.terminated or result.truncated):
                still.append(index)
        running = still
    return totals


def load_policy(folder: str, adapter: Path | None) -> "PreTrainedModel":
    from transformers import AutoModelForCausalLM

    if adapter is not None and not (adapter / "adapter_config.json").is_file():
        raise ConfigError(f"adapter '{adapter}' has no adapter_config.json. Name a folder in PEFT's format, as a run's best adapter is.")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    if adapter is None:
        return model
    from peft import PeftModel

    return PeftModel.from_pretrained(model, str(adapter)).eval()


def _batches(values: list[int], size: int) -> Iterator[list[int]]:
    return (values[start : start + size] for start in range(0, len(values), size))


def main(args: Args) -> None:
    from transformers import AutoTokenizer

    folder = resolve_model(args.model)
    model, tokenizer = load_policy(folder, args.adapter), AutoTokenizer.from_pretrained(folder)
    for name, greedy in (("sampled", False), ("greedy", True)):
        each = scores(model, tokenizer, args, greedy)
        print(f"{name} {each.mean():.3f} ± {each.std(ddof=1) / len(each) ** 0.5:.3f} on {len(each)} {args.split} tasks")
    print(f"Scored: {folder}{f' with {args.adapter}' if args.adapter else ''}")


if __name__ == "__main__":
    try:
        main(parse(Args))
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
