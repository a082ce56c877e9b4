import errno
import os
from pathlib import Path

import pyarrow as pa
import pytest

from pbt_agents.buffer.schema import from_batch, to_batch
from pbt_agents.buffer.segment import Segment


def filled(path: Path, groups: list) -> Segment:
    segment = Segment.create(path)
    for group in groups:
        segment.append(to_batch(group).serialize())
    return segment


def ids(segment: Segment) -> list[str]:
    return [from_batch(segment.read(location)).group_id for location in segment.locations]


def test_every_complete_batch_of_an_unclosed_file_is_readable_and_a_torn_tail_costs_one(tmp_path: Path, make_group) -> None:
    """Case B36: 10 batches of 100 rows; 37 bytes cut off leave 9 batches and a torn tail."""
    path = tmp_path / "s.arrow"
    filled(path, [make_group(f"g{i}", size=100) for i in range(10)])
    with pa.OSFile(str(path)) as source:
        assert pa.ipc.open_stream(source).read_all().num_rows == 1000
    assert not Segment.load(path).torn

    os.truncate(path, path.stat().st_size - 37)
    segment = Segment.load(path)
    assert segment.torn
    assert ids(segment) == [f"g{i}" for i in range(9)]
    segment.cut()
    assert not Segment.load(path).torn
    with pa.OSFile(str(path)) as source:
        assert pa.ipc.open_stream(source).read_all().num_rows == 900


def test_a_file_cut_at_any_byte_keeps_exactly_the_groups_before_the_cut(tmp_path: Path, make_group) -> None:
    """Case B36: the cut may lie in the header, in a batch's metadata, in its body, or between two."""
    segment = filled(tmp_path / "s.arrow", [make_group(f"g{i}") for i in range(2)])
    ends = [location.offset + location.length for location in segment.locations]
    whole = {0, segment.locations[0].offset, *ends}
    assert ends[-1] == segment.path.stat().st_size
    for size in reversed(range(ends[-1] + 1)):
        os.truncate(segment.path, size)
        cut = Segment.load(segment.path)
        assert cut.locations == segment.locations[: sum(end <= size for end in ends)], size
        assert cut.torn == (size not in whole), size


def test_a_tail_of_zeros_is_torn_and_not_an_end_of_stream(tmp_path: Path, make_group) -> None:
    segment = filled(tmp_path / "s.arrow", [make_group()])
    with segment.path.open("ab") as file:
        file.write(bytes(64))
    loaded = Segment.load(segment.path)
    assert loaded.torn
    assert ids(loaded) == ["g0"]


def test_a_write_that_fails_half_way_leaves_no_trace(tmp_path: Path, make_group, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case B72: on a full disk the groups before and after are unharmed."""
    segment = filled(tmp_path / "s.arrow", [make_group("before")])
    real_write, calls = os.write, iter([True, False])

    def half_then_full(descriptor: int, data: memoryview) -> int:
        if next(calls):
            return real_write(descriptor, data[:100])
        raise OSError(errno.ENOSPC, "no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", half_then_full)
        with pytest.raises(OSError, match="no space"):
            segment.append(to_batch(make_group("lost")).serialize())
    segment.append(to_batch(make_group("after")).serialize())
    loaded = Segment.load(segment.path)
    assert ids(loaded) == ["before", "after"]
    assert not loaded.torn


def test_a_short_write_is_finished(tmp_path: Path, make_group, monkeypatch: pytest.MonkeyPatch) -> None:
    real_write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: real_write(descriptor, data[:50]))
    assert ids(Segment.load(filled(tmp_path / "s.arrow", [make_group("a"), make_group("b")]).path)) == ["a", "b"]


def test_a_group_stays_readable_after_its_file_is_gone(tmp_path: Path, make_group) -> None:
    segment = filled(tmp_path / "s.arrow", [make_group("kept")])
    batch = segment.read(segment.locations[0])
    segment.path.unlink()
    assert from_batch(batch).group_id == "kept"


def test_a_sealed_segment_refuses_to_be_written(tmp_path: Path, make_group) -> None:
    segment = filled(tmp_path / "s.arrow", [make_group()])
    segment.seal()
    with pytest.raises(AssertionError, match="sealed"):
        segment.append(to_batch(make_group()).serialize())
