import os
import signal
import threading

import pytest

from pbt_agents.stop_sign import STOP_FILE, StopSign


def never():
    return False


@pytest.fixture(autouse=True)
def handlers_are_put_back():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    yield
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_first_signal_puts_the_sign_up_and_breaks_nothing_off(tmp_path, number):
    with StopSign(tmp_path, never) as sign:
        os.kill(os.getpid(), number)
        assert (tmp_path / STOP_FILE).exists()
        assert sign.signal == number


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_breaks_off(tmp_path, second):
    with StopSign(tmp_path, never):
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), second)


def test_the_end_of_the_patience_breaks_off_whatever_is_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr("pbt_agents.stop_sign._PATIENCE_S", 0.01)
    with StopSign(tmp_path, never, period_s=0.01):
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            threading.Event().wait(30)


def test_a_used_up_budget_puts_the_sign_up_and_is_no_interruption(tmp_path):
    asked = threading.Semaphore(0)

    def used_up():
        asked.release()
        return True

    with StopSign(tmp_path, used_up, period_s=0.01) as sign:
        assert asked.acquire(timeout=30)
        assert asked.acquire(timeout=30)  # the sign of the first look is up now
        assert (tmp_path / STOP_FILE).exists()
        assert sign.signal is None


def test_without_a_reason_there_is_no_sign(tmp_path):
    asked = threading.Semaphore(0)

    def used_up():
        asked.release()
        return False

    with StopSign(tmp_path, used_up, period_s=0.01):
        assert asked.acquire(timeout=30)
        assert asked.acquire(timeout=30)
        assert not (tmp_path / STOP_FILE).exists()


def test_the_sign_of_a_former_run_is_taken_down(tmp_path):
    (tmp_path / STOP_FILE).touch()
    with StopSign(tmp_path, never):
        assert not (tmp_path / STOP_FILE).exists()


def test_nobody_watches_after_the_block(tmp_path):
    with StopSign(tmp_path, never):
        pass
    assert "stop-sign" not in {thread.name for thread in threading.enumerate()}
