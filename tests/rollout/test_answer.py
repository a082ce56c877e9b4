import asyncio
import threading

import pytest

from pbt_agents.rollout.answer import Answer, deliver


def test_an_answer_from_another_thread_reaches_its_coroutine():
    async def ask() -> int:
        answer: Answer[int] = Answer()
        threading.Thread(target=answer.resolve, args=(3,)).start()
        return await answer

    assert asyncio.run(ask()) == 3


def test_an_exception_is_raised_where_the_answer_is_awaited():
    async def ask() -> int:
        answer: Answer[int] = Answer()
        threading.Thread(target=answer.fail, args=(KeyError("lost"),)).start()
        return await answer

    with pytest.raises(KeyError, match="lost"):
        asyncio.run(ask())


def test_many_answers_are_delivered_at_once_and_a_cancelled_one_does_no_harm():
    async def ask() -> list[int]:
        answers: list[Answer[int]] = [Answer() for _ in range(3)]
        tasks = [asyncio.ensure_future(_await(answer)) for answer in answers]
        await asyncio.sleep(0)
        tasks[1].cancel()
        threading.Thread(target=deliver, args=([(answer, index) for index, answer in enumerate(answers)],)).start()
        return [await tasks[0], await tasks[2]]

    assert asyncio.run(ask()) == [0, 2]


def test_an_answer_for_a_loop_that_is_closed_is_dropped():
    async def make() -> Answer[int]:
        return Answer()

    asyncio.run(make()).resolve(1)


async def _await(answer: Answer[int]) -> int:
    return await answer
