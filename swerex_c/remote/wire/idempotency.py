"""Cache of results by request id, to execute a repeated request only once."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Generic, TypeVar

from swerex_c.exceptions import InvalidInputError, ResultLostError
from swerex_c.remote.wire.limits import Limits

__all__ = ["ResultCache"]

T = TypeVar("T")

_MOST_GONE = 1 << 17
"""Maximum number of ids to remember without a result: those of 200 requests a second for ten minutes, in 30 MB."""

_GIVEN_UP = "The request has no result: it was cancelled, or the server shut down"


class _Entry(Generic[T]):
    """Request in the cache, with the task that executes it."""

    __slots__ = ("finished", "keep", "size", "task", "what")

    def __init__(self, what: object, task: asyncio.Task[T], keep: bool):
        self.what = what
        self.keep = keep
        self.task = task
        self.finished = 0.0  # monotonic time of completion; 0 while the request runs
        self.size = 0


class ResultCache(Generic[T]):
    """Cache of running requests by id, and of their results for some time.

    `Limits` sets the maximum number, age and total bytes of the kept results. Running requests do not count, because
    requests in flight have their own limit. If a result is dropped before its maximum age, its id is remembered until
    that age, so that the request is not executed again. A cache belongs to one event loop.
    """

    def __init__(self, limits: Limits, size: Callable[[T], int] = lambda result: 0):
        """Create an empty cache; `size` returns the bytes of memory that a result takes."""
        self._limits = limits
        self._size = size
        self._entries: dict[str, _Entry[T]] = {}
        self._finished: OrderedDict[str, _Entry[T]] = OrderedDict()
        self._gone: OrderedDict[str, float] = OrderedDict()  # monotonic times of completion or cancellation
        self._bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def kept_bytes(self) -> int:
        """Total bytes of the kept results."""
        return self._bytes

    async def run(self, key: str, what: object, start: Callable[[], Coroutine[Any, Any, T]], *, keep: bool = True) -> T:
        """Return the result of `start()`, or raise its error.

        Only the first request with this key calls `start`, in a task of its own, so a cancelled caller may repeat
        the request.

        Args:
            what: the request, to compare by `==` with the first request that used this key.
            keep: False for a request that may be executed twice: only callers that already wait get its result.

        Raises:
            InvalidInputError: if the key was used for another request.
            ResultLostError: if the request was cancelled, if its event loop ended before the request completed, or if
                its result was dropped because the kept results exceeded a limit.
        """
        self._forget()
        entry = self._entries.get(key)
        if entry is None:
            if key in self._gone:
                raise ResultLostError("The request was received or cancelled before; there is no result of it")
            entry = self._entries[key] = _Entry(what, asyncio.create_task(start()), keep)
            entry.task.add_done_callback(lambda task: self._keep(key))
        elif entry.what != what:
            msg = f"The request id {key[:100]!r} was already used for another request"
            raise InvalidInputError(msg)
        return await self._result(entry)

    @staticmethod
    async def _result(entry: _Entry[T]) -> T:
        """Wait for the task of an entry, which goes on if the caller is cancelled, and return its result."""
        task = entry.task
        if task.done():
            if task.cancelled():
                raise ResultLostError(_GIVEN_UP)
            return task.result()
        if task.get_loop() is not asyncio.get_running_loop():
            raise ResultLostError(_GIVEN_UP)
        waiting: Awaitable[T] = asyncio.shield(task)
        try:
            return await waiting
        except asyncio.CancelledError:
            if task.cancelled():
                raise ResultLostError(_GIVEN_UP) from None
            raise

    async def cancel(self, key: str) -> None:
        """Cancel the request with this key, and wait until it has ended.

        If the request arrives later, it is not started.
        """
        self._forget()
        entry = self._entries.get(key)
        if entry is None:
            self._gone.setdefault(key, time.monotonic())
        elif not entry.task.done() and entry.task.get_loop() is asyncio.get_running_loop():
            if not entry.task.cancelling():  # a second cancellation would interrupt the task's cleanup
                entry.task.cancel()
            await asyncio.wait([entry.task])

    def _keep(self, key: str) -> None:
        entry = self._entries.get(key)
        if entry is None:  # dropped by close()
            return
        if not entry.keep:
            del self._entries[key]
            return
        entry.finished = time.monotonic()
        if not entry.task.cancelled() and entry.task.exception() is None:
            entry.size = self._size(entry.task.result())
        self._finished[key] = entry
        self._bytes += entry.size
        self._forget()
        self._forget_later()

    def _forget(self) -> None:
        """Drop the completed entries that exceed the limits, the oldest first."""
        limits = self._limits
        oldest = time.monotonic() - limits.result_seconds
        while self._gone and (len(self._gone) > _MOST_GONE or next(iter(self._gone.values())) <= oldest):
            self._gone.popitem(last=False)
        while self._finished:
            key, entry = next(iter(self._finished.items()))
            too_many = len(self._finished) > limits.results or self._bytes > limits.result_bytes
            if not too_many and entry.finished > oldest:
                return
            del self._finished[key], self._entries[key]
            self._bytes -= entry.size
            if entry.finished > oldest:
                self._gone[key] = entry.finished

    def _forget_later(self) -> None:
        """Set a timer to drop results when they expire, even if no more requests arrive."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._finished:
            oldest = next(iter(self._finished.values())).finished
            seconds = oldest + self._limits.result_seconds - time.monotonic()
            self._timer = asyncio.get_running_loop().call_later(max(0.001, seconds), self._timed)

    def _timed(self) -> None:
        self._forget()
        self._forget_later()

    async def close(self) -> None:
        """Cancel the running requests, wait until they have ended, and drop all entries."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        loop = asyncio.get_running_loop()
        running = [e.task for e in self._entries.values() if not e.task.done() and e.task.get_loop() is loop]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        self._entries.clear()
        self._finished.clear()
        self._gone.clear()
        self._bytes = 0
