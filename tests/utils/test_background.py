"""The private event loop, as callers of other loops and threads use it."""

from __future__ import annotations

import asyncio
import threading

import pytest

from swerex_c.utils import background
from tests.support.wait import DEADLINE, settle, until, until_async


async def where() -> int:
    await asyncio.sleep(0)
    return threading.get_ident()


async def test_a_coroutine_runs_there_for_callers_elsewhere() -> None:
    here, there = threading.get_ident(), await background.run(where())
    assert here != there == background.run_blocking(where()) == background.spawn(where()).result(DEADLINE)

    async def twice() -> int:
        return await background.run(where())

    assert await background.run(twice()) == there

    async def fails() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await background.run(fails())


class Work:
    """Work that is never done, and whose cleanup ends when it may."""

    def __init__(self) -> None:
        self.begun, self.cleaning, self.may_end, self.ended = (threading.Event() for _ in range(4))

    async def __call__(self) -> None:
        self.begun.set()
        try:
            await asyncio.sleep(1000)
        finally:
            self.cleaning.set()
            await until_async(self.may_end.is_set)
            self.ended.set()


@pytest.mark.parametrize("again", [False, True], ids=["once", "twice"])
async def test_a_cancelled_caller_waits_for_the_cleanup(again: bool) -> None:
    work = Work()
    task = asyncio.create_task(background.run(work()))
    await until_async(work.begun.is_set)
    task.cancel()
    await until_async(work.cleaning.is_set)
    if again:
        task.cancel()
    await settle()
    assert not task.done()
    work.may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert work.ended.is_set()


def test_a_blocking_caller_waits_for_the_cleanup() -> None:
    work = Work()
    raised: list[tuple[type[BaseException], bool]] = []

    def call() -> None:
        try:
            background.run_blocking(work(), 0.5)
        except BaseException as error:
            raised.append((type(error), work.ended.is_set()))

    thread = threading.Thread(target=call)
    thread.start()
    assert work.begun.wait(DEADLINE)
    assert work.cleaning.wait(DEADLINE)
    assert not raised
    work.may_end.set()
    thread.join()
    assert raised == [(TimeoutError, True)]


def test_a_loop_that_is_gone_cancels_the_work() -> None:
    work = Work()
    work.may_end.set()

    async def wait() -> None:
        await background.run(work())

    loop = asyncio.new_event_loop()
    waiting = wait()
    task = loop.create_task(waiting)
    loop.run_until_complete(until_async(work.begun.is_set))
    waiting.close()
    until(work.ended.is_set)
    task.cancel()
    loop.close()
