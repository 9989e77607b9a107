"""Start programs without blocking an event loop.

Starting a program takes one or two milliseconds, because the kernel blocks the caller until the new process has called
exec, and far longer (100 ms were measured) when other processes compete for the processors. A single caller starts its
program in the event loop, since a thread costs more. While others wait for programs or sessions, a thread starts it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from swerex_c.engine.completions import current_completions

__all__ = ["Spawner", "spawner"]

T = TypeVar("T")


class Spawner:
    """Starter of programs for all event loops.

    It starts a program directly for a single caller, else one after the other in a thread, which lives while requests
    wait.
    """

    def __init__(self) -> None:
        self._forget()
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        self._lock = threading.RLock()  # a callback of a cancelled request takes it again
        self._thread: ThreadPoolExecutor | None = None
        self._requests = 0
        self._users = 0

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """Return a context for a caller's whole use of a program.

        With two or more users, a thread starts programs.
        """
        with self._lock:
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1

    async def start(self, begin: Callable[[], T], undo: Callable[[T], None] = lambda result: None) -> T:
        """Call `begin` in this thread or in the spawner thread.

        Returns its result, or raises its exception.

        Args:
            undo: called with the result if the caller was cancelled. A start that has begun is awaited even then.
        """
        if self._users < 2 and not current_completions().pending:
            return begin()
        request = self._submit(begin)
        if request is None:
            return begin()
        try:
            return await asyncio.wrap_future(request)
        except asyncio.CancelledError:
            if request.cancel():
                raise
            while not request.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait([asyncio.wrap_future(request)])
            if request.exception() is None:
                undo(request.result())
            raise

    def _submit(self, begin: Callable[[], T]) -> Future[T] | None:
        """Queue a request. Returns None if no thread can be started."""
        with self._lock:
            self._thread = self._thread or ThreadPoolExecutor(1, "swerex-starts")
            try:
                request = self._thread.submit(begin)
            except RuntimeError:
                self._thread.shutdown(wait=False, cancel_futures=True)
                self._thread = None
                return None
            self._requests += 1
        request.add_done_callback(self._end_idle_thread)
        return request

    def _end_idle_thread(self, _: object) -> None:
        with self._lock:
            self._requests -= 1
            if not self._requests and self._thread is not None:
                self._thread.shutdown(wait=False)
                self._thread = None


spawner = Spawner()
"""The spawner of this process."""
