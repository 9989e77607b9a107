"""The event loop in which libraries are called that reach places: one in each process, in a thread of its own.

Callers' own loops come and go, and each call may be made in another; what a library keeps, such as its connections,
belongs to this loop.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ["call", "submit"]

T = TypeVar("T")

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None


def _running() -> asyncio.AbstractEventLoop:
    """The loop, which runs until the process ends."""
    global _loop
    with _lock:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_run, args=(_loop,), name="swerex-c calls", daemon=True).start()
        return _loop


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    loop.run_forever()


def _forget() -> None:
    """In a process that was forked there is no such thread; its loop is another."""
    global _loop, _lock
    _loop, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget)


def submit(work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
    """Have a coroutine run in the loop. Thread-safe. Cancelling the future cancels the coroutine."""
    return asyncio.run_coroutine_threadsafe(work, _running())


def call(work: Coroutine[Any, Any, T], timeout: float | None) -> T:
    """Run a coroutine in the loop, from a thread that is not the loop's, and return or raise what it does. Blocks.

    Raises:
        TimeoutError: if it takes longer than `timeout` seconds (None: it may); it is cancelled then, not waited for.
    """
    future = submit(work)
    try:
        return future.result(timeout)
    except concurrent.futures.TimeoutError:
        if not future.cancel():  # it has ended just now, or raised this itself
            return future.result()
        raise TimeoutError(f"No answer within {timeout:g} seconds") from None
    except concurrent.futures.CancelledError:
        raise
    except BaseException:
        future.cancel()
        raise
