"""From a manifest to the same run: values, puzzles and draws, each told by a process of its own.

Each process hashes words differently and has a random state of its own, as another day's would.
"""

import json
import os
import subprocess
import sys

import pytest

SCRIPT = """
import hashlib, json, sys
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from sudoku_pbt import Args, population
from pbt_agents.environment import environment_maker
from pbt_agents.json_files import plain
from pbt_agents.ring import _TASK_STREAM, Ring
from pbt_agents.run_folder import new_run, resumed_run
from pbt_agents.tuning import _first_values, population_scheduler

out = Path(sys.argv[1])
if not out.exists():
    args = Args(population=3, seed=int(sys.argv[2]), updates=20, set=("max_reuse=1",))
    with new_run(out, asdict(args), population(args).to_dict()):
        pass
with resumed_run(out) as manifest:
    settings = manifest["settings"]
    spec = population(Args(**{**settings, "set": tuple(settings["set"])}))

def boards(slot, lineage):
    place = SimpleNamespace(config=spec.agent, _place=SimpleNamespace(slot=slot), lineage=lineage)
    seeds = Ring._stream(place, _TASK_STREAM)
    make = environment_maker(spec.agent.environment, "train")
    return [make().reset(int(seeds.integers(1 << 62))) for _ in range(3)]

first, scheduler = _first_values(spec), population_scheduler(spec)
draws = [scheduler._search.values_from(values)[0] for values in first * 4]
told = {"spec": spec.to_dict(), "first": first, "boards": [boards(slot, 0) for slot in range(3)], "draws": draws}
print(json.dumps(plain(told)))
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")

    def by_a_process_of_its_own(run, seed):
        environment = {**os.environ, "PYTHONHASHSEED": str(len(list(folder.iterdir()))), "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-c", SCRIPT, folder / run, str(seed)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return {name: by_a_process_of_its_own(run, seed) for name, run, seed in (("first", "a", 7), ("again", "a", 0), ("other", "b", 8))}


@pytest.mark.parametrize("what", ["spec", "first", "boards", "draws"])
def test_a_manifest_leads_to_the_same_settings_first_values_puzzles_and_mutations(told, what):
    assert told["first"][what] == told["again"][what]


@pytest.mark.parametrize("what", ["spec", "first", "boards", "draws"])
def test_another_seed_leads_to_others(told, what):
    assert told["first"][what] != told["other"][what]


def test_members_play_different_puzzles(told):
    boards = told["first"]["boards"]
    assert len({board for member in boards for board in member}) == 9
