"""Train the population of population.py; its directory is runs/treasure.

PYTHONPATH=docs/examples .venv/bin/python docs/examples/treasure/train.py
"""

from pathlib import Path

from pbt_agents.ray_session import ray_session
from pbt_agents.training import train
from treasure.population import POPULATION

if __name__ == "__main__":
    out = Path("runs/treasure")
    out.mkdir(parents=True)
    with ray_session(out):
        outcome = train(POPULATION, out)
    if outcome is not None and outcome.best is not None:
        print(f"base {outcome.base}\nbest {outcome.scores}, of {outcome.best.name}; its adapter is in {out / 'best'}")
