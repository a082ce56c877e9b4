"""What comes after a run, and beside it: score an adapter, watch it play, export what was measured.

python -m pbt_agents evaluate runs/mine/best
"""

import gc
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module

from pbt_agents.command_line import parse
from pbt_agents.errors import ConfigError, PbtAgentsError, one_line, unknown_name

PROGRAM = "python -m pbt_agents"
COMMANDS = {
    "evaluate": "score an adapter on fresh tasks, beside its base model",
    "export": "write a run's metrics as Parquet and TensorBoard files",
    "play": "watch an adapter, or its base model, at a task, turn by turn",
}
"""Each is a file in commands/."""


def main(argv: Sequence[str]) -> int:
    """The exit code: 2 for what was asked wrongly, 1 for what failed, 130 after Ctrl-C or SIGTERM."""
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(overview())
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115  it may be closed, and lasts as long as the process
    try:
        return run(argv[0], argv[1:])
    except PbtAgentsError as error:
        print(f"error: {one_line(error)}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    except BrokenPipeError:  # who reads the output has seen enough, and what is left at exit goes nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:  # of what was named: too long, a folder in place of a file, a full disk
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def run(name: str, argv: Sequence[str]) -> int:
    if name not in COMMANDS:
        raise unknown_name("command", name, COMMANDS)
    command = import_module(f"pbt_agents.commands.{name}")
    code: int = command.main(parse(command.Args, argv, command.POSITIONAL, f"{PROGRAM} {name}"))
    sys.stdout.flush()
    return code


def overview() -> str:
    commands = "\n".join(f"  {name:<10} {sentence}" for name, sentence in COMMANDS.items())
    return (
        f"{__doc__}\nCommands:\n{commands}\n\n{PROGRAM} COMMAND --help says more of each. "
        "A run itself is started by experiments/sudoku_pbt.py."
    )


if __name__ == "__main__":
    code = main(sys.argv[1:])
    gc.freeze()  # there is nothing to collect at the end, and looking for it takes seconds once torch is there
    sys.exit(code)
