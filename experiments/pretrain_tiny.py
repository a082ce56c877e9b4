"""Make the tiny base model of pbt_agents/assets: teach a new Qwen3 to imitate an imperfect Sudoku player, in a few CPU-minutes.

First single boards, where every move of the player is taught at once; then whole episodes, where it plays on and is told what became of
its move. Only the train split is seen. The same arguments give the same weights on the same machine.

    OMP_NUM_THREADS=1 python experiments/pretrain_tiny.py --out runs/tiny_sudoku
"""

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import _interpreter  # noqa: F401
import torch
from _tiny_lessons import Batch, School, batch
from _tiny_teacher import Teacher
from _tiny_tokenizer import VOCABULARY_SIZE, build_tokenizer

from pbt_agents.command_line import parse

if TYPE_CHECKING:
    from transformers import PreTrainedModel

TEACHER = Teacher(right=0.32, legal=0.04, guess=0.07, favourite=0.22, filled=0.20, malformed=0.15)


@dataclass(frozen=True)
class Args:
    out: Path = Path("runs/tiny_sudoku")
    """Folder for weights and tokenizer."""
    board_steps: int = 800
    """Optimizer steps on single boards."""
    episode_steps: int = 500
    """Optimizer steps on episodes, after those on boards."""
    boards: int = 32
    """Boards in a step."""
    episodes: int = 8
    """Episodes in a step."""
    learning_rate: float = 2e-3
    """At its highest; it warms up for 50 steps and falls along a cosine."""
    seed: int = 0
    """Of the first weights, the boards and the player's moves."""


def build_model(seed: int) -> "PreTrainedModel":
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=VOCABULARY_SIZE,
            hidden_size=128,
            intermediate_size=384,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=4,
            head_dim=32,
            max_position_embeddings=1024,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=2,
            pad_token_id=0,
        )
    )


def imitation_loss(logits: torch.Tensor, lessons: Batch) -> torch.Tensor:
    """Kullback-Leibler divergence of the player's moves from the model's, per move."""
    reached = lessons.targets.sum(-1)
    spoken = reached > 0
    targets, reached = lessons.targets[spoken], reached[spoken]
    own_entropy = torch.special.xlogy(targets, targets / reached[:, None]).sum()
    loss: torch.Tensor = (own_entropy - (targets * torch.log_softmax(logits[spoken].float(), -1)).sum()) / lessons.moves
    return loss


def learning_rate(args: Args, step: int) -> float:
    warm_up = min(1.0, (step + 1) / 50)
    cosine = 0.5 * (1 + math.cos(math.pi * step / (args.board_steps + args.episode_steps)))
    return args.learning_rate * warm_up * (0.03 + 0.97 * cosine)


def train(args: Args) -> "PreTrainedModel":
    school, model = School(TEACHER, args.seed), build_model(args.seed)
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98), weight_decay=0.01)
    for step in range(args.board_steps + args.episode_steps):
        on_boards = step < args.board_steps
        lessons = batch([school.board() for _ in range(args.boards)] if on_boards else [school.episode() for _ in range(args.episodes)])
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(**lessons.inputs).logits
        loss = imitation_loss(logits, lessons)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.param_groups[0]["lr"] = learning_rate(args, step)
        optimizer.step()
        if (step + 1) % 50 == 0:
            kind = "boards" if on_boards else "episodes"
            print(f"step {step + 1} on {kind}: {loss.item():.3f} nat a move, {time.process_time():.0f} CPU-seconds", flush=True)
    return model


def main(args: Args) -> None:
    torch.set_num_threads(1)
    model = train(args).to(torch.bfloat16)
    model.save_pretrained(args.out)
    build_tokenizer().save_pretrained(args.out)
    print(f"Saved in {args.out}. Its scores: python experiments/evaluate_transformers.py --model {args.out}")


if __name__ == "__main__":
    main(parse(Args))
