"""The embedded default: a tiny agent that learns multi-turn 4x4 Sudoku on a laptop's CPU."""

from ray import tune

from pbt_agents.config import AgentConfig, BufferConfig, EnvironmentConfig, EvaluationConfig
from pbt_agents.population import Budget, PopulationSpec
from pbt_agents.scheduling.mutation import Perturbation

POPULATION = PopulationSpec(
    agent=AgentConfig(
        environment=EnvironmentConfig("sudoku:tiny"),
        buffer=BufferConfig(max_reuse=2),
        evaluation=EvaluationConfig(updates_per_evaluation=10, evaluation_episodes=64),
    ),
    search_space={
        # Two decades: at the lower end nothing moves in the time given, at the upper end a stale batch collapses the policy.
        "learning_rate": tune.loguniform(1e-4, 1e-2),
        "ratio_max": tune.uniform(1.5, 8.0),
        "window": [1, 2, 4, 8, 16],
    },
    budget=Budget(updates=100),
    perturbation_updates=10,
    # Ten looks in all: with smaller steps a rate that is wrong by ten times is not left behind (experiments/simulate_search.py).
    explore=Perturbation(factor=3.0),
)

CHAT_MODEL = {"max_action_tokens": 512, "max_episode_tokens": 8192, "max_sequences": 16}
"""What differs for a chat model, which reads full prompts and thinks aloud."""
