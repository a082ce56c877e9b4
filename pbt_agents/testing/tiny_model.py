"""A small model with random weights, for tests that need an architecture and not an ability."""

from pathlib import Path
from typing import Any, Literal

BYTE_VOCABULARY = 256 + 4
"""Every byte, and four tokens of the chat template."""

CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def random_model(folder: str | Path, architecture: Literal["qwen3", "llama"] = "qwen3", vocabulary: int = 32, seed: int = 0) -> str:
    """Save a model of under a million parameters to `folder` and return the path.

    With a vocabulary of BYTE_VOCABULARY or more a byte-level tokenizer with a chat template lies beside it.
    """
    import torch
    import transformers

    prefix = {"qwen3": "Qwen3", "llama": "Llama"}[architecture]
    config = getattr(transformers, f"{prefix}Config")(
        vocab_size=vocabulary,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4 if architecture == "qwen3" else 2,
        head_dim=32,
        max_position_embeddings=4096,
        initializer_range=0.1,  # spread enough that the next token depends on the prompt
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=2,
        pad_token_id=0,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = getattr(transformers, f"{prefix}ForCausalLM")(config)
    model.save_pretrained(folder)
    if vocabulary >= BYTE_VOCABULARY:
        _byte_tokenizer().save_pretrained(folder)
    return str(folder)


def _byte_tokenizer() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = ["<|pad|>", "<|user|>", "<|end|>", "<|assistant|>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(special + alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<|pad|>",
        eos_token="<|end|>",
        additional_special_tokens=["<|user|>", "<|assistant|>"],
        chat_template=CHAT_TEMPLATE,
    )
