"""Ray Tune's own API: PYTHONPATH=docs/examples .venv/bin/python experiments/custom_search_space.py"""

from ray import tune
from ray.tune.stopper import FunctionStopper

from pbt_agents.config import AgentConfig
from pbt_agents.pipeline import AgentPipeline
from pbt_agents.scheduling.scheduler import InPlacePBT
from pbt_agents.scheduling.state import SchedulerState
from pbt_agents.search_space import param_space

agent = AgentConfig().with_values({"environment.id": "treasure.environment:ENVIRONMENT", "objective": "treasure.objective:OBJECTIVE"})
space = {"learning_rate": tune.loguniform(3e-4, 3e-3), "ratio_max": tune.uniform(1.5, 8.0), "window": [1, 2, 4]}
scheduler = InPlacePBT(space, metric="fitness", mode="max", time_attr="version", perturbation_interval=10)
stop = FunctionStopper(lambda trial, result: result["updates"] >= 30 or result["fitness"] > 0.9)
tuner = tune.Tuner(
    tune.with_resources(AgentPipeline, {"cpu": 0.3}),
    param_space=param_space(agent, space),
    tune_config=tune.TuneConfig(num_samples=3, scheduler=scheduler),
    run_config=tune.RunConfig(
        stop=stop, callbacks=[SchedulerState(scheduler)], checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=True)
    ),
)
best = tuner.fit().get_best_result("fitness", "max")
print(best.metrics["fitness"], best.checkpoint.path)  # the adapter, in PEFT's format, is in trainer/
