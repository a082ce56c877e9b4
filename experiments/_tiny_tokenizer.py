r"""The tiny model's tokenizer: 32 tokens, one for each sign that `sudoku:tiny` writes and for each of its words.

One move is 8 tokens (`\boxed{`, row, space, column, space, digit, `}`, end of turn) and one observation 24.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

VOCABULARY_SIZE = 32
SPECIAL = ("<pad>", "<unk>", "<|im_end|>", "<|user|>", "<|agent|>")
WORDS = ("\\boxed{", "start", "correct", "wrong", "filled", "out", "format")
CHARACTERS = tuple("\n .{}\\0123456789")

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'assistant' %}{{ '<|agent|>' + message['content'] + '<|im_end|>' }}"
    "{% else %}{{ '<|user|>' + message['content'] + '\n' }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|agent|>' }}{% endif %}"
)
"""Only appends: what was written in earlier turns never changes."""


def build_tokenizer() -> "PreTrainedTokenizerFast":
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    pieces = [*SPECIAL, *WORDS, *CHARACTERS]
    pieces += [f"<|reserved{index}|>" for index in range(len(pieces), VOCABULARY_SIZE)]
    tokenizer = Tokenizer(models.WordLevel({piece: index for index, piece in enumerate(pieces)}, unk_token="<unk>"))
    words = "|".join(word.replace("\\", r"\\").replace("{", r"\{") for word in WORDS)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(rf"{words}|[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        unk_token="<unk>",
        eos_token="<|im_end|>",
        additional_special_tokens=["<|user|>", "<|agent|>"],
        clean_up_tokenization_spaces=False,
        model_max_length=1024,
        chat_template=CHAT_TEMPLATE,
    )
