"""Waiting in tests: for an event, never for a time.

Nothing but `DEADLINE` bounds a duration from above; what measures a duration is marked `idle`, and runs alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from swerex_c.deployment.abstract import AbstractDeployment

DEADLINE = 60.0
"""Seconds after which whatever was waited for counts as hanging, on a machine however busy."""

PAUSE = 0.01
"""Seconds between two looks at a condition."""


def until(condition: Callable[[], Any], what: str = "it does not come to hold") -> Any:
    """Return what the condition gives as soon as that is true; fail with `what` at the deadline."""
    end = time.monotonic() + DEADLINE
    while not (found := condition()):
        assert time.monotonic() < end, what
        time.sleep(PAUSE)
    return found


async def until_async(condition: Callable[[], Any], what: str = "it does not come to hold") -> Any:
    """Wait as `until` does, while the event loop goes on. The condition may be a coroutine."""
    end = time.monotonic() + DEADLINE
    while True:
        found = condition()
        if inspect.isawaitable(found):
            found = await found
        if found:
            return found
        assert time.monotonic() < end, what
        await asyncio.sleep(PAUSE)


async def cancel(task: asyncio.Future[Any]) -> None:
    """Cancel a task, and wait until it has ended as cancelled."""
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled(), task


def doubled(seconds: float) -> Iterator[float]:
    """Yield timeouts, each twice the one before, to try again what was not far enough by then; fail at the deadline."""
    while seconds < DEADLINE:
        yield seconds
        seconds *= 2
    raise AssertionError("it does not come far enough")


async def until_dead(place: AbstractDeployment, timeout: float = 5.0) -> None:
    """Ask whether it lives until it does not, or that raises."""

    async def is_dead() -> bool:
        return not await place.is_alive(timeout=timeout)

    await until_async(is_dead, "it lives")


async def until_ready(fd: int, *, write: bool = False) -> None:
    """Wait until a descriptor can be read or written without blocking."""
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    add, remove = (loop.add_writer, loop.remove_writer) if write else (loop.add_reader, loop.remove_reader)
    add(fd, lambda: ready.done() or ready.set_result(None))
    try:
        await ready
    finally:
        remove(fd)


async def settle(turns: int = 50) -> None:
    """Let everything run that is ready to run."""
    for _ in range(turns):
        await asyncio.sleep(0)


@contextlib.contextmanager
def quicker_than(seconds: float) -> Iterator[None]:
    """Fail when the block takes longer. For tests that are marked `idle`."""
    start = time.monotonic()
    yield
    spent = time.monotonic() - start
    assert spent < seconds, f"took {spent:.2f} s, more than {seconds:.2f} s"
