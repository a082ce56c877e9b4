import threading

import pytest

from pbt_agents.dashboard import stages
from pbt_agents.dashboard.events import Progress, StageEnded, StageStarted
from pbt_agents.dashboard.stages import STARTS, Stage, counted_eta, usual_eta, usual_start_s, write_start


class Told:
    def __init__(self):
        self.events, self.progress = [], threading.Event()

    def tell(self, event):
        self.events.append(event)
        if isinstance(event, Progress):
            self.progress.set()


def test_a_stage_tells_its_beginning_how_far_it_is_and_its_end(monkeypatch):
    monkeypatch.setattr(stages, "_PERIOD_S", 0.01)
    told = Told()
    with Stage(told, "scoring", "scoring the members", done=lambda: 30, total=120, unit="episodes") as stage:
        assert told.progress.wait(10)
        stage.result = "all are scored"
    first, second, *_, last = told.events
    assert first == StageStarted("scoring", "scoring the members", None)
    assert (second.done, second.total, second.unit) == (30, 120, "episodes")
    assert second.eta_s == pytest.approx(3 * second.seconds)
    assert (last.stage, last.result) == ("scoring", "all are scored")
    assert isinstance(last, StageEnded)


def test_a_stage_that_is_broken_off_has_no_end():
    told = Told()
    with pytest.raises(KeyboardInterrupt), Stage(told, "engines", "starting the engines"):
        raise KeyboardInterrupt
    assert [type(event) for event in told.events] == [StageStarted]


def test_the_time_left_is_that_of_the_rest_at_the_same_pace():
    assert counted_eta(10.0, 20, 100) == 40.0
    assert counted_eta(10.0, 0, 100) is None


def test_what_takes_longer_than_usual_has_no_time_left_that_would_be_true():
    assert [usual_eta(seconds, 20.0) for seconds in (5.0, 19.0, 21.0)] == [15.0, 1.0, None]
    assert usual_eta(5.0, None) is None


def test_the_usual_start_is_the_last_one_with_the_same_model_here_or_beside(tmp_path):
    for number, (model, seconds) in enumerate([("tiny", 20.0), ("tiny", 30.0), ("large", 200.0)]):
        (tmp_path / f"run{number}").mkdir()
        write_start(tmp_path / f"run{number}", model, seconds)
    assert usual_start_s(tmp_path / "new", "tiny") == 30.0
    assert usual_start_s(tmp_path / "new", "large") == 200.0
    assert usual_start_s(tmp_path / "new", "other") is None


@pytest.mark.parametrize("content", ["", "{", "[]", '{"seconds": 3}', '{"model": "tiny", "seconds": "long"}'])
def test_a_damaged_note_of_another_run_is_passed_over(tmp_path, content):
    for name in ("mine", "good", "damaged"):
        (tmp_path / name).mkdir()
    write_start(tmp_path / "good", "tiny", 9.0)
    (tmp_path / "damaged" / STARTS).write_text(content)
    assert usual_start_s(tmp_path / "mine", "tiny") == 9.0
