"""The main example's script with a smaller recipe: `small_job.py` takes its flags.

Members look at each other every second update, and the rates reach up to where a policy falls apart at once, so that there is
always somebody to replace.
"""

import gc
import sys
from dataclasses import replace

import sudoku_pbt
from ray import tune

from pbt_agents.command_line import parse
from pbt_agents.config import BufferConfig, EvaluationConfig, RolloutConfig, TrainerConfig
from pbt_agents.populations.sudoku import POPULATION

SMALL = replace(
    POPULATION,
    agent=replace(
        POPULATION.agent,
        rollout=RolloutConfig(group_size=4),
        buffer=BufferConfig(max_reuse=2),
        trainer=TrainerConfig(groups_per_batch=2),
        evaluation=EvaluationConfig(updates_per_evaluation=2, evaluation_episodes=16),
    ),
    search_space={**POPULATION.search_space, "learning_rate": tune.loguniform(1e-4, 1e-1)},
    perturbation_updates=2,
)

if __name__ == "__main__":
    args = parse(sudoku_pbt.Args)
    code = sudoku_pbt.main(args if args.resume else replace(args, recipe="small_job:SMALL"))
    gc.freeze()  # as the script itself does
    sys.exit(code)
