from pathlib import Path

import pytest

from pbt_agents.testing.tiny_model import random_model


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder: Path = tmp_path_factory.mktemp("model")
    return random_model(folder)
