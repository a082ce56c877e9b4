import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from pbt_agents.buffer.schema import SCHEMA, check_schema, from_batch, group_key, to_batch
from pbt_agents.errors import ConfigError
from pbt_agents.types import Group, PolicyId, PolicySpan, Trajectory, Turn

IDS = arrays(np.int32, st.integers(0, 5))
POSITIONS = st.integers(0, 2**31 - 1)
COUNTS = st.integers(0, 2**63 - 1)
FLOATS = st.floats(allow_nan=True, allow_infinity=True)


@st.composite
def turns(draw: st.DrawFn) -> Turn:
    actions = draw(IDS)
    return Turn(draw(IDS), actions, draw(arrays(np.float32, len(actions))), draw(FLOATS))


SPANS = st.builds(PolicySpan, POSITIONS, POSITIONS, st.builds(PolicyId, st.text(), COUNTS, COUNTS))
TRAJECTORIES = st.builds(
    Trajectory,
    st.lists(turns(), max_size=3).map(tuple),
    st.lists(SPANS, max_size=3).map(tuple),
    st.sampled_from(["terminated", "truncated", "length"]),
    st.dictionaries(st.text(), FLOATS, max_size=3),
    FLOATS,
)
GROUPS = st.builds(Group, st.text(), st.text(), st.integers(-(2**63), 2**63 - 1), st.lists(TRAJECTORIES, min_size=1, max_size=3).map(tuple))


def bits(value: object) -> object:
    """Something that compares equal only when every bit, type and order is the same."""
    match value:
        case np.ndarray():
            return value.dtype.str, value.tobytes()
        case float():
            return np.float64(value).tobytes()
        case tuple():
            return tuple(bits(part) for part in value)
        case dict():
            return tuple((key, bits(part)) for key, part in value.items())
        case Group() | Trajectory() | Turn() | PolicySpan():
            return type(value), tuple(bits(getattr(value, name)) for name in value.__dataclass_fields__)
        case _:
            return type(value), value


@given(GROUPS)
@settings(max_examples=150, deadline=None)
def test_a_group_comes_back_bit_for_bit(group: Group) -> None:
    assert bits(from_batch(to_batch(group))) == bits(group)


def test_the_reward_without_a_verdict_is_a_value_and_not_a_hole(make_group) -> None:
    turn = make_group().trajectories[0].turns[0]
    lost = Turn(turn.observation_ids, turn.action_ids, turn.behavior_logprobs, math.nan)
    batch = to_batch(Group("g", "e", 0, (Trajectory((lost,), (), "length"),)))
    assert batch.column("turns").values.field("reward").null_count == 0
    assert math.isnan(from_batch(batch).trajectories[0].turns[0].reward)


def test_a_row_is_a_trajectory_that_any_arrow_reader_understands(make_group) -> None:
    group = make_group("g7", version=4, size=3)
    row = to_batch(group).to_pylist()[2]
    assert (row["group_id"], row["seed"], row["stop_reason"]) == ("g7", 7, "terminated")
    assert row["turns"][0]["action_ids"] == group.trajectories[2].turns[0].action_ids.tolist()
    assert row["policy_spans"] == [{"start": 2, "stop": 5, "agent": "a", "lineage": 1, "version": 4}]


def test_the_key_is_the_id_and_the_version_of_the_oldest_token() -> None:
    """Case B28: an episode that crossed a swap after token 10 counts from the older policy."""
    logprobs = np.zeros(20, np.float32)
    turn = Turn(np.empty(0, np.int32), np.arange(20, dtype=np.int32), logprobs, 1.0)
    spans = (PolicySpan(0, 10, PolicyId("a", 0, 3)), PolicySpan(10, 20, PolicyId("a", 0, 4)))
    group = Group("g", "e", 0, (Trajectory((turn,), spans[1:], "length"), Trajectory((turn,), spans, "length")))
    assert group_key(to_batch(group)) == ("g", 3)
    assert group.oldest_version == 3


def test_another_version_of_the_schema_is_refused_by_name() -> None:
    other = SCHEMA.with_metadata({b"pbt_agents.schema_version": b"99"})
    with pytest.raises(ConfigError, match=r"old\.arrow holds groups of schema version 99.*reads version 1"):
        check_schema(other, "old.arrow")


def test_other_columns_are_refused_even_under_the_same_version() -> None:
    other = SCHEMA.append(pa.field("color", pa.string()))
    with pytest.raises(ConfigError, match="color"):
        check_schema(other, "old.arrow")
