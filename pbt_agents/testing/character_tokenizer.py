"""A tokenizer with one id per character, so that a test can write token ids as text."""

from collections.abc import Sequence

import numpy as np

from pbt_agents.types import IntArray

MERGED = "\N{WHITE SMILING FACE}"


class CharacterTokenizer:
    """`$` ends a turn. `strip` makes a chat template that rewrites earlier turns; `end` one that closes a turn with another text.
    `merged` is a text that becomes one id, though its characters are ids as well.
    """

    eos_token_id = ord("$")

    def __init__(self, strip: bool = False, end: str = "$", merged: str = "") -> None:
        self.strip, self.end, self.merged = strip, end, merged

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        return [ord(character) for character in (text.replace(self.merged, MERGED) if self.merged else text)]

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return "".join(chr(i) for i in token_ids if not (skip_special_tokens and i == self.eos_token_id))

    def apply_chat_template(self, conversation: list[dict[str, str]], tokenize: bool, add_generation_prompt: bool) -> str:
        text = ""
        for number, message in enumerate(conversation):
            if message["role"] == "user":
                text += f"<{message['content']}>"
            else:
                dropped = self.strip and number < len(conversation) - 2
                text += "@" + ("" if dropped else message["content"]) + self.end
        return text + ("@" if add_generation_prompt else "")


def ids(text: str) -> IntArray:
    """[len(text)] token ids of a text."""
    return np.array([ord(character) for character in text], np.int32)
