"""What the main example cannot do is refused in one line, before anything starts, and nothing is made or left.

Every case in this process, where it is fast, and one of each kind as the command that a user types.
"""

import json
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import sudoku_pbt
from sudoku_pbt import Args, main

from pbt_agents.assets import tiny_model_path
from pbt_agents.command_line import parse
from pbt_agents.testing.job import Job

SCRIPT = Path(sudoku_pbt.__file__)
CASES = {
    "unknown setting": ("--set learning_rte=1", "unknown setting 'learning_rte'. Did you mean 'learning_rate'? All are listed in"),
    "unknown path": ("--set buffer.windw=1", "unknown setting 'buffer.windw'. Did you mean 'buffer.window'?"),
    "misspelt flag": ("--populaton 3", "unknown flag or value '--populaton'. Did you mean --population?"),
    "flag of another type": ("--population four", "--population: invalid int value: 'four'"),
    "flag without value": ("--seed", "--seed: expected one argument"),
    "no equals sign": ("--set max_reuse", "--set takes name=value, got 'max_reuse'"),
    "more than a float holds": (f"--set learning_rate=1{'0' * 400}", "learning_rate is a number, got 1000"),
    "nested too deep": (f"--set learning_rate={'-' * 5000}1", "learning_rate is a number, got '---"),
    "more engines than any machine has": ("--set engines=1099511627776", "engines must be at most 1,024, got 1,099,511,627,776"),
    "endless": ("--minutes 1e400", "minutes must be finite, got inf"),
    "options that no file holds": ("--set options={'a':b'x'}", "options hold numbers, words, lists and None, as JSON does"),
    "environment that is no function": ("--environment os.path:sep", "environment 'os.path:sep' is no function that makes environments"),
    "environment that ends Python": ("--environment broken.ends:MAZE", "'broken.ends:MAZE' cannot be imported: SystemExit(3)"),
    "environment that is no Python": ("--environment broken.garbled:MAZE", "'broken.garbled:MAZE' cannot be imported: SyntaxError("),
    "model of 5000 letters": (f"--model {'x' * 5000}", "model has a name of 5000 letters"),
    "no name of a directory": ("--out=", "--out and --resume take a directory, got an empty name"),
    "run of another version": ("--resume other", "other/run.json' is not as it should be: TypeError"),
    "no run": ("--resume listed", "listed/run.json' holds no settings of a run"),
    "run that was edited": (
        "--resume edited",
        "edited/run.json' was started with another population than its settings come to now: size was 3 and is 4. Undo what was changed",
    ),
    "run whose population was taken out": ("--resume bare", "bare/run.json' is not as it should be: KeyError('population')"),
    "recipe as a path": ("--recipe populations/sudoku.py", "population 'populations/sudoku.py' is a path, and modules are wanted"),
    "empty address": ("--address= --out new", "the address is empty. Name a Ray cluster as host:port"),
    "nobody": ("--population 0", "size of the population must be at least 1, got 0. A population of 1 trains one agent."),
    "fewer than nobody": ("--population -3", "size of the population must be at least 1, got -3"),
    "too many": ("--population 300", "300 members beside 1 engines do not fit into"),
    "group of one": ("--set group_size=1", "group_size must be at least 2, got 1. Advantages are relative to the group."),
    "group of a trillion": ("--set group_size=1099511627776", "group_size must be at most 4,096, got 1,099,511,627,776."),
    "half an attempt": ("--set group_size=2.5", "group_size is a whole number, got 2.5. Give an integer"),
    "group of words": ("--set group_size=abc", "group_size is a whole number, got 'abc'"),
    "negative window": ("--window -1", "window must be at least 0, got -1. It counts policy versions; 0 is synchronous."),
    "cap of one": ("--set ratio_max=1", "ratio_max caps policy / behaviour probability and must be above 1, got 1.0. For no cap"),
    "cap below one": ("--set ratio_max=0.5", "must be above 1, got 0.5"),
    "cap that is no number": ("--set ratio_max=nan", "ratio_max is a number, got 'nan'. Write it as"),
    "rank": ("--set lora_rank=7", "lora_rank must be one that the engine serves (1, 8, 16, 32, 64, 128, 256, 320, 512), got 7"),
    "no rate": ("--set learning_rate=0", "learning_rate must lie in (0, 1), got 0.0. Common are"),
    "rate that is no number": ("--set learning_rate=nan", "learning_rate is a number, got 'nan'. Write it as"),
    "infinite rate": ("--set learning_rate=inf", "learning_rate must lie in (0, 1), got inf"),
    "rate of None": ("--set learning_rate=None", "learning_rate is a number, got None"),
    "options": ("--set options={[]:1}", "options holds values by name, got '{[]:1}'"),
    "advantage": ("--set advantage=best", "advantage is one of"),
    "fleet": ("--set fleet=sharde", "fleet is 'shared' or 'per_agent', got 'sharde'"),
    "GPU share": ("--set gpus_per_engine=2", "gpus_per_engine must lie in [0, 1], got 2.0"),
    "seed": ("--seed -1", "seed must be at least 0, got -1"),
    "no updates": ("--updates 0", "updates must be above 0, got 0. Leave it out for no limit."),
    "negative minutes": ("--minutes -1", "minutes must be above 0, got -1.0"),
    "no CPU seconds": ("--cpu-seconds 0", "cpu_seconds must be above 0, got 0.0"),
    "no fitness": ("--target-fitness nan", "fitness must be finite, got nan"),
    "study": ("--study nonsense", "study 'nonsense' cannot be opened"),
    "one test episode": ("--test-episodes 1", "test_episodes must be at least 2, got 1"),
    "environment": ("--environment sudokku", "unknown environment 'sudokku'. Did you mean 'sudoku'?"),
    "variant": ("--environment sudoku:enormous", "unknown variant of sudoku 'enormous'"),
    "own environment": ("--environment no_such.maze:MAZE", "environment 'no_such.maze:MAZE' cannot be imported"),
    "objective": ("--set objective=cisppo", "unknown objective 'cisppo'. Did you mean 'cispo'?"),
    "variant of an objective": ("--set objective=cispo:nonsense", "no objective has any"),
    "unused cap": ("--set objective=reinforce ratio_max=3", "objective 'reinforce' does not use ratio_max"),
    "set twice": ("--set max_reuse=1 max_reuse=2", "--set names 'max_reuse' twice"),
    "set twice by its path": ("--set max_reuse=1 buffer.max_reuse=2", "--set names 'buffer.max_reuse' twice"),
    "set beside its flag": ("--window 1 --set window=0", "--set names 'window', which has a flag of its own. Use --window."),
    "set in place of its flag": ("--set seed=1", "Use --seed."),
    "slots": ("--set slots=3", "size is 4, but the fleet has slots for 3"),
    "nothing searched": (
        "--window 0 --set learning_rate=1e-3 ratio_max=3.0",
        "nothing is left to search of learning_rate, ratio_max, window",
    ),
    "no model": ("--model models/none", "model 'models/none' is neither a folder here nor a model the hub could give"),
    "empty model": ("--model models/empty", "models/empty' has no config.json. Save both model and tokenizer"),
    "model without tokenizer": ("--model models/untold", "models/untold' has no tokenizer_config.json. Save both"),
    "model without vocabulary": ("--model models/wordless", "models/wordless' has no tokenizer, that is none of tokenizer.json"),
    "model without weights": ("--model models/weightless", "models/weightless' has no *.safetensors file. Save both"),
    "model cut off": ("--model models/torn", "models/torn/model.safetensors' are cut off"),
    "unreadable model": ("--model models/garbled", "models/garbled/config.json' is not JSON"),
    "model without heads": ("--model models/headless", "models/headless/config.json' is not as it should be: KeyError"),
    "architecture": ("--model models/gpt2", "models/gpt2' is GPT2LMHeadModel, but adapters are made for LlamaForCausalLM"),
    "context": ("--set max_episode_tokens=5000", "max_episode_tokens is 5000, but the model in"),
    "another run": ("--out full", "'full' exists and is not an empty directory. Continue its run with --resume"),
    "file as directory": ("--out full/thesis.txt", "is not an empty directory"),
    "below a file": ("--out full/thesis.txt/run", "the directory 'full/thesis.txt/run' cannot be written: Not a directory. Choose another"),
    "not writable": ("--out /proc/run", "the directory '/proc/run' cannot be written: No such file or directory"),
    "too long a name": (f"--out new/{'x' * 256}", "cannot be written: File name too long"),
    "nothing to resume": ("--resume models/empty", "nothing to resume in 'models/empty'"),
    "nowhere to resume": ("--resume nowhere", "nothing to resume in 'nowhere'"),
    "resume with flags": ("--resume full --updates 7", "Leave the other flags out"),
    "estimate kept back": ("--estimate --quiet", "--quiet would keep back what --estimate is for"),
    "price below nothing": ("--price-per-hour -1", "price_per_hour must be at least 0, got -1.0"),
    "two outputs": ("--quiet --json", "--quiet and --json ask for different outputs"),
    "no cluster": ("--address 127.0.0.1:1 --out new", "no Ray cluster answers at '127.0.0.1:1': [Errno 111] Connection refused. Leave"),
}

COMMANDS = (
    "unknown setting",
    "misspelt flag",
    "nobody",
    "too many",
    "group of one",
    "negative window",
    "cap of one",
    "rank",
    "model without tokenizer",
    "architecture",
    "another run",
    "below a file",
    "not writable",
    "no cluster",
)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Where a user is: a directory of a run, and of models that are wrong in one way each."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").touch()
    edited = '{"settings": {}, "population": {"size": 3}}'
    for name, manifest in (
        ("other", '{"settings": {"populations": 4}}'),
        ("listed", "[]"),
        ("edited", edited),
        ("bare", '{"settings": {}}'),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text(manifest)
        (tmp_path / name / ".lock").touch()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "ends.py").write_text("raise SystemExit(3)")
    (tmp_path / "broken" / "garbled.py").write_text("MAZE = =")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    for name, wrong in WRONG_MODELS.items():
        shutil.copytree(tiny_model_path(), tmp_path / "models" / name, ignore=shutil.ignore_patterns("README.md", "__pycache__"))
        wrong(tmp_path / "models" / name)
    return tmp_path


def _empty(model):
    shutil.rmtree(model)
    model.mkdir()


def _another_architecture(model):
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"architectures": ["GPT2LMHeadModel"]}))


WRONG_MODELS = {
    "empty": _empty,
    "untold": lambda model: (model / "tokenizer_config.json").unlink(),
    "wordless": lambda model: (model / "tokenizer.json").unlink(),
    "weightless": lambda model: (model / "model.safetensors").unlink(),
    "torn": lambda model: (model / "model.safetensors").write_bytes((tiny_model_path() / "model.safetensors").read_bytes()[:-1]),
    "headless": lambda model: (model / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}'),
    "garbled": lambda model: (model / "config.json").write_text("{"),
    "gpt2": _another_architecture,
}


def paths(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def check(code, said, told, here, before):
    assert code == 2
    [line] = said.splitlines()
    assert line.startswith("error: ")
    assert told in line
    assert len(line) < 400
    assert paths(here) == before


@pytest.mark.parametrize("case", CASES)
def test_what_cannot_be_is_refused_in_one_line_before_anything_starts_and_nothing_is_left(case, here, monkeypatch, capsys):
    """B02, B78, B82."""
    monkeypatch.setattr(sudoku_pbt.signal, "signal", lambda *_: None)
    monkeypatch.setattr(sudoku_pbt, "ray_session", lambda *_: pytest.fail("Ray was started"))
    flags, told = CASES[case]
    before = paths(here)
    try:
        code = main(parse(Args, flags.split()))
    except SystemExit as stopped:
        code = stopped.code
    check(code, capsys.readouterr().err, told, here, before)


@pytest.mark.slow
@pytest.mark.parametrize("case", COMMANDS)
def test_the_command_says_the_same_within_seconds_and_exits_with_2(case, here):
    """B02, B78, B82: in CPU seconds, since others may be at work."""
    flags, told = CASES[case]
    before, began = paths(here), children_cpu_s()
    ended = subprocess.run([sys.executable, SCRIPT, *flags.split()], capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL)
    assert children_cpu_s() - began < 6
    check(ended.returncode, ended.stderr, told, here, before)


def children_cpu_s():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_path_with_blanks_and_letters_of_any_language_and_a_home_that_cannot_be_written_are_no_hindrance(tmp_path):
    """B77: and nothing is written outside the run's directory and TMPDIR, where only a cache of torch's stays."""
    place, temporary = tmp_path / "größe und leer", Path(tempfile.mkdtemp(prefix="a b", dir="/tmp"))
    place.mkdir()
    flags = ["--population", "1", "--updates", "2", "--test-episodes", "8", "--out", "lauf 1"]
    small = ["--set", "updates_per_evaluation=1", "evaluation_episodes=8", "group_size=4", "groups_per_batch=1"]
    environment = {"HOME": "/proc/none", "TMPDIR": str(temporary), "WANDB_MODE": "offline"}
    with Job([sys.executable, SCRIPT, *flags, *small], tmp_path / "log", environment, place) as job:
        assert job.wait(500) == 0, job.output
        job.wait_for_nobody(30)
    assert (place / "lauf 1" / "best" / "adapter_model.safetensors").exists()
    assert [path.name for path in place.iterdir()] == ["lauf 1"]
    assert [path.name for path in temporary.iterdir() if not path.name.startswith("torchinductor")] == []
    shutil.rmtree(temporary)
