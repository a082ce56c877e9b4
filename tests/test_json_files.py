import json
import math
import os
import signal
import sys

import numpy as np
import pytest
from numpy.random import default_rng

from pbt_agents.errors import ConfigError
from pbt_agents.json_files import difference, read_json, write_json


def read_strictly(path):
    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(path.read_text(), parse_constant=refuse)


def test_numbers_that_json_has_no_word_for_become_strings_that_float_reads(tmp_path):
    write_json(tmp_path / "a.json", {"score": float("nan"), "list": [float("inf"), -float("inf")], "fine": 0.5})
    content = read_strictly(tmp_path / "a.json")
    assert content == {"score": "nan", "list": ["inf", "-inf"], "fine": 0.5}
    assert float(content["list"][1]) == -float("inf")


def test_numpys_scalars_and_tuples_are_written_as_plain_values(tmp_path):
    write_json(tmp_path / "a.json", {3: (np.int64(7), np.float32(0.5), np.bool_(True))})
    assert read_strictly(tmp_path / "a.json") == {"3": [7, 0.5, True]}
    assert [file.name for file in tmp_path.iterdir()] == ["a.json"]


def test_the_first_value_that_is_stored_otherwise_is_named_by_its_path(tmp_path):
    now = {"agent": {"rate": 1e-3, "cap": float("inf"), "window": (1, 2)}, "size": 4, "new": "since"}
    write_json(tmp_path / "a.json", {name: value for name, value in now.items() if name != "new"})
    assert difference(read_json(tmp_path / "a.json"), now) is None
    assert difference({"agent": {"rate": 1e-3, "cap": 5.0}, "size": 3}, now) == "agent.cap was 5.0 and is 'inf'"
    assert difference({"gone": 1}, now) == "gone was 1 and is None"


def test_a_write_that_fails_leaves_the_former_file(tmp_path):
    """B72."""
    write_json(tmp_path / "a.json", {"value": 1})
    with pytest.raises(TypeError):
        write_json(tmp_path / "a.json", {"value": object()})
    assert read_strictly(tmp_path / "a.json") == {"value": 1}


def test_what_was_written_is_read_back_as_it_was(tmp_path):
    content = {"cap": math.inf, "list": [-math.inf, 1, "word"], "inner": {"none": None}}
    write_json(tmp_path / "a.json", content)
    assert read_json(tmp_path / "a.json") == content


def test_a_file_that_is_no_json_is_named(tmp_path):
    (tmp_path / "a.json").write_text('{"half": ')
    with pytest.raises(ConfigError, match=r"a\.json' cannot be read"):
        read_json(tmp_path / "a.json")


def killed_after(lines, work):
    """A fork of this process that kills itself in `work` after so many lines of Python, or ends with it."""
    child = os.fork()
    if child == 0:
        left = iter(range(lines))

        def trace(frame, event, argument):
            if next(left, None) is None:
                os.kill(os.getpid(), signal.SIGKILL)
            return trace

        sys.settrace(trace)
        work()
        os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def test_a_writer_that_is_killed_at_fifty_random_moments_always_leaves_a_whole_file(tmp_path):
    """B72: the former one or the new one, whose values are all alike."""
    path, rng, killed, seen = tmp_path / "a.json", default_rng(0), 0, set()
    write_json(path, [0] * 40)
    for number in range(1, 51):
        killed += killed_after(int(rng.integers(1, 1600)), lambda number=number: write_json(path, [number] * 40))
        [value] = set(read_json(path))
        seen.add(value)
    assert killed >= 25
    assert len(seen) > 5
