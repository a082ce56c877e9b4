from dataclasses import dataclass

import pytest

from pbt_agents.environments._options import choose
from pbt_agents.errors import ConfigError


@dataclass(frozen=True)
class Maze:
    width: int = 5
    wall_penalty: float | None = None


VARIANTS = {"": Maze(), "wide": Maze(width=50)}


def test_an_option_stands_in_for_the_variants_value():
    assert choose("maze", VARIANTS, "wide", "train", {}) == Maze(50)
    assert choose("maze", VARIANTS, "wide", "train", {"width": 7, "wall_penalty": 1}) == Maze(7, 1)
    assert choose("maze", VARIANTS, "", "test", {"wall_penalty": None}) == Maze()


@pytest.mark.parametrize(
    ("variant", "split", "options", "message"),
    [
        ("wde", "train", {}, "unknown variant of maze 'wde'. Did you mean 'wide'"),
        ("wide", "trian", {}, "unknown split 'trian'. Did you mean 'train'"),
        ("wide", "train", {"widht": 3}, "unknown option of maze 'widht'. Did you mean 'width'"),
        ("wide", "train", {"width": "3"}, "option width of maze must be int, got '3', which is str"),
        ("wide", "train", {"width": 3.0}, "option width of maze must be int, got 3.0, which is float"),
        ("wide", "train", {"wall_penalty": "1"}, r"option wall_penalty of maze must be float \| None, got '1', which is str"),
    ],
)
def test_what_is_not_known_is_refused_with_the_nearest_that_is(variant: str, split: str, options: dict[str, object], message: str):
    """B82."""
    with pytest.raises(ConfigError, match=message):
        choose("maze", VARIANTS, variant, split, options)
