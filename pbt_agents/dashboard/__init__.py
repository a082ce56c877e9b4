"""Ways to watch a population. All read the same results, from the driver."""
