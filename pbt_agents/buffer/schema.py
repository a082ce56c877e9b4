"""How a group looks in Arrow: one record batch, one row per trajectory, turns and policy spans nested in the row.

Owns the schema, its version number and the exact conversion both ways. Files and durability are segment.py's.
Change a column only together with SCHEMA_VERSION: a log of another version is refused, never guessed at.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, cast

import numpy as np
import pyarrow as pa
from numpy.typing import DTypeLike, NDArray

from pbt_agents.errors import ConfigError
from pbt_agents.types import Group, PolicyId, PolicySpan, StopReason, Trajectory, Turn

SCHEMA_VERSION = 1
_VERSION_KEY = b"pbt_agents.schema_version"

_TURN = pa.struct(
    [
        ("observation_ids", pa.list_(pa.int32())),
        ("action_ids", pa.list_(pa.int32())),
        ("behavior_logprobs", pa.list_(pa.float32())),
        ("reward", pa.float64()),  # NaN is a value here: no verdict
    ]
)
_SPAN = pa.struct([("start", pa.int32()), ("stop", pa.int32()), ("agent", pa.string()), ("lineage", pa.int64()), ("version", pa.int64())])
SCHEMA = pa.schema(
    [
        ("group_id", pa.string()),  # the first three are the group's, repeated in each of its rows
        ("environment", pa.string()),
        ("seed", pa.int64()),
        ("turns", pa.list_(_TURN)),
        ("policy_spans", pa.list_(_SPAN)),
        ("stop_reason", pa.string()),
        ("metrics", pa.map_(pa.string(), pa.float64())),
        ("duration_s", pa.float64()),
    ],
    metadata={_VERSION_KEY: str(SCHEMA_VERSION)},
)


def check_schema(schema: pa.Schema, source: str) -> None:
    """Refuses what another version of this package wrote."""
    if schema.equals(SCHEMA, check_metadata=True):
        return
    found = (schema.metadata or {}).get(_VERSION_KEY, b"none").decode()
    raise ConfigError(
        f"{source} holds groups of schema version {found}, with columns {schema.names}; this package reads version {SCHEMA_VERSION}, "
        f"with columns {SCHEMA.names}. Give the buffer an empty folder, or run the version that wrote it."
    )


def to_batch(group: Group) -> pa.RecordBatch:
    """[G] rows. A group without trajectories has no rows, and so cannot be told back."""
    rows = group.trajectories
    columns = [
        pa.array([group.group_id] * len(rows), pa.string()),
        pa.array([group.environment] * len(rows), pa.string()),
        pa.array([group.seed] * len(rows), pa.int64()),
        _lists([row.turns for row in rows], _turn_array([turn for row in rows for turn in row.turns])),
        _lists([row.policy_spans for row in rows], _span_array([span for row in rows for span in row.policy_spans])),
        pa.array([row.stop_reason for row in rows], pa.string()),
        pa.array([list(row.metrics.items()) for row in rows], SCHEMA.field("metrics").type),
        pa.array([row.duration_s for row in rows], pa.float64()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def from_batch(batch: pa.RecordBatch) -> Group:
    """The group again, bit for bit. Its arrays are read-only views into the batch."""
    turns = _split(batch.column("turns"), _turns(batch.column("turns").values))
    spans = _split(batch.column("policy_spans"), _spans(batch.column("policy_spans").values))
    stops, metrics, durations = (batch.column(name).to_pylist() for name in ("stop_reason", "metrics", "duration_s"))
    rows = zip(turns, spans, stops, metrics, durations, strict=True)
    return Group(
        group_id=batch.column("group_id")[0].as_py(),
        environment=batch.column("environment")[0].as_py(),
        seed=batch.column("seed")[0].as_py(),
        trajectories=tuple(
            Trajectory(tuple(own_turns), tuple(own_spans), cast(StopReason, stop), dict(pairs), duration)
            for own_turns, own_spans, stop, pairs, duration in rows
        ),
    )


def group_key(batch: pa.RecordBatch) -> tuple[str, int]:
    """Group id and oldest policy version, without decoding a token."""
    versions = batch.column("policy_spans").values.field("version").to_numpy()
    return batch.column("group_id")[0].as_py(), int(versions.min())


def _turn_array(turns: Sequence[Turn]) -> pa.StructArray:
    return pa.StructArray.from_arrays(
        [
            _lists([turn.observation_ids for turn in turns], _joined((turn.observation_ids for turn in turns), np.int32)),
            _lists([turn.action_ids for turn in turns], _joined((turn.action_ids for turn in turns), np.int32)),
            _lists([turn.behavior_logprobs for turn in turns], _joined((turn.behavior_logprobs for turn in turns), np.float32)),
            pa.array(np.array([turn.reward for turn in turns], np.float64), from_pandas=False),
        ],
        fields=list(_TURN),
    )


def _turns(array: pa.StructArray) -> list[Turn]:
    observations, actions, logprobs = (_arrays(array.field(i)) for i in range(3))
    rewards = array.field(3).to_numpy().tolist()
    return [Turn(*values) for values in zip(observations, actions, logprobs, rewards, strict=True)]


def _span_array(spans: Sequence[PolicySpan]) -> pa.StructArray:
    values = [(span.start, span.stop, span.policy.agent, span.policy.lineage, span.policy.version) for span in spans]
    columns = zip(*values, strict=True) if values else [()] * _SPAN.num_fields
    return pa.StructArray.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, _SPAN, strict=True)], fields=list(_SPAN)
    )


def _spans(array: pa.StructArray) -> list[PolicySpan]:
    columns = (array.field(i).to_pylist() for i in range(_SPAN.num_fields))
    return [PolicySpan(start, stop, PolicyId(*policy)) for start, stop, *policy in zip(*columns, strict=True)]


def _lists(parts: Sequence[Any], values: pa.Array) -> pa.ListArray:
    """A list column, where row i is as long as part i."""
    offsets = np.zeros(len(parts) + 1, np.int32)
    np.cumsum([len(part) for part in parts], out=offsets[1:])
    return pa.ListArray.from_arrays(pa.array(offsets), values)


def _joined(parts: Iterable[NDArray[Any]], dtype: DTypeLike) -> pa.Array:
    return pa.array(np.concatenate([np.empty(0, dtype), *parts], dtype=dtype), from_pandas=False)


def _split(column: pa.ListArray, values: Sequence[Any]) -> list[Sequence[Any]]:
    """The inverse of _lists: each row's own values."""
    offsets = column.offsets.to_numpy().tolist()
    return [values[start:stop] for start, stop in pairwise(offsets)]


def _arrays(column: pa.ListArray) -> list[Any]:
    return _split(column, column.values.to_numpy())
