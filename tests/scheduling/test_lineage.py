"""The journal survives crashes, and a line of descent becomes a schedule."""

import json
import math
import os

import numpy as np
import pytest

from pbt_agents.scheduling.lineage import CloneEvent, Lineage, Segment, open_lineage, write_lineage, write_schedule


def clone(number, parent, child, step, rate, **fields):
    scores = {"score_before": 0.1, "parent_score": 0.5}
    values = {"values_before": {"rate": 0.0}, "parent_values": {"rate": 1.0}, "values": {"rate": rate}}
    saved = {"checkpoint": f"{parent}/checkpoint", "parent_step": step, "child_step": step + 7}
    return CloneEvent(**{"number": number, "time_s": 1000.0, "parent": parent, "child": child, **saved, **values, **scores, **fields})


@pytest.fixture
def journal(tmp_path):
    return tmp_path / "run" / "lineage.jsonl"


@pytest.fixture
def three_clones(journal):
    """a -> b at 10, b -> c at 20, and c, now on the line a, b, c, is copied to d at 30. Meanwhile a became a clone of d."""
    lineage = Lineage(journal)
    for member, rate in zip("abcd", (1.0, 2.0, 3.0, 4.0), strict=True):
        lineage.add_member(member, {"rate": rate})
    lineage.add_clone(clone(0, "a", "b", 10, 1.25))
    lineage.add_clone(clone(1, "b", "c", 20, 1.5))
    lineage.add_clone(clone(2, "d", "a", 25, 5.0))
    lineage.add_clone(clone(3, "c", "d", 30, 1.2))
    return lineage


def test_the_winners_schedule_follows_its_ancestry_from_step_0(three_clones):
    """B54."""
    assert three_clones.schedule("d") == [
        Segment(0, "a", {"rate": 1.0}),
        Segment(10, "b", {"rate": 1.25}),
        Segment(20, "c", {"rate": 1.5}),
        Segment(30, "d", {"rate": 1.2}),
    ]
    assert three_clones.schedule("a") == [Segment(0, "d", {"rate": 4.0}), Segment(25, "a", {"rate": 5.0})]


def test_values_that_nobody_trained_with_are_not_in_the_schedule(journal):
    """B54."""
    lineage = Lineage(journal)
    for member in "abc":
        lineage.add_member(member, {"rate": 1.0})
    lineage.add_clone(clone(0, "a", "b", 10, 2.0))
    lineage.add_clone(clone(1, "b", "c", 10, 3.0))
    assert lineage.schedule("c") == [Segment(0, "a", {"rate": 1.0}), Segment(10, "c", {"rate": 3.0})]


def test_reopening_the_journal_gives_the_same_lineage(three_clones, journal):
    """B52."""
    three_clones.applied(3, latency_s=0.02)
    three_clones.scored("d", 0.7)
    again = Lineage(journal)
    assert (again.members, again.clones, again.next_number) == (three_clones.members, three_clones.clones, 4)
    assert (again.clones[3].latency_s, again.clones[3].score_after) == (0.02, 0.7)


def test_a_record_is_synced_to_the_disk_before_it_counts(three_clones, journal, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append((journal.read_bytes().count(b"\n"), len(three_clones.clones))))
    three_clones.add_clone(clone(4, "d", "b", 40, 1.1))
    assert synced == [(9, 4)]


def test_only_the_first_result_after_a_clone_counts_as_its_score(three_clones):
    three_clones.scored("d", 0.7)
    three_clones.scored("d", 0.9)
    three_clones.scored("nobody", 0.9)
    assert [event.score_after for event in three_clones.clones.values()] == [None, None, None, 0.7]


def test_a_record_torn_by_a_crash_is_cut_off_and_the_next_one_starts_clean(three_clones, journal):
    """B72."""
    whole = journal.read_bytes()
    journal.write_bytes(whole + b'{"kind": "clone", "num')
    torn = Lineage(journal)
    assert torn.clones == three_clones.clones
    torn.add_clone(clone(4, "d", "b", 40, 1.1))
    assert Lineage(journal).clones == torn.clones
    assert journal.read_bytes().startswith(whole)


def test_clones_that_a_restored_member_does_not_know_of_are_undone_without_gap_or_duplicate(three_clones, journal):
    """B52."""
    three_clones.undo_unless("d", {"rate": 4.0})
    three_clones.undo_unless("c", {"rate": 1.5})
    assert list(three_clones.clones) == [0, 1, 2]
    assert three_clones.next_number == 4
    three_clones.add_clone(clone(4, "c", "d", 35, 1.3))
    again = Lineage(journal)
    assert list(again.clones) == [0, 1, 2, 4]
    assert [segment.step for segment in again.schedule("d")] == [0, 10, 20, 35]


def test_another_runs_journal_in_the_same_folder_is_set_aside(three_clones, journal):
    assert open_lineage(journal, "a").clones == three_clones.clones
    fresh = open_lineage(journal, "another")
    assert (fresh.members, fresh.clones) == ({}, {})
    [aside] = journal.parent.glob("lineage.*.jsonl")
    assert Lineage(aside).clones == three_clones.clones


def test_files_are_strict_json_that_keeps_numbers_that_are_not_finite(journal):
    lineage = Lineage(journal)
    lineage.add_member("a", {"ratio_max": math.inf, "window": np.int64(4)})
    lineage.add_member("b", {"ratio_max": 2.0, "window": 8})
    lineage.add_clone(clone(0, "a", "b", 10, math.inf, score_before=math.nan))
    again = Lineage(journal)
    assert again.members["a"] == {"ratio_max": math.inf, "window": 4}
    assert math.isnan(again.clones[0].score_before)

    write_lineage(again, journal.parent / "lineage.json")
    write_schedule(again, journal.parent / "schedule.json", "b", 0.5, "version")
    refuse = pytest.fail
    written = json.loads((journal.parent / "lineage.json").read_text(), parse_constant=refuse)
    assert written["clones"][0]["score_before"] == "nan"
    schedule = json.loads((journal.parent / "schedule.json").read_text(), parse_constant=refuse)
    assert schedule == {
        "winner": "b",
        "score": 0.5,
        "step_unit": "version",
        "segments": [
            {"step": 0, "member": "a", "values": {"ratio_max": "inf", "window": 4}},
            {"step": 10, "member": "b", "values": {"rate": "inf"}},
        ],
    }


def test_a_file_that_cannot_be_written_leaves_the_former_one_whole(journal):
    """B72."""
    lineage = Lineage(journal)
    lineage.add_member("a", {"rate": 1.0})
    path = journal.parent / "lineage.json"
    write_lineage(lineage, path)
    former = path.read_text()
    lineage.members["a"] = {"rate": object()}
    with pytest.raises(TypeError):
        write_lineage(lineage, path)
    assert path.read_text() == former
