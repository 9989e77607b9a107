"""Calls of blocking functions in daemon threads.

Daemon threads do not prevent the process from exiting. The loop's own executor has a few threads for all callers, and
the process waits for them when it exits: a few reads from a file system that does not respond would block all its other
callers, and the exit as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import errno
import threading
import weakref
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from swerex_c.exceptions import ResourceError
from swerex_c.utils.cancellation import this_call
from swerex_c.utils.wait import settle

__all__ = [
    "begin_in_thread",
    "in_file_thread",
    "in_thread",
    "in_thread_settled",
    "in_thread_to_its_end",
    "start_thread",
]

P = ParamSpec("P")
T = TypeVar("T")

_MAX_FILE_CALLS = 16
"""Maximum number of calls for files that run at once: more gain nothing on a disk, and each needs a thread."""

_LONG_SECONDS = 0.5
"""Seconds after which a call for a file no longer counts: it may wait for a disk that never responds."""

_CANCELLED_SECONDS = 60.0
"""Seconds to wait for a cancelled call to end."""

_file_slots: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = weakref.WeakKeyDictionary()
"""Limit on the calls for files of each event loop."""


def start_thread(work: Callable[[], object], name: str) -> threading.Thread:
    """Start a thread that does not prevent the process from exiting, and return it.

    Raises:
        ResourceError: if the system has no more threads for this process.
    """
    thread = threading.Thread(target=work, name=name, daemon=True)
    try:
        thread.start()
        return thread
    except (RuntimeError, MemoryError) as error:
        msg = f"Cannot start a thread ({error}): the limit on processes (ulimit -u, pids.max) may be reached"
        raise ResourceError(msg, errno=errno.EAGAIN) from None


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a blocking function in a new thread; return its result or raise its error.

    If the caller is cancelled, it does not wait for the thread, whose result is then dropped. A caller that must end
    the work has to signal the function itself.

    Raises:
        ResourceError: if no thread can be started, or the function runs out of memory.
    """
    return await begin_in_thread(function, *args, **kwargs)


def begin_in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
    """Call a blocking function as `in_thread` does; return a future, no task, which a loop would cancel at its end."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()

    def finish(result: Any, error: BaseException | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(result)
        elif isinstance(error, StopIteration):  # a future does not accept it
            done.set_exception(RuntimeError(f"StopIteration: {error}"))
        else:
            done.set_exception(error)

    def work() -> None:
        result = None
        error: BaseException | None = None
        try:
            result = context.run(function, *args, **kwargs)
        except (MemoryError, RecursionError) as raised:
            error = ResourceError(str(raised) or "There is not enough memory for the call", errno=errno.ENOMEM)
        except BaseException as raised:
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop is closed, and no task waits
            loop.call_soon_threadsafe(finish, result, error)

    start_thread(work, getattr(function, "__name__", "work"))
    return done


def _cancellable(cancelled: threading.Event, name: str, function: Callable[[], T]) -> Callable[[], T]:
    """Return a function that calls another one, which can use `check_cancelled`."""

    def call() -> T:
        this_call.cancelled = cancelled
        return function()

    call.__name__ = name
    return call


async def in_thread_to_its_end(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a blocking function as `in_thread_settled` does, with a minute for its end."""
    return await in_thread_settled(_CANCELLED_SECONDS, function, *args, **kwargs)


async def in_thread_settled(seconds: float, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a blocking function as `in_thread` does; a cancellation is raised when the function has ended.

    The function finds out by `check_cancelled`. If it has not ended after `seconds`, the cancellation is raised then.
    """
    cancelled = threading.Event()
    call = _cancellable(cancelled, getattr(function, "__name__", "work"), lambda: function(*args, **kwargs))
    return await settle(in_thread(call), seconds, cancelled.set)


async def in_file_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a blocking function for a file as `in_thread` does, up to a limit of calls.

    The limit is for calls that run at once. A long call no longer counts, so that it delays the others by half a second
    at most. If the caller is cancelled, the function finds out by `check_cancelled`.
    """
    loop, cancelled = asyncio.get_running_loop(), threading.Event()
    slots = _file_slots.setdefault(loop, asyncio.Semaphore(_MAX_FILE_CALLS))
    await slots.acquire()
    with contextlib.ExitStack() as slot:
        slot.callback(slots.release)
        timer = loop.call_later(_LONG_SECONDS, slot.close)
        try:
            return await in_thread(_cancellable(cancelled, "swerex-file", lambda: function(*args, **kwargs)))
        finally:
            timer.cancel()
            cancelled.set()
