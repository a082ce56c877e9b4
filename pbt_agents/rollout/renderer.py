"""Text to tokens, append-only: what was sampled is kept as sampled, and only the environment's words are encoded.

Earlier turns are never rendered again, so a template cannot rewrite history. A template that would is refused at start-up.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from pbt_agents.errors import ConfigError
from pbt_agents.types import IntArray

_ACTION = "7"
"""Stands for an action where the template around it is measured; every vocabulary has it."""


class Tokenizer(Protocol):
    """The part of a Hugging Face tokenizer that is used."""

    eos_token_id: int | None

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]: ...
    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str: ...
    def apply_chat_template(self, conversation: list[dict[str, str]], tokenize: bool, add_generation_prompt: bool) -> str: ...


class ChatRenderer:
    """Observations in the model's own chat template.

    Raises ConfigError when the tokenizer has no template, or one that changes earlier turns (such as templates that strip old
    reasoning), naming the model.
    """

    def __init__(self, tokenizer: Tokenizer, model: str, stop_token_ids: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        if tokenizer.eos_token_id is None:
            raise ConfigError(f"the tokenizer of '{model}' has no end-of-turn token (eos_token). Set one in its tokenizer_config.json.")
        self.stop_token_ids: tuple[int, ...] = tuple(dict.fromkeys([tokenizer.eos_token_id, *stop_token_ids]))
        """Every id that ends an action, not only the first."""
        self._check_append_only(model)

    def first(self, observation: str) -> IntArray:
        """[O] token ids of the opening prompt, the generation prompt included."""
        return self._encode(self._render([_user(observation)], prompt=True))

    def later(self, observation: str, action_ids: IntArray) -> IntArray:
        """[O] token ids between an action and the next one.

        They begin with the end of the action's turn where the action was cut before it wrote that itself.
        """
        ids = self._encode(self._between(observation))
        ended = len(action_ids) > 0 and int(action_ids[-1]) in self.stop_token_ids
        return ids[1:] if ended else ids

    def text(self, action_ids: IntArray) -> str:
        """The action as the environment reads it."""
        return self._tokenizer.decode(action_ids.tolist(), skip_special_tokens=True)

    def _between(self, observation: str) -> str:
        rendered = self._render([_user("0"), _assistant(_ACTION), _user(observation)], prompt=True)
        opening = self._render([_user("0")], prompt=True)
        return rendered[len(opening) + len(_ACTION) :]

    def _check_append_only(self, model: str) -> None:
        one = self._render([_user("0")], prompt=True)
        two = self._render([_user("0"), _assistant(_ACTION), _user("1")], prompt=True)
        three = self._render([_user("0"), _assistant(_ACTION), _user("1"), _assistant(_ACTION), _user("2")], prompt=True)
        if not (two.startswith(one + _ACTION) and three.startswith(two + _ACTION)):
            raise ConfigError(
                f"the chat template of '{model}' rewrites earlier turns, so tokens trained on would not be those sampled. "
                "Give the model a template that only appends (chat_template.jinja in its folder)."
            )
        if int(self._encode(self._between("1"))[0]) not in self.stop_token_ids:
            raise ConfigError(
                f"the chat template of '{model}' does not end an assistant turn with one of the stop tokens {self.stop_token_ids}. "
                "Set eos_token to the token that ends a turn."
            )

    def _render(self, messages: list[dict[str, str]], prompt: bool) -> str:
        return self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt)

    def _encode(self, text: str) -> IntArray:
        return np.array(self._tokenizer.encode(text, add_special_tokens=False), np.int32)


def load_renderer(model_path: str) -> ChatRenderer:
    """The renderer of a local model folder, with every stop id that its generation config names."""
    from transformers import AutoTokenizer, GenerationConfig

    tokenizer = AutoTokenizer.from_pretrained(model_path, local_files_only=True)
    if tokenizer.chat_template is None:
        raise ConfigError(f"the tokenizer in '{model_path}' has no chat template. Add chat_template.jinja to the folder.")
    try:
        stops = GenerationConfig.from_pretrained(model_path, local_files_only=True).eos_token_id
    except OSError:
        stops = None
    return ChatRenderer(tokenizer, model_path, [stops] if isinstance(stops, int) else stops or ())


def _user(content: str) -> dict[str, str]:
    return {"role": "user", "content": content}


def _assistant(content: str) -> dict[str, str]:
    return {"role": "assistant", "content": content}
