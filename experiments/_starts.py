"""Where a search begins that was started badly: learning rates about ten times off the good one of the tiny agent, 1e-3."""

from pbt_agents.search_space import LogRange

LOW, HIGH = LogRange(0.7e-4, 1.4e-4), LogRange(0.7e-2, 1.4e-2)
"""A sweep looks nowhere else."""
WIDE = LogRange(1e-5, 1e-1)
"""Within which a population may leave them."""
