"""What a population waits for, in words, from what its members say they are at."""

from collections.abc import Mapping
from typing import Any

from pbt_agents.dashboard.words import amount_of_time

_LONG_S = 10.0
"""What has not taken so long is not worth a word."""
_NAMED = 3
"""Members; of the others only the number is told."""
_DOING = {"train": "trains", "wait_for_turn": "waits for its turn to train", "publish": "brings its adapter to the engines"}


def awaited(said: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Of the members' beacons. None while everything moves."""
    slow = sorted((beacon["doing_s"], name) for name, beacon in said.items() if beacon["doing_s"] >= _LONG_S)[::-1]
    if not slow:
        return None
    named = "; ".join(f"{name} {_doing(said[name])}" for _, name in slow[:_NAMED])
    return named + (f"; and {len(slow) - _NAMED} more" if len(slow) > _NAMED else "")


def _doing(beacon: Mapping[str, Any]) -> str:
    if beacon["doing"] in ("wait_for_groups", "evaluate"):
        if not beacon["episodes"]:
            return f"waits for rollouts to begin ({amount_of_time(beacon['doing_s'])})"
        why = " of an evaluation" if beacon["doing"] == "evaluate" else ""
        count = f"{beacon['episodes']} of {beacon['begun']} rollouts"
        return f"is waiting for {count}{why}, oldest {amount_of_time(beacon['oldest_s'])}"
    return f"{_DOING.get(beacon['doing'], 'waits for the next step')} ({amount_of_time(beacon['doing_s'])})"
