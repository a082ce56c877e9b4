"""A sweep on Ray's own schedulers: Optuna's samples, successive halving, four trials at a time on one fleet of engines."""

import math
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune.schedulers import ASHAScheduler
from ray.tune.search.optuna import OptunaSearch

from pbt_agents.capacity import cpus_per_member
from pbt_agents.evaluation import Evaluator, Scores
from pbt_agents.models import resolve_model
from pbt_agents.pipeline import AgentPipeline
from pbt_agents.population import PopulationSpec
from pbt_agents.resources import ResourceMeter, Usage, cores
from pbt_agents.rollout.fleet import EngineFleet
from pbt_agents.search_space import param_space
from pbt_agents.tuning import EXPERIMENT, experiment_fleet


class UsedUp(tune.Stopper):  # type: ignore[misc]
    """Ends all trials when the CPU seconds are used up."""

    def __init__(self, meter: ResourceMeter, cpu_seconds: float) -> None:
        self._meter, self._cpu_seconds = meter, cpu_seconds

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        return self._meter.usage().cpu_s > self._cpu_seconds


def sweep(spec: PopulationSpec, out: Path, episodes: int) -> tuple[Usage, Scores, dict[str, float]]:
    """What it used, the test scores of the trial that was chosen by validation, and the validation scores of the three best by fitness.

    No trial takes more updates than a member of the population could in the same CPU seconds, as far as its budget names them.
    """
    limit = spec.budget.cpu_seconds
    assert limit is not None, "a sweep ends by its CPU seconds"
    with _fleet(spec, out) as fleet, closing(ResourceMeter(out / "usage.json")) as meter:
        grid = tune.Tuner(
            tune.with_resources(AgentPipeline, {"cpu": cpus_per_member(spec, cores())}),
            param_space=param_space(spec.agent, spec.search_space),
            tune_config=tune.TuneConfig(
                metric="fitness",
                mode="max",
                num_samples=-1,
                max_concurrent_trials=spec.size,
                search_alg=OptunaSearch(seed=spec.agent.seed),
                scheduler=ASHAScheduler(
                    time_attr="updates",
                    max_t=spec.budget.updates or 100,
                    grace_period=2 * spec.perturbation_updates,
                    reduction_factor=3,
                ),
            ),
            run_config=tune.RunConfig(
                name=EXPERIMENT,
                storage_path=str(out.resolve()),
                stop=UsedUp(meter, limit),
                checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=1, num_to_keep=1),
                verbose=0,
            ),
        ).fit()
        used = meter.usage()
        saved = [result for result in grid if result.checkpoint and math.isfinite(result.metrics.get("fitness", math.nan))]
        best = sorted(saved, key=lambda result: -result.metrics["fitness"])[:3]
        adapters = {Path(result.path).name: Path(result.checkpoint.path) / "trainer" for result in best}
        with Evaluator(fleet.info, spec.agent, resolve_model(spec.agent.model.path)) as evaluator:
            validation = {name: evaluator.sampled(adapter, "validation", episodes) for name, adapter in adapters.items()}
            chosen = max(validation, key=lambda name: validation[name])
            return used, evaluator.adapter(adapters[chosen], "test", episodes), validation


@contextmanager
def _fleet(spec: PopulationSpec, out: Path) -> Iterator[EngineFleet]:
    fleet = experiment_fleet(spec, out)
    try:
        yield fleet
    finally:
        fleet.end()
