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
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from swerex_c.exceptions import ResourceError
from swerex_c.utils.cancellation import Cancellation

__all__ = [
    "OrderedCalls",
    "in_cancellable_thread",
    "in_file_thread",
    "in_thread",
    "in_thread_to_its_end",
    "start_thread",
]

P = ParamSpec("P")
T = TypeVar("T")

_MAX_FILE_CALLS = 16
"""Maximum number of calls for files that run at once: more gain nothing on a disk, and each needs a thread."""

_LONG_SECONDS = 0.5
"""Seconds after which a call for a file no longer counts: it may wait for a disk that never responds."""

_END_SECONDS = 2.0
"""Seconds to wait for the last call of a transfer."""

_CANCELLED_SECONDS = 60.0
"""Seconds to wait for a cancelled call to end."""

_ABANDONED_SECONDS = 30.0
"""Seconds to wait for it if its event loop is gone."""


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
    done, work = _future_and_work(lambda: function(*args, **kwargs))
    start_thread(work, getattr(function, "__name__", "work"))
    result: T = await done
    return result


async def in_thread_to_its_end(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a blocking function as `in_thread` does; a cancellation is raised when the function has ended."""
    call = asyncio.ensure_future(in_thread(function, *args, **kwargs))
    try:
        return await asyncio.shield(call)
    except asyncio.CancelledError:
        await asyncio.wait([call])
        raise


async def in_cancellable_thread(cancellation: Cancellation, function: Callable[..., T], *args: Any) -> T:
    """Call a blocking function in a thread; a cancellation interrupts and awaits it.

    It is interrupted in the programs of `run_command`, the coroutines of `background.run_blocking`, and `cancellable`
    blocks. Cancelling the task and `cancellation` both do that.

    Raises:
        ResourceError: as `in_thread`.
    """
    done, work = _future_and_work(lambda: cancellation.run(lambda: function(*args)))
    done.add_done_callback(lambda it: it.cancelled() or it.exception())  # after a cancellation nobody else asks for it
    thread = start_thread(work, getattr(function, "__name__", "work"))
    try:
        result: T = await asyncio.shield(done)
        return result
    except asyncio.CancelledError:
        cancellation.cancel()
        deadline = time.monotonic() + _CANCELLED_SECONDS
        while not done.done() and (left := deadline - time.monotonic()) > 0:
            with contextlib.suppress(asyncio.CancelledError):  # a second cancellation does not leave the thread behind
                await asyncio.wait([done], timeout=left)
        raise
    except GeneratorExit:  # the event loop is gone, so nothing can be awaited
        cancellation.cancel()
        with contextlib.suppress(RuntimeError):  # it is this thread
            thread.join(_ABANDONED_SECONDS)
        raise


async def in_file_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a blocking function for a file as `in_thread` does, up to a limit of calls.

    The limit is for calls that run at once. A long call no longer counts, so that it delays the others by half a second
    at most. If the caller is cancelled, the function finds out by `check_cancelled`.
    """
    cancellation = Cancellation()
    done, work = _future_and_work(lambda: cancellation.run(lambda: function(*args, **kwargs)))
    call = _Call(work)
    try:
        _file_calls.add(call)
        while not call.began:
            await asyncio.wait([done], timeout=_LONG_SECONDS)
            _file_calls.begin()
        result: T = await done
        return result
    finally:
        done.cancel()  # if the wait was interrupted
        cancellation.cancel()
        _file_calls.drop(call)


class OrderedCalls:
    """Sequential `in_file_thread` calls of one transfer.

    A call starts when the previous one has ended, even if the caller has stopped waiting for that one: no file is
    closed or removed while a thread still uses it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function after the earlier calls; see `in_file_thread`."""
        return await in_file_thread(self._call, lambda: function(*args, **kwargs))

    async def end(self, function: Callable[[], object]) -> None:
        """Call a function as the last one, and wait for at most two seconds.

        The function is called even if the caller is cancelled, or stops waiting because the previous call hangs.
        """
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_END_SECONDS):
                    await in_thread(self._call, function)
        except ResourceError:  # no thread can be started
            self._call(function)

    def _call(self, function: Callable[[], T]) -> T:
        with self._lock:
            return function()


def _future_and_work(function: Callable[[], Any]) -> tuple[asyncio.Future[Any], Callable[[], None]]:
    """Return a future of the running loop, and a function that runs in a thread and sets the future's outcome."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()

    def settle(result: Any, error: BaseException | None) -> None:
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
            result = context.run(function)
        except (MemoryError, RecursionError) as raised:
            error = ResourceError(str(raised) or "There is not enough memory for the call", errno=errno.ENOMEM)
        except BaseException as raised:
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop is closed, and no task waits
            loop.call_soon_threadsafe(settle, result, error)

    return done, work


class _Call:
    def __init__(self, work: Callable[[], None]):
        self.work = work
        self.began = 0.0
        """Start of the call in monotonic time; 0 while the call is queued."""


class _FileCallQueue:
    """Queue and set of running calls for files, of all event loops."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[_Call] = set()
        self._waiting: deque[_Call] = deque()

    def add(self, call: _Call) -> None:
        """Queue a call, and start it as soon as the limit allows."""
        self._waiting.append(call)
        self.begin()

    def begin(self) -> None:
        """Start queued calls up to the limit."""
        with self._lock:
            now = time.monotonic()
            self._running = {call for call in self._running if now - call.began < _LONG_SECONDS}
            while self._waiting and len(self._running) < _MAX_FILE_CALLS:
                call = self._waiting[0]
                try:
                    start_thread(lambda call=call: self._run(call), "swerex-file")  # type: ignore[misc]
                except ResourceError:
                    if self._running:
                        return  # a running thread takes the queued call when it is done
                    raise
                self._take()

    def _take(self) -> _Call:
        call = self._waiting.popleft()
        call.began = time.monotonic()
        self._running.add(call)
        return call

    def _run(self, call: _Call) -> None:
        """Run a call in its thread, and then the queued calls."""
        while True:
            call.work()
            with self._lock:
                if call not in self._running:
                    return  # the call took long, and another thread has taken its slot
                self._running.discard(call)
                if not self._waiting:
                    return
                call = self._take()

    def drop(self, call: _Call) -> None:
        """Remove a queued call, whose caller no longer waits."""
        if not call.began:
            with self._lock, contextlib.suppress(ValueError):
                self._waiting.remove(call)


_file_calls = _FileCallQueue()
os.register_at_fork(after_in_child=_file_calls.__init__)  # type: ignore[misc]
