"""Two agents that hunt for treasure, for a few minutes on a CPU."""

from ray import tune

from pbt_agents.config import AgentConfig, BufferConfig, EnvironmentConfig, EvaluationConfig
from pbt_agents.population import Budget, PopulationSpec

POPULATION = PopulationSpec(
    agent=AgentConfig(
        environment=EnvironmentConfig("treasure.environment:ENVIRONMENT", options={"turns": 4}),
        buffer=BufferConfig(max_reuse=2),
        evaluation=EvaluationConfig(updates_per_evaluation=5, evaluation_episodes=64),
    ),
    search_space={"learning_rate": tune.loguniform(3e-4, 1e-2), "window": [1, 2, 4]},
    budget=Budget(updates=40),
    perturbation_updates=10,
).of_size(2)
