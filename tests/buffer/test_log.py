import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from pbt_agents.buffer.log import SegmentLog
from pbt_agents.buffer.schema import SCHEMA, from_batch, to_batch
from pbt_agents.errors import ConfigError

WRITER = """
import sys
from pathlib import Path
import numpy as np
from pbt_agents.buffer.log import SegmentLog
from pbt_agents.buffer.schema import to_batch
from pbt_agents.types import Group, PolicyId, PolicySpan, Trajectory, Turn

log = SegmentLog(Path(sys.argv[1]), segment_groups=8)
for number in range(1_000_000):
    ids = np.full(60_000, number, np.int32)
    turn = Turn(ids[:0], ids, ids.astype(np.float32), 1.0)
    trajectory = Trajectory((turn,), (PolicySpan(0, len(ids), PolicyId("a", 0, number)),), "terminated")
    log.append(to_batch(Group(str(number), "e", number, (trajectory, trajectory))))
    print(number, flush=True)
"""


def ids(log: SegmentLog) -> list[str]:
    return [from_batch(log.read(location)).group_id for location in log.locations()]


def test_a_segment_ends_after_its_groups_and_a_seal_ends_it_early(tmp_path: Path, make_group) -> None:
    log = SegmentLog(tmp_path, segment_groups=3)
    segments = [log.append(to_batch(make_group(f"g{i}"))).segment for i in range(4)]
    log.seal()
    log.seal()  # nothing open: nothing to do
    segments += [log.append(to_batch(make_group(f"g{i}"))).segment for i in (4, 5)]
    assert [segments.index(segment) for segment in segments] == [0, 0, 0, 3, 4, 4]
    assert ids(log) == [f"g{i}" for i in range(6)]


def test_a_segment_ends_at_an_eighth_of_the_capacity(tmp_path: Path, make_group) -> None:
    log = SegmentLog(tmp_path, capacity_bytes=1 << 20)
    sizes = [log.append(to_batch(make_group(f"g{i}", tokens=5_000))).length for i in range(4)]
    assert all(80_000 < size < 90_000 for size in sizes)  # two groups pass the 131,072 bytes
    assert len(log.names) == 2


def test_a_group_that_can_never_be_one_of_several_is_refused(tmp_path: Path, make_group) -> None:
    log = SegmentLog(tmp_path, capacity_bytes=1 << 20)
    with pytest.raises(ConfigError, match=r"capacity_bytes is 1048576, but one group takes \d+"):
        log.append(to_batch(make_group(tokens=40_000)))


def test_sealed_segments_that_nobody_keeps_are_deleted_and_the_open_one_is_not(tmp_path: Path, make_group) -> None:
    log = SegmentLog(tmp_path, segment_groups=1)
    first, second = (log.append(to_batch(make_group(name))).segment for name in ("a", "b"))
    log.keep({second})
    assert ids(log) == ["b"]
    assert not (tmp_path / first).exists()
    wide = SegmentLog(tmp_path / "wide")
    wide.append(to_batch(make_group("c")))
    wide.keep(())
    assert ids(wide) == ["c"]
    wide.seal()
    wide.keep(())
    assert (wide.names, wide.size_bytes) == ([], 0)


def test_a_group_survives_the_sigkill_of_its_writer_as_soon_as_append_returned(tmp_path: Path) -> None:
    """Case B36: killed while it writes, several times; each time all that was said to be appended is there, whole."""
    root = Path(__file__).parents[2]
    for round_ in range(3):
        folder = tmp_path / str(round_)
        command = [sys.executable, "-c", WRITER, str(folder)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root, env={**os.environ, "OMP_NUM_THREADS": "1"}) as writer:
            assert writer.stdout is not None
            said = [writer.stdout.readline().strip() for _ in range(9 + 2 * round_)]
            writer.kill()
            said += writer.stdout.read().split()
        log = SegmentLog(folder)
        groups = [from_batch(log.read(location)) for location in log.locations()]
        assert [group.group_id for group in groups][: len(said)] == said
        assert len(groups) <= len(said) + 1
        for number, group in enumerate(groups):
            assert [set(trajectory.token_ids.tolist()) for trajectory in group.trajectories] == [{number}, {number}]


def test_an_opened_folder_has_its_torn_tail_cut_and_counted_once(tmp_path: Path, make_group) -> None:
    """Case B36."""
    log = SegmentLog(tmp_path)
    last = [log.append(to_batch(make_group(f"g{i}"))) for i in range(10)][-1]
    log.close()
    os.truncate(tmp_path / last.segment, last.offset + last.length - 37)
    torn = SegmentLog(tmp_path)
    assert (torn.torn_tails, ids(torn)) == (1, [f"g{i}" for i in range(9)])
    torn.append(to_batch(make_group("new")))
    torn.close()
    again = SegmentLog(tmp_path)
    assert (again.torn_tails, ids(again)) == (0, [*(f"g{i}" for i in range(9)), "new"])


def test_a_segment_whose_writer_died_in_the_header_is_removed(tmp_path: Path) -> None:
    (tmp_path / "000007-deadbeef.arrow").write_bytes(SCHEMA.serialize().to_pybytes()[:50])
    log = SegmentLog(tmp_path)
    assert (log.torn_tails, log.names, list(tmp_path.glob("*.arrow"))) == (1, [], [])


def test_a_new_segment_never_takes_the_name_of_an_old_one(tmp_path: Path, make_group) -> None:
    names = set()
    for _ in range(3):
        log = SegmentLog(tmp_path, segment_groups=1)
        names |= {log.append(to_batch(make_group())).segment for _ in range(2)}
        log.keep(())
        log.close()
    assert len(names) == 6


def test_a_folder_of_another_schema_is_refused_untouched(tmp_path: Path, make_group) -> None:
    log = SegmentLog(tmp_path)
    log.append(to_batch(make_group()))
    log.close()
    (own,) = tmp_path.glob("*.arrow")
    own.write_bytes(own.read_bytes() + b"torn")
    foreign = tmp_path / "999999-00000000.arrow"
    with pa.OSFile(str(foreign), "wb") as sink:
        sink.write(SCHEMA.with_metadata({b"pbt_agents.schema_version": b"0"}).serialize())
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ConfigError, match=r"999999-00000000\.arrow holds groups of schema version 0") as refused:
        SegmentLog(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    foreign.unlink()
    assert SegmentLog(tmp_path).torn_tails == 1, f"a lock was left by {refused}"


def test_a_second_writer_is_refused_until_the_first_has_closed(tmp_path: Path, make_group) -> None:
    log = SegmentLog(tmp_path)
    with pytest.raises(ConfigError, match="has a writer already"):
        SegmentLog(tmp_path)
    log.append(to_batch(make_group()))
    log.close()
    assert ids(SegmentLog(tmp_path)) == ["g0"]


def test_links_outlive_what_their_source_does_afterwards(tmp_path: Path, make_group) -> None:
    log = SegmentLog(tmp_path / "log")
    log.append(to_batch(make_group("a")))
    log.seal()
    (tmp_path / "links").mkdir()
    log.link_to(tmp_path / "links")
    names = log.names
    log.append(to_batch(make_group("b")))
    log.keep(())

    other = SegmentLog(tmp_path / "other")
    other.adopt(tmp_path / "links", names)
    other.adopt(tmp_path / "links", names)  # what is here already is the same file
    assert ids(other) == ["a"]
    assert (tmp_path / "other" / names[0]).samefile(tmp_path / "links" / names[0])


def test_a_segment_that_is_written_to_is_not_linked(tmp_path: Path, make_group) -> None:
    log = SegmentLog(tmp_path / "log")
    log.append(to_batch(make_group("a")))
    with pytest.raises(AssertionError, match="must not be linked"):
        log.link_to(tmp_path)


@pytest.mark.parametrize(("fsync_groups", "expected"), [(0, 0), (1, 5), (2, 2)])
def test_the_disk_is_waited_for_as_often_as_asked(
    tmp_path: Path, make_group, monkeypatch: pytest.MonkeyPatch, fsync_groups: int, expected: int
) -> None:
    log = SegmentLog(tmp_path, fsync_groups=fsync_groups)
    log.append(to_batch(make_group("creates the segment")))
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    for _ in range(4 if fsync_groups == 2 else 5):
        log.append(to_batch(make_group()))
    assert len(synced) == expected
