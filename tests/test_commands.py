"""What `python -m pbt_agents` makes of its first word, and of how a command ends."""

from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from pbt_agents import __main__ as program
from pbt_agents.errors import ConfigError, EngineDiedError


@dataclass
class Args:
    run: str = ""


@pytest.fixture
def command(monkeypatch):
    """A command that comes to what it is told."""

    def comes_to(result):
        def main(args):
            if isinstance(result, BaseException):
                raise result
            return result

        monkeypatch.setattr(program, "import_module", lambda name: SimpleNamespace(Args=Args, POSITIONAL=("run",), main=main))
        monkeypatch.setattr(program.signal, "signal", lambda *_: None)

    return comes_to


@pytest.mark.parametrize("argv", [[], ["--help"], ["-h"]])
def test_without_a_command_it_says_what_commands_there_are(argv, capsys):
    assert program.main(argv) == 0
    told = capsys.readouterr().out
    assert all(f"  {name} " in told and sentence in told for name, sentence in program.COMMANDS.items())


@pytest.mark.parametrize("name", program.COMMANDS)
def test_each_command_explains_itself(name, capsys):
    with pytest.raises(SystemExit, match="0"):
        program.main([name, "--help"])
    told = capsys.readouterr().out
    assert told.startswith(f"usage: python -m pbt_agents {name} ")
    assert f"    python -m pbt_agents {name} runs/mine" in told


def test_a_misspelt_command_is_answered_with_the_nearest_one(capsys):
    assert program.main(["evalute", "x"]) == 2
    assert "unknown command 'evalute'. Did you mean 'evaluate'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("result", "code", "told"),
    [
        (0, 0, ""),
        (ConfigError("no such rank"), 2, "error: no such rank\n"),
        (EngineDiedError("no answer"), 1, "error: no answer\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
    ],
)
def test_how_a_command_ends_is_its_exit_code_and_one_line(command, capsys, result, code, told):
    command(result)
    assert program.main(["play", "runs/mine"]) == code
    assert capsys.readouterr().err == told
