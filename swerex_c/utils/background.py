"""Private event loop for sandboxes and the libraries that reach them.

Each process has one, in a thread of its own. Callers' own loops come and go, and each call may come from another loop;
the state of a sandbox and of a library, such as its connections, belongs to this loop. Nothing in it may block: work
with files, client programs to start and functions of others run in threads.

All connections share this loop. A reader of frames may find many of them ready, so that no `await` between them
waits. Each reader therefore awaits `asyncio.sleep(0)` after every frame, to let other tasks run.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import math
import os
import socket
import threading
import time
import weakref
from collections.abc import AsyncGenerator, Coroutine
from typing import IO, Any, TypeVar

from swerex_c.exceptions import ResourceError
from swerex_c.utils.cancellation import check_cancelled
from swerex_c.utils.threads import start_thread
from swerex_c.utils.wait import settle

__all__ = ["Call", "is_running_loop", "iterate", "keep_from_children", "run", "run_blocking", "spawn"]

T = TypeVar("T")

_SIGNAL_SECONDS = 1.0
"""Seconds of one wait: CPython misses a signal, as of ^C, that comes just before it waits for a lock without limit."""

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None


def _running() -> asyncio.AbstractEventLoop:
    """Return the loop, which runs until the process ends. Start it at the first call."""
    global _loop
    with _lock:
        if _loop is None:
            loop = asyncio.new_event_loop()
            try:
                start_thread(lambda: _run(loop), "swerex-c calls")
            except ResourceError:
                loop.close()
                raise
            _loop = loop
        return _loop


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    while True:
        with contextlib.suppress(KeyboardInterrupt, SystemExit):  # of a caller's hook; its task has it as its exception
            loop.run_forever()


_kept: weakref.WeakSet[IO[bytes] | socket.socket] = weakref.WeakSet()


def keep_from_children(*files: IO[bytes] | socket.socket) -> None:
    """Replace pipes, terminals and sockets with /dev/null in every forked child, as long as they are open here.

    The peers at their other ends are not told. A connection stays open while any process has it, and a forked child
    may outlive its parent: a peer that waits for the end of the parent's connection would also wait for the child. The
    descriptor numbers stay in use, so that objects which close them later close nothing else.
    """
    _kept.update(files)


def _connections(loop: asyncio.AbstractEventLoop) -> list[int]:
    """Return the descriptors of a loop's connections, whichever library made them."""
    found = []
    # No public interface lists them all: a transport whose reading is paused is not in the selector either.
    for each, transport in list(getattr(loop, "_transports", {}).items()):
        connection = transport.get_extra_info("socket")
        if connection is not None and connection.fileno() == each:  # else it was closed, and the number may be reused
            found.append(each)
    return found


def _forget() -> None:
    """Reset the state in a forked child, which has no loop thread and needs a new loop."""
    global _loop, _lock
    parents, _loop, _lock = _loop, None, threading.Lock()
    descriptors = [] if parents is None else _connections(parents)
    for file in _kept:
        with contextlib.suppress(ValueError):  # it is closed
            descriptors.append(file.fileno())
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for each in descriptors:
        if each >= 0:  # a closed socket has -1
            os.dup2(nothing, each, inheritable=False)
    os.close(nothing)
    _kept.clear()


os.register_at_fork(after_in_child=_forget)


def is_running_loop() -> bool:
    """Return whether the running loop is the private one."""
    return asyncio.get_running_loop() is _loop


class Call(concurrent.futures.Future[T]):
    """A coroutine in the loop. The future is done when the coroutine has ended, also after `cancel`."""

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        super().__init__()
        self.set_running_or_notify_cancel()
        try:
            self._loop = _running()
        except BaseException:
            work.close()
            raise
        self._work = work
        self._task: asyncio.Task[T] | None = None

    def begin(self) -> None:
        """Start the coroutine. An interrupt may come before or after it has started: then call `cancel`."""
        self._loop.call_soon_threadsafe(self._begin)

    def cancel(self) -> bool:
        """Cancel the coroutine, whose cleanup is not waited for. Thread-safe."""
        self._loop.call_soon_threadsafe(lambda: self._begin().cancel())
        return True

    def _begin(self) -> asyncio.Task[T]:
        if self._task is None:
            self._task = self._loop.create_task(self._work)
            self._task.add_done_callback(self._end)
        return self._task

    def _end(self, task: asyncio.Task[T]) -> None:
        error = concurrent.futures.CancelledError() if task.cancelled() else task.exception()
        if error is None:
            self.set_result(task.result())
        else:
            self.set_exception(error)


def spawn(work: Coroutine[Any, Any, T]) -> Call[T]:
    """Schedule a coroutine in the loop. Thread-safe."""
    call = Call(work)
    call.begin()
    return call


async def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in the loop on behalf of a task of any loop.

    If the caller is cancelled, the coroutine is cancelled, and it has ended when the cancellation is raised.
    """
    if is_running_loop():
        return await work
    caller, call = asyncio.get_running_loop(), spawn(work)
    ended: asyncio.Future[None] = caller.create_future()

    def report(_: object) -> None:
        with contextlib.suppress(RuntimeError):  # the caller's loop is closed
            caller.call_soon_threadsafe(ended.set_result, None)

    call.add_done_callback(report)
    await settle(ended, interrupt=call.cancel)
    try:
        return call.result()
    except concurrent.futures.CancelledError:
        raise asyncio.CancelledError from None


async def iterate(items: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
    """Yield the items of a generator that runs in the loop, for a task of any loop."""
    end = object()

    async def following() -> Any:
        return await anext(items, end)

    try:
        while (item := await run(following())) is not end:
            yield item
    finally:
        await run(items.aclose())


def run_blocking(work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
    """Run a coroutine in the loop from another thread. Blocks.

    The coroutine has ended when this returns or raises. In a call of `threads.in_thread_to_its_end` a cancellation
    cancels it within a second.

    Args:
        timeout: seconds after which the coroutine is cancelled; None means no limit.

    Returns:
        the result of the coroutine; its exception is raised.

    Raises:
        TimeoutError: if the coroutine was cancelled after `timeout` seconds.
    """
    call = Call(work)
    late = False
    try:
        call.begin()
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        ended = False
        while not ended and (left := deadline - time.monotonic()) > 0:
            check_cancelled()
            ended = bool(concurrent.futures.wait([call], min(left, _SIGNAL_SECONDS)).done)
        late = not ended
        if late:
            call.cancel()
        return call.result()
    except BaseException as error:
        call.cancel()
        concurrent.futures.wait([call])
        if late and isinstance(error, concurrent.futures.CancelledError):
            raise TimeoutError(f"No answer within {timeout:g} seconds") from None
        raise
