import numpy as np
import pytest

from pbt_agents.errors import ConfigError
from pbt_agents.rollout.renderer import ChatRenderer
from pbt_agents.testing.character_tokenizer import CharacterTokenizer, ids


def test_the_turns_of_an_episode_join_to_what_the_template_renders():
    renderer = ChatRenderer(CharacterTokenizer(), "toy")
    action = ids("go$")
    joined = np.concatenate([renderer.first("a"), action, renderer.later("b", action)])
    assert "".join(map(chr, joined)) == "<a>@go$<b>@"


def test_an_action_that_was_cut_is_closed_by_the_observation():
    renderer = ChatRenderer(CharacterTokenizer(), "toy")
    np.testing.assert_array_equal(renderer.later("b", ids("go")), ids("$<b>@"))


def test_every_stop_id_ends_an_action():
    """B23: models may stop with any id of a list."""
    renderer = ChatRenderer(CharacterTokenizer(), "toy", stop_token_ids=[ord("!")])
    assert renderer.stop_token_ids == (ord("$"), ord("!"))
    np.testing.assert_array_equal(renderer.later("b", ids("go!")), ids("<b>@"))


def test_a_template_that_rewrites_earlier_turns_is_refused_by_the_name_of_its_model():
    """B19."""
    with pytest.raises(ConfigError, match="'forgetful' rewrites earlier turns"):
        ChatRenderer(CharacterTokenizer(strip=True), "forgetful")


def test_a_template_that_does_not_end_a_turn_with_a_stop_token_is_refused():
    with pytest.raises(ConfigError, match="does not end an assistant turn"):
        ChatRenderer(CharacterTokenizer(end="#"), "endless")


def test_sampled_ids_are_never_encoded_again():
    """B18: two ids whose text has a shorter encoding stay two."""
    action = ids("hello$")
    renderer = ChatRenderer(CharacterTokenizer(merged="hello"), "toy")
    later = renderer.later("b", action)
    np.testing.assert_array_equal(np.concatenate([renderer.first("a"), action, later]), ids("<a>@hello$<b>@"))
