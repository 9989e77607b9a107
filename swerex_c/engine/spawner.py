"""Start programs without blocking an event loop.

Starting a program takes one or two milliseconds, because the kernel blocks the caller until the new process has called
exec, and far longer (100 ms were measured) when other processes compete for the processors. A single caller starts its
program in the event loop, since a thread costs more. While others wait for programs or sessions in that loop, threads
start them, one after the other.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import TypeVar

from swerex_c.engine.completions import current_completions
from swerex_c.utils.threads import begin_in_thread

__all__ = ["start", "used"]

T = TypeVar("T")


@contextlib.contextmanager
def used() -> Iterator[None]:
    """Return a context for a caller's whole use of a program."""
    completions = current_completions()
    completions.programs += 1
    try:
        yield
    finally:
        completions.programs -= 1


async def start(begin: Callable[[], T], undo: Callable[[T], None] = lambda result: None) -> T:
    """Call `begin` in this thread or in another one.

    Returns its result, or raises its exception.

    Args:
        undo: called with the result if the caller was cancelled. A start that has begun is awaited even then.
    """
    completions = current_completions()
    if completions.programs < 2 and not completions.pending:
        return begin()
    async with completions.starting:
        call = begin_in_thread(begin)
        try:
            return await asyncio.shield(call)
        except asyncio.CancelledError:
            while not call.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait([call])
            if call.exception() is None:
                undo(call.result())
            raise
