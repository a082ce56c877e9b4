"""Population-based tuning of LLM agents that learn by reinforcement.

Importing the package is cheap: torch, vllm, ray and pyarrow are imported by the modules that use them.
"""

__version__ = "0.1.0"
