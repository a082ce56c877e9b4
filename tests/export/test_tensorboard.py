import struct

from tensorboardX.proto.event_pb2 import Event

from pbt_agents.export.tensorboard import write_tensorboard


def points(folder):
    """(tag, step, time) -> value, of all event files: length, its checksum, an event, its checksum, one after the other."""
    found = {}
    for file in folder.iterdir():
        content, at = file.read_bytes(), 0
        while at < len(content):
            (length,) = struct.unpack_from("<Q", content, at)
            event = Event.FromString(content[at + 12 : at + 12 + length])
            at += 12 + length + 4
            for value in event.summary.value:
                assert (value.tag, event.step) not in [key[:2] for key in found], "a point that is there twice"
                found[value.tag, event.step, event.wall_time] = round(value.simple_value, 6)
    return found


def test_each_member_has_its_metrics_at_the_step_and_time_they_are_of(run):
    told = write_tensorboard(run)
    agent0 = points(run / "tensorboard" / "agent0")
    assert told["agent0"] == len(agent0)
    assert agent0["evaluation/fitness", 2, 1002.0] == 1.5
    assert agent0["evaluation/learning_rate", 2, 1002.0] == 0.002
    assert agent0["update/trainer/loss", 1, 5.0] == 0.1
    assert agent0["update/by_lag/0/tokens", 2, 5.0] == 20.0


def test_what_is_not_finite_is_no_point(run):
    write_tensorboard(run)
    tags = {(tag, step) for tag, step, _ in points(run / "tensorboard" / "agent1")}
    assert ("evaluation/fitness", 2) not in tags
    assert ("evaluation/fitness", 4) in tags
    assert "evaluation/ratio_max" not in {tag for tag, _ in tags}


def test_written_again_no_point_is_there_twice(run):
    first = write_tensorboard(run)
    before = points(run / "tensorboard" / "agent1")
    assert write_tensorboard(run) == first
    assert points(run / "tensorboard" / "agent1") == before
    assert sorted(file.name for file in run.iterdir()) == ["population", "tensorboard"]
