import multiprocessing
import os
import signal

from pbt_agents.turnstile import Turnstile


def _hold(folder, number, held, release):
    with Turnstile(folder, 1, number).hold():
        held.set()
        release.wait(30)


def _try(folder, passed):
    with Turnstile(folder, 1, 1).hold():
        passed.set()


def test_a_second_holder_waits_until_the_first_lets_go_or_dies(tmp_path):
    context = multiprocessing.get_context("spawn")
    held, release, passed = context.Event(), context.Event(), context.Event()
    first = context.Process(target=_hold, args=(tmp_path, 0, held, release))
    first.start()
    assert held.wait(30)
    second = context.Process(target=_try, args=(tmp_path, passed))
    second.start()
    assert not passed.wait(1.0)
    os.kill(first.pid, signal.SIGKILL)
    assert passed.wait(30)
    first.join()
    second.join()


def test_two_places_let_two_through_at_once(tmp_path):
    one, two = Turnstile(tmp_path, 2, 0), Turnstile(tmp_path, 2, 0)
    with one.hold(), two.hold():
        pass
