"""The independent scorer."""

import numpy as np
import pytest
from evaluate_transformers import Args, load_policy, scores

from pbt_agents.assets import tiny_model_path
from pbt_agents.errors import ConfigError


@pytest.fixture(scope="module")
def tokenizer():
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tiny_model_path())


@pytest.fixture(scope="module")
def model():
    return load_policy(str(tiny_model_path()), adapter=None)


def test_scores_are_sums_of_rewards_in_sixths_and_repeat_with_the_seed(model, tokenizer):
    args = Args(episodes=12, seed=3)
    sampled = scores(model, tokenizer, args, greedy=False)
    assert np.isin(np.round(sampled * 6, 6), np.arange(7)).all()
    assert sampled.tolist() == scores(model, tokenizer, args, greedy=False).tolist()
    assert sampled.tolist() != scores(model, tokenizer, Args(episodes=12, seed=4), greedy=False).tolist()


def test_an_adapter_changes_what_is_played(model, tokenizer, tmp_path):
    """B is 0 in a fresh adapter; set by hand it moves the greedy moves."""
    import torch
    from peft import LoraConfig, get_peft_model

    adapted = get_peft_model(load_policy(str(tiny_model_path()), adapter=None), LoraConfig(r=8, target_modules=["q_proj"]))
    args = Args(episodes=8)
    before = scores(model, tokenizer, args, greedy=True)
    adapted.save_pretrained(tmp_path / "fresh")
    assert scores(load_policy(str(tiny_model_path()), tmp_path / "fresh"), tokenizer, args, greedy=True).tolist() == before.tolist()
    with torch.no_grad():
        for name, weight in adapted.named_parameters():
            if "lora_B" in name:
                weight.fill_(0.5)
    adapted.save_pretrained(tmp_path / "moved")
    assert scores(load_policy(str(tiny_model_path()), tmp_path / "moved"), tokenizer, args, greedy=True).tolist() != before.tolist()


def test_a_folder_without_an_adapter_is_refused_by_name(tmp_path):
    with pytest.raises(ConfigError, match=r"adapter '.*' has no adapter_config\.json"):
        load_policy(str(tiny_model_path()), tmp_path)
