"""What an environment is: two methods on text, and a file that exports ENVIRONMENT.

Tokens are none of an environment's business. All its chance comes from the seed given to `reset`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from pbt_agents import plugins
from pbt_agents.config import EnvironmentConfig
from pbt_agents.errors import ConfigError
from pbt_agents.types import Split


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one action led to."""

    observation: str
    """For the next turn; unused after the last."""
    reward: float
    """For this action alone; NaN for no verdict, which is not 0."""
    terminated: bool = False
    """The task ended."""
    truncated: bool = False
    """A limit ended it, such as the number of turns."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Reported at the end of the episode, e.g. {'solved': 1.0}."""


class Environment(Protocol):
    """One task at a time. Instances never share state: many live in one process."""

    def reset(self, seed: int) -> str:
        """Start the task of this seed and return the first observation. Equal seeds give equal tasks."""
        ...

    def step(self, action: str) -> StepResult:
        """Judge one action, given as the text the policy wrote."""
        ...


class EnvironmentFactory(Protocol):
    """What ENVIRONMENT is. It refuses a variant or an option that it does not know, by name."""

    def __call__(self, variant: str, split: Split, **options: object) -> Environment: ...


def environment_maker(config: EnvironmentConfig, split: Split) -> Callable[[], Environment]:
    """Makes fresh environments of one split. Raises ConfigError for what cannot be made, such as an unknown variant, here and at once."""
    factory, variant = plugins.load("environment", config.id)
    if not callable(factory):
        raise ConfigError(
            f"environment '{config.id}' is no function that makes environments, it is {type(factory).__name__}. Name another object."
        )
    make = partial(factory, variant, split, **config.options)
    try:
        make()
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(f"environment '{config.id}' with options {dict(config.options)} cannot be made: {error!r}.") from error
    return make
