"""Command lines made from a dataclass."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from pbt_agents.command_line import field_sentences, parse


@dataclass(frozen=True)
class Args:
    out: Path
    """Where to."""
    population: int = 4
    """Agents trained
    side by side, 100 % of them."""
    rate: float | None = None
    split: Literal["train", "test"] = "train"
    compare: bool = False
    seeds: tuple[int, ...] = (0, 1)


def test_fields_become_flags_of_their_own_types():
    given = ["--out", "runs/x", "--population", "8", "--rate", "1e-3", "--split", "test", "--compare", "--seeds", "3", "4"]
    assert parse(Args, given) == Args(Path("runs/x"), 8, 0.001, "test", True, (3, 4))


def test_a_default_stays_where_no_flag_is_given():
    assert parse(Args, ["--out", "x"]) == Args(Path("x"))


def test_several_values_add_up_and_of_single_ones_the_last_holds():
    given = ["--out", "x", "--seeds", "3", "4", "--population", "2", "--seeds", "5", "--population", "8"]
    assert parse(Args, given) == Args(Path("x"), population=8, seeds=(3, 4, 5))


def test_a_flag_of_several_values_may_have_none():
    assert parse(Args, ["--out", "x", "--seeds"]).seeds == ()


def test_a_boolean_flag_can_be_switched_off():
    assert parse(Args, ["--out", "x", "--no-compare"]).compare is False


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ([], "required: --out"),
        (["--out", "x", "--populaton", "8"], "error: unknown flag or value '--populaton'. Did you mean --population? All flags: "),
        (["--out", "x", "--popul", "8"], "unknown flag or value '--popul'. Did you mean --population?"),
        (["--out", "x", "--split", "tset"], "invalid choice: 'tset'"),
        (["--out", "x", "--population", "many"], "error: argument --population: invalid int value: 'many'. All flags: "),
        (["--out", "x", "8"], "error: unknown flag or value '8'. All flags: "),
    ],
)
def test_bad_input_is_refused_by_name(given, complaint, capsys):
    with pytest.raises(SystemExit) as stopped:
        parse(Args, given)
    assert stopped.value.code == 2
    [line] = capsys.readouterr().err.splitlines()
    assert complaint in line


def test_the_sentence_under_a_field_is_its_help(capsys):
    assert field_sentences(Args) == {"out": "Where to.", "population": "Agents trained side by side, 100 % of them."}
    with pytest.raises(SystemExit):
        parse(Args, ["--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "Agents trained side by side, 100 % of them. [4]" in shown
    assert "Command lines made from a dataclass." in shown


def test_a_positional_field_is_given_without_a_flag_and_may_be_left_out_when_it_has_a_default():
    assert parse(Args, ["runs/x", "--population", "8"], positional=("out",)).out == Path("runs/x")
    assert parse(Args, ["--out", "y", "5"], positional=("population",)) == Args(Path("y"), 5)
    assert parse(Args, ["--out", "y"], positional=("population",)) == Args(Path("y"))
    with pytest.raises(SystemExit, match="2"):
        parse(Args, [], positional=("out",))


def test_help_begins_with_the_program_and_shows_no_default_where_there_is_none(capsys):
    with pytest.raises(SystemExit, match="0"):
        parse(Args, ["--help"], program="python -m mine")
    told = capsys.readouterr().out
    assert told.startswith("usage: python -m mine ")
    assert "[None]" not in told
