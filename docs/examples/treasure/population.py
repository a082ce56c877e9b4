"""Two agents that hunt for treasure, for some minutes on a CPU."""

from ray import tune

from pbt_agents.config import AgentConfig, BufferConfig, EnvironmentConfig, EvaluationConfig
from pbt_agents.population import Budget, PopulationSpec

POPULATION = PopulationSpec(
    agent=AgentConfig(
        environment=EnvironmentConfig("treasure.environment:ENVIRONMENT", options={"turns": 4}),
        buffer=BufferConfig(max_reuse=2),
        evaluation=EvaluationConfig(updates_per_evaluation=5, evaluation_episodes=64),
    ),
    search_space={"learning_rate": tune.loguniform(3e-4, 3e-3), "window": [1, 2, 4]},
    budget=Budget(updates=20),
    perturbation_updates=5,
).of_size(2)
