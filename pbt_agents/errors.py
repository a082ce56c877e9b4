"""The errors a user may meet. Each message names the rule, the value and the remedy."""

import difflib
from collections.abc import Iterable

_LONGEST = 1500
"""Letters of an error that are shown."""


class PbtAgentsError(Exception):
    """Base of every error raised on purpose."""


class ConfigError(PbtAgentsError):
    """A setting is wrong; raised before anything expensive starts."""


class EpisodeError(PbtAgentsError):
    """One episode is lost, by its environment or its limits. It is counted, and the run goes on."""


class NoExperienceError(PbtAgentsError):
    """An agent cannot play: group after group is lost. Its policy diverged, or its environment is broken."""


class NothingToLearnError(PbtAgentsError):
    """Group after group, all attempts score alike: the task is solved, or out of reach. The agent plays on."""


class EngineError(PbtAgentsError):
    """The engine refused or failed one request; other requests are unaffected."""


class EngineDiedError(EngineError):
    """The engine itself is gone; its fleet has the plan for that."""


class GuardError(PbtAgentsError):
    """A run-time check found that what ran is not what was asked; training on would be silently wrong."""


def one_line(error: BaseException | str) -> str:
    """What an error says, as a user reads it: whatever a user's own code put into it, no longer than a screen."""
    line = " ".join(str(error).split())
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}... ({len(line) - _LONGEST} letters more)"


def unknown_name(kind: str, name: str, known: Iterable[str], listed: str | None = None) -> ConfigError:
    """The error for a misspelt name, with the nearest known one. A list too long for one line is named by `listed`, where it stands."""
    known = sorted(known)
    near = nearest(name, known)
    hint = f" Did you mean '{near}'?" if near else ""
    whole = f"All are listed in {listed}" if listed else f"Known: {', '.join(known)}"
    return ConfigError(f"unknown {kind} '{name}'.{hint} {whole}.")


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is most like this one, if any is."""
    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)), None)
