import errno
import os
from pathlib import Path

import pytest

from pbt_agents.buffer.files import link_or_copy, new_folder


def no_links(source: Path, target: Path) -> None:
    raise OSError(errno.EXDEV, "invalid cross-device link")


def test_a_folder_appears_with_all_its_content(tmp_path: Path) -> None:
    with new_folder(tmp_path / "deep" / "made") as aside:
        (aside / "file").write_text("content")
        assert not (tmp_path / "deep" / "made").exists()
    assert (tmp_path / "deep" / "made" / "file").read_text() == "content"
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["made"]


def test_a_folder_whose_making_fails_does_not_appear(tmp_path: Path) -> None:
    """Case B72: half a snapshot is never taken for a whole one."""

    def fill_half() -> None:
        with new_folder(tmp_path / "made") as aside:
            (aside / "file").write_text("half")
            raise RuntimeError("half way")

    with pytest.raises(RuntimeError, match="half way"):
        fill_half()
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_aside_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "made.partial").mkdir()
    (tmp_path / "made.partial" / "old").write_text("left over")
    with new_folder(tmp_path / "made") as aside:
        (aside / "new").write_text("whole")
    assert [path.name for path in (tmp_path / "made").iterdir()] == ["new"]


def test_an_older_snapshot_of_the_same_name_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "precious").write_text("old")
    with pytest.raises(OSError, match="not empty"), new_folder(tmp_path / "made") as aside:
        (aside / "new").write_text("new")
    assert (tmp_path / "made" / "precious").read_text() == "old"


def test_where_links_are_impossible_a_copy_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = tmp_path / "source.arrow", tmp_path / "target.arrow"
    source.write_text("groups")
    monkeypatch.setattr(os, "link", no_links)
    link_or_copy(source, target)
    assert target.read_text() == "groups"
    assert not target.samefile(source)


def test_a_name_that_is_taken_is_an_error_and_not_a_reason_to_copy(tmp_path: Path) -> None:
    source, target = tmp_path / "source.arrow", tmp_path / "target.arrow"
    source.write_text("new")
    target.write_text("precious")
    with pytest.raises(FileExistsError):
        link_or_copy(source, target)
    assert target.read_text() == "precious"
