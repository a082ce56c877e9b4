import re
from typing import get_args

import pytest

from pbt_agents.environments.arithmetic import ENVIRONMENT
from pbt_agents.errors import ConfigError
from pbt_agents.types import Split


def total(observation: str) -> int:
    first, second = map(int, re.findall(r"(\d+) \+ (\d+)", observation)[0])
    return first + second


def test_the_right_sum_is_worth_less_at_each_attempt():
    for misses in range(3):
        environment = ENVIRONMENT("", "train")
        right = total(environment.reset(5))
        for _ in range(misses):
            assert environment.step(r"\boxed{1}").reward == 0
        result = environment.step(rf"so it is \boxed{{ {right} }}")
        assert (result.reward, result.terminated, result.truncated) == (1 / (misses + 1), True, False)
        assert result.metrics == {"solved": 1, "attempts": misses + 1}


def test_a_miss_gets_a_hint_and_the_last_one_ends_it():
    environment = ENVIRONMENT("", "train", attempts=4)
    right = total(environment.reset(0))
    results = [environment.step(rf"\boxed{{{answer}}}") for answer in (right - 1, right + 1, "seven", "9" * 5000)]
    hints = ("Too low.", "Too high.", "I found no number.", "I found no number.")
    assert all(result.observation.startswith(hint) for result, hint in zip(results, hints, strict=True))
    assert [result.truncated for result in results] == [False, False, False, True]
    assert not any(result.terminated for result in results)
    assert results[3].metrics == {"solved": 0, "attempts": 4}


def test_both_numbers_have_the_digits_asked_for():
    for variant, digits in (("", 3), ("long", 8)):
        for seed in range(20):
            sums = re.findall(r"(\d+) \+ (\d+)", ENVIRONMENT(variant, "train").reset(seed))
            assert [len(number) for number in sums[0]] == [digits, digits]


def test_no_sum_is_in_two_splits():
    def pairs(split: Split) -> set[tuple[str, ...]]:
        prompts = [ENVIRONMENT("", split, digits=1).reset(seed) for seed in range(300)]
        return {tuple(sorted(re.findall(r"(\d+) \+ (\d+)", prompt)[0])) for prompt in prompts}

    train, validation, test = (pairs(split) for split in get_args(Split))
    assert len(train | validation | test) == len(train) + len(validation) + len(test) == 45  # unordered pairs of 1 to 9


def test_settings_out_of_range_are_refused():
    with pytest.raises(ConfigError, match="got 19 and 3"):
        ENVIRONMENT("", "train", digits=19)
    with pytest.raises(ConfigError, match="got 3 and 0"):
        ENVIRONMENT("", "train", attempts=0)
