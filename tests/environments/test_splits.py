from collections import Counter

import pytest

from pbt_agents.environments._splits import check_split, split_of
from pbt_agents.errors import ConfigError


def test_a_name_is_in_the_same_split_on_every_machine():
    # Their CRC-32, as gzip writes it: 140662621, 30677878 and 2439710439.
    assert [split_of(name) for name in ("k", "g", "h")] == ["train", "validation", "test"]


def test_a_tenth_of_the_tasks_is_kept_back_for_each_of_validation_and_test():
    counts = Counter(split_of(str(number)) for number in range(10_000))
    assert 900 < counts["validation"] < 1100
    assert 900 < counts["test"] < 1100


def test_a_misspelt_split_is_refused():
    with pytest.raises(ConfigError, match="Did you mean 'validation'"):
        check_split("validaton")
