"""The main example's population with a look at its members every fifth update, so that a short run has clones."""

from dataclasses import replace

from pbt_agents.populations.sudoku import POPULATION as SUDOKU

POPULATION = replace(
    SUDOKU, agent=SUDOKU.agent.with_values({"updates_per_evaluation": 5, "evaluation_episodes": 32}), perturbation_updates=5
)
