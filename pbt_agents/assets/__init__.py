"""Files that ship inside the package. How the tiny model was made is in its README and in experiments/pretrain_tiny.py."""

from pathlib import Path


def tiny_model_path() -> Path:
    """Folder of the embedded base model with its tokenizer, as `from_pretrained` and vLLM load it."""
    return Path(__file__).parent / "tiny_sudoku"
