"""The private event loop, as callers of other loops and threads use it."""

from __future__ import annotations

import asyncio
import threading

import pytest

from swerex_c.utils import background
from tests.support.wait import DEADLINE, until


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


@pytest.mark.parametrize("again", [False, True], ids=["once", "twice"])
async def test_a_cancelled_caller_waits_for_the_cleanup(again: bool) -> None:
    begun, ended = threading.Event(), threading.Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.sleep(1000)
        finally:
            await asyncio.sleep(0.1)
            ended.set()

    task = asyncio.create_task(background.run(work()))
    while not begun.is_set():
        await asyncio.sleep(0.001)
    task.cancel()
    if again:
        await asyncio.sleep(0.01)
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()


def test_a_loop_that_is_gone_cancels_the_work() -> None:
    begun, ended = threading.Event(), threading.Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.sleep(1000)
        finally:
            ended.set()

    async def wait() -> None:
        await background.run(work())

    loop = asyncio.new_event_loop()
    waiting = wait()
    task = loop.create_task(waiting)
    while not begun.is_set():
        loop.run_until_complete(asyncio.sleep(0.001))
    waiting.close()
    until(ended.is_set)
    task.cancel()
    loop.close()
