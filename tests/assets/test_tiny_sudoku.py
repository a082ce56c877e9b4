"""The embedded base model is small, loads without a network, and is what its card says."""

import re
import socket

import numpy as np
import pytest

from pbt_agents.assets import tiny_model_path
from pbt_agents.environments.sudoku import ENVIRONMENT

CARD = (tiny_model_path() / "README.md").read_text()


@pytest.fixture(scope="module")
def no_network():
    """Opening a connection fails."""

    def refuse(*_):
        raise AssertionError("the embedded model reached for the network")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", refuse)
        yield


@pytest.fixture(scope="module")
def tokenizer(no_network):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tiny_model_path())


@pytest.fixture(scope="module")
def model(no_network):
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(tiny_model_path(), dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def conversation():
    """One episode in which every verdict comes up."""
    environment = ENVIRONMENT("tiny", "test")
    talk = [{"role": "user", "content": environment.reset(0)}]
    puzzle = environment.puzzle
    empty, filled = puzzle.clues.index(0), next(cell for cell, clue in enumerate(puzzle.clues) if clue)
    right = puzzle.solution[empty]
    row, column = empty // 4 + 1, empty % 4 + 1
    actions = [
        f"\\boxed{{{row} {column} {right % 4 + 1}}}",
        f"\\boxed{{{filled // 4 + 1} {filled % 4 + 1} 1}}",
        f"\\boxed{{{row} {column} 9}}",
        f"\\boxed{{{row} {column}}}",
        f"\\boxed{{{row} {column} {right}}}",
    ]
    for action in actions:
        talk += [{"role": "assistant", "content": action}, {"role": "user", "content": environment.step(action).observation}]
    verdicts = [message["content"].split("\n")[0] for message in talk[::2]]
    assert verdicts == ["start", "wrong", "filled", "out", "format", "correct"]
    return talk


def test_everything_shipped_is_under_4_megabytes():
    sizes = {path.name: path.stat().st_size for path in tiny_model_path().iterdir()}
    assert sum(sizes.values()) < 4_000_000
    assert sizes["model.safetensors"] < 2_500_000
    assert not [name for name in sizes if name.endswith((".bin", ".pt", ".py"))]


def test_the_vocabulary_is_the_tokenizers_and_the_models(tokenizer, model):
    assert len(tokenizer) == model.config.vocab_size == model.get_input_embeddings().weight.shape[0] == 32
    assert (tokenizer.pad_token_id, tokenizer.unk_token_id, tokenizer.eos_token_id) == (0, 1, 2)
    assert tokenizer.convert_tokens_to_ids(["<|user|>", "<|agent|>"]) == [3, 4]
    assert model.config.eos_token_id == 2


def test_every_text_of_an_episode_survives_the_round_trip(tokenizer, conversation):
    for message in conversation:
        ids = tokenizer.encode(message["content"])
        assert tokenizer.unk_token_id not in ids
        assert tokenizer.decode(ids) == tokenizer.decode(ids, skip_special_tokens=True) == message["content"]


def test_a_move_is_7_tokens_and_a_board_21(tokenizer):
    assert len(tokenizer.encode("\\boxed{1 2 3}")) == 7
    assert len(tokenizer.encode("start\n12.4\n....\n1...\n2..3")) == 21


def test_a_stray_letter_is_one_unknown_token(tokenizer):
    assert tokenizer.encode("x1y") == [1, tokenizer.convert_tokens_to_ids("1"), 1]


def test_the_chat_template_only_appends(tokenizer, conversation):
    def text(messages):
        return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=messages[-1]["role"] == "user")

    for length in range(1, len(conversation)):
        assert text(conversation[: length + 1]).startswith(text(conversation[:length]))
    assert text(conversation[:3]) == (
        f"<|user|>{conversation[0]['content']}\n<|agent|>{conversation[1]['content']}<|im_end|><|user|>{conversation[2]['content']}\n<|agent|>"
    )


def test_the_model_has_the_size_the_card_names(model):
    (said,) = re.findall(r"([\d,]+) parameters", CARD)
    assert sum(weight.numel() for weight in model.parameters()) == int(said.replace(",", ""))


def test_the_weights_score_what_the_card_says(model, tokenizer):
    """96 puzzles of the test split, by transformers alone: within 3 of their own standard errors."""
    from evaluate_transformers import Args, scores

    for kind, greedy in (("sampled", False), ("greedy", True)):
        (said,) = re.findall(rf"\| test \|.*{kind} ([\d.]+) ±", CARD)
        played = scores(model, tokenizer, Args(episodes=96, seed=11), greedy)
        assert played.mean() == pytest.approx(float(said), abs=3 * played.std() / np.sqrt(len(played)))
