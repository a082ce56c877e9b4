"""What an engine counts while it runs."""

import os
from dataclasses import asdict, dataclass

from pbt_agents.types import Completion


@dataclass
class EngineCounters:
    """Sums since the engine started. Written by the step thread alone."""

    steps: int = 0
    step_s: float = 0.0
    step_cpu_s: float = 0.0
    """CPU seconds of the step thread inside steps."""
    requests: int = 0
    """Answered."""
    tokens_generated: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Of the prompt tokens, how many the prefix cache held."""
    swaps: int = 0
    """Adapters loaded."""
    swap_s: float = 0.0
    """For which no step ran because a slot was written."""

    divergences: int = 0
    """Times a policy sampled from what is not a distribution."""

    def count_step(self, seconds: float, cpu_s: float) -> None:
        self.steps += 1
        self.step_s += seconds
        self.step_cpu_s += cpu_s

    def count_completion(self, completion: Completion) -> None:
        self.requests += 1
        self.tokens_generated += len(completion.token_ids)
        self.prompt_tokens += completion.prompt_tokens
        self.cached_tokens += completion.cached_tokens

    def read(self) -> dict[str, float]:
        """The counters, and the process's CPU time and memory."""
        times = os.times()
        process = {"process_cpu_s": times.user + times.system} | _memory()
        return {name: float(value) for name, value in asdict(self).items()} | process


def _memory() -> dict[str, float]:
    """Resident and proportional set size of this process."""
    with open("/proc/self/smaps_rollup") as rollup:
        kibibytes = {line.split(":")[0]: int(line.split()[1]) for line in rollup if line.endswith("kB\n")}
    return {"rss_bytes": kibibytes["Rss"] * 1024.0, "pss_bytes": kibibytes["Pss"] * 1024.0}
