import json
import math
import shutil
import time

from pbt_agents.beacon import Beacon, beacon_file, read_beacon


def test_what_is_said_can_be_read_at_once_and_follows(tmp_path):
    file, standing = beacon_file(tmp_path, "agent0"), {"updates": 3}
    beacon = Beacon(file, lambda: standing, period_s=0.01)
    try:
        assert read_beacon(file)["updates"] == 3
        standing["updates"] = 4
        deadline = time.monotonic() + 10
        while read_beacon(file)["updates"] == 3 and time.monotonic() < deadline:
            pass
        said = read_beacon(file)
    finally:
        beacon.close()
    assert said["updates"] == 4
    assert abs(said["time_s"] - time.time()) < 10


def test_nothing_is_read_where_nothing_was_said(tmp_path):
    assert read_beacon(beacon_file(tmp_path, "agent0")) is None


def test_what_is_said_is_strict_json(tmp_path):
    file = beacon_file(tmp_path, "agent0")
    Beacon(file, lambda: {"doing_s": math.nan}).close()
    assert json.loads(file.read_text(), parse_constant=lambda constant: None)["doing_s"] == "nan"


def test_a_folder_that_ends_first_ends_the_beacon_without_an_error(tmp_path):
    folder = tmp_path / "fleet"
    folder.mkdir()
    beacon = Beacon(beacon_file(folder, "agent0"), dict, period_s=0.001)
    shutil.rmtree(folder, ignore_errors=True)
    beacon._thread.join(10)
    assert not beacon._thread.is_alive()
    beacon.close()
