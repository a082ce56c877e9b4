"""Commands for a user, each a file with `Args`, whose POSITIONAL fields need no flag, and `main`. `python -m pbt_agents` runs them."""
