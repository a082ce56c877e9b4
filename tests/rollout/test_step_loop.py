import threading
from queue import SimpleQueue

import pytest

from pbt_agents.rollout.step_loop import StepLoop


class Counting:
    """Has work for `steps` steps, and notes in which order things happened."""

    def __init__(self, steps: int):
        self.left = steps
        self.seen: list[str] = []
        self.idle = threading.Event()
        self.deaths: SimpleQueue[BaseException] = SimpleQueue()
        self.loop = StepLoop(self.step, lambda: self.left > 0, self.deaths.put)

    def step(self) -> None:
        self.seen.append("step")
        self.left -= 1
        if not self.left:
            self.idle.set()


def refused(error: BaseException) -> None:
    pytest.fail(f"refused: {error}")


def test_closures_run_between_steps_in_the_order_they_came():
    work = Counting(steps=0)
    work.loop.start()
    done = threading.Event()

    def two_steps() -> None:
        work.seen.append("first")
        work.left = 2

    work.loop.call(two_steps, refused)
    work.loop.call(lambda: work.seen.append("second"), refused)
    work.loop.close()  # itself a closure, so it lies behind the two

    work.loop.call(done.set, lambda error: work.seen.append("too late"))
    assert work.seen == ["first", "second", "too late"]


def test_it_steps_while_there_is_work_and_then_sleeps():
    work = Counting(steps=3)
    work.loop.start()
    work.loop.call(lambda: work.seen.append("closure"), refused)
    assert work.idle.wait(timeout=5)
    work.loop.close()

    assert sorted(work.seen) == ["closure", "step", "step", "step"]


def test_a_failing_step_refuses_what_waits_and_what_comes_later():
    failure = ValueError("broken step")
    refusals: SimpleQueue[BaseException] = SimpleQueue()

    def step() -> None:
        loop.call(lambda: None, refusals.put)  # still in the inbox when the step fails
        raise failure

    deaths: SimpleQueue[BaseException] = SimpleQueue()
    loop = StepLoop(step, lambda: True, deaths.put)
    loop.start()

    assert deaths.get(timeout=5) is failure
    assert refusals.get(timeout=5) is failure
    loop.call(lambda: None, refusals.put)
    assert refusals.get(timeout=5) is failure


def test_the_closure_that_failed_is_refused_too():
    work = Counting(steps=0)
    work.loop.start()
    refusals: SimpleQueue[BaseException] = SimpleQueue()

    work.loop.call(lambda: 1 / 0, refusals.put)  # type: ignore[arg-type, return-value]

    assert isinstance(refusals.get(timeout=5), ZeroDivisionError)
    assert isinstance(work.deaths.get(timeout=5), ZeroDivisionError)
