"""Work that begins without a task and without a turn of the event loop, because it is often done without waiting.

A session waits for the answer to a short command by itself, for a moment, where its event loop has nothing else to do.
A loop that does not tell (uvloop's) is taken for busy, unless a server says that as far as it can tell there is only
this one request. None of a server's own timers minds to be some milliseconds late.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import Coroutine, Generator
from typing import Any, TypeVar

from swerex_c.runtime._wakeup import LoopWaker, current_waker

__all__ = ["at_once", "begun", "first_step", "rest", "silent_waker"]

T = TypeVar("T")


def silent_waker() -> LoopWaker | None:
    """The waker of the running event loop, if that is one that does not tell what it has to do."""
    return None if hasattr(asyncio.get_running_loop(), "_ready") else current_waker()


def first_step(waker: LoopWaker | None, work: Coroutine[Any, Any, Any]) -> Any:
    """Carry out what comes before the first waiting; returns what is waited for.

    Raises:
        StopIteration: with what it returned, if it never waited.
    """
    if waker is None:
        return work.send(None)
    waker.ready = ()
    try:
        return work.send(None)
    finally:
        waker.ready = (None,)


@types.coroutine
def rest(work: Coroutine[Any, Any, T], waits_for: Any) -> Generator[Any, Any, T]:
    """The rest of a coroutine that has begun, and waits."""
    try:
        while True:
            try:
                value = yield waits_for
            except BaseException as error:
                waits_for = work.throw(error)
            else:
                waits_for = work.send(value)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


def begun(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
    """Carry out what comes before the first waiting, and the rest as a task: what becomes of it."""
    done: asyncio.Future[T] = loop.create_future()
    try:
        waits_for = work.send(None)
    except StopIteration as end:
        done.set_result(end.value)
        return done
    except Exception as error:
        done.set_exception(error)
        return done
    return loop.create_task(rest(work, waits_for))


async def at_once(work: Coroutine[Any, Any, T]) -> T:
    """What it returns, where nothing else is to be done meanwhile."""
    try:
        waits_for = first_step(silent_waker(), work)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    return await rest(work, waits_for)
