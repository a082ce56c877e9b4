"""Engines of one's own for a while: Ray, a fleet, and the end of both."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pbt_agents.config import AgentConfig
from pbt_agents.ray_session import ray_session
from pbt_agents.rollout.fleet import EngineFleet, FleetInfo, fleet_name


@contextmanager
def engines(config: AgentConfig, model_path: str, out: Path | None = None) -> Iterator[FleetInfo]:
    """The fleet that `config` asks for, in a Ray of its own. When the block ends, however it does, no process and no file is left.

    Of a run in `out` the temporary folder can be found from there, too.
    """
    with ray_session(out):
        fleet = EngineFleet(fleet_name(str(out)), model_path, config)
        try:
            yield fleet.info
        finally:
            fleet.end()
