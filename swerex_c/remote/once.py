"""Each request is carried out once, however often it arrives."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Generic, TypeVar

from swerex_c.exceptions import InvalidInputError, ResultLostError
from swerex_c.remote.direct import begun
from swerex_c.remote.limits import Limits

__all__ = ["Once"]

T = TypeVar("T")

_MOST_GONE = 1 << 17
"""Ids that are remembered without a result: ten minutes of 200 requests a second, in 30 MB."""


class _Entry(Generic[T]):
    __slots__ = ("finished", "size", "task", "what")

    def __init__(self, what: object, task: asyncio.Future[T]):
        self.what = what
        self.task = task
        self.finished = 0.0  # when, by the monotonic clock; 0 while it runs
        self.size = 0


class Once(Generic[T]):
    """Remembers by its id what was asked, while it runs and for some time after.

    How many results are kept, for how long and of how many bytes altogether is up to `Limits`; what still runs is not
    counted, because requests in flight have a limit of their own. An id whose result had to go early is remembered for
    as long as the result would have been: it is not carried out again. Used by one event loop.
    """

    def __init__(self, limits: Limits, size: Callable[[T], int] = lambda result: 0):
        """
        Args:
            size: how many bytes of memory a result takes.
        """
        self._limits = limits
        self._size = size
        self._entries: dict[str, _Entry[T]] = {}
        self._finished: OrderedDict[str, _Entry[T]] = OrderedDict()
        self._gone: OrderedDict[str, float] = OrderedDict()  # when it was finished
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def kept_bytes(self) -> int:
        return self._bytes

    async def run(
        self, key: str | None, what: object, start: Callable[[], Coroutine[Any, Any, T]], *, short: bool = False
    ) -> T:
        """What `start()` returns or raises, which is called only for the first request with this key.

        It runs as a task of its own: the caller may go away and ask again. Without a key nothing is remembered.

        Args:
            what: what is asked, to compare by `==`.
            short: it may be done without waiting: up to where it waits it is no task, and must not ask for one. That
                spares two turns of the event loop.

        Raises:
            InvalidInputError: if something else was asked with the same key.
            ResultLostError: if it was asked in an event loop that has ended since, before it was done; or if there were
                so many results since that this one is no longer kept.
        """
        if key is None:
            return await start()
        self._forget()
        entry = self._entries.get(key)
        if entry is None:
            if key in self._gone:
                raise ResultLostError("The request was received before; its result is no longer kept")
            loop = asyncio.get_running_loop()
            entry = _Entry(what, begun(loop, start()) if short else loop.create_task(start()))
            self._entries[key] = entry
            if entry.task.done():
                self._keep(key)
            else:
                entry.task.add_done_callback(lambda task: self._keep(key))
        elif entry.what != what:
            msg = f"The request id {key[:100]!r} was already used for another request"
            raise InvalidInputError(msg)
        return await self._result(entry)

    @staticmethod
    async def _result(entry: _Entry[T]) -> T:
        task = entry.task
        if task.done():
            if task.cancelled():
                raise ResultLostError("The request was begun, and given up when the server shut down")
            return task.result()
        if task.get_loop() is not asyncio.get_running_loop():
            raise ResultLostError("The request was begun, and given up when the server shut down")
        waiting: Awaitable[T] = asyncio.shield(task)
        try:
            return await waiting
        except asyncio.CancelledError:
            if task.cancelled():
                raise ResultLostError("The request was begun, and given up when the server shut down") from None
            raise

    def _keep(self, key: str) -> None:
        entry = self._entries.get(key)
        if entry is None:  # forgotten by close()
            return
        entry.finished = time.monotonic()
        if not entry.task.cancelled() and entry.task.exception() is None:
            entry.size = self._size(entry.task.result())
        self._finished[key] = entry
        self._bytes += entry.size
        self._forget()

    def _forget(self) -> None:
        """Drop what is too much, the oldest first."""
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

    async def close(self) -> None:
        """End what still runs, and forget everything."""
        loop = asyncio.get_running_loop()
        running = [e.task for e in self._entries.values() if not e.task.done() and e.task.get_loop() is loop]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        self._entries.clear()
        self._finished.clear()
        self._gone.clear()
        self._bytes = 0
