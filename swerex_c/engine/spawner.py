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
from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from swerex_c.engine.completions import current_completions

__all__ = ["Spawner", "spawner"]

T = TypeVar("T")


class _Start(Generic[T]):
    """One start request."""

    def __init__(self, begin: Callable[[], T]):
        self._begin = begin
        self._loop = asyncio.get_running_loop()
        self.tried = asyncio.Event()
        self.result: T | None = None
        self.error: BaseException | None = None

    def run(self) -> None:
        """Call `begin` in the spawner thread, and tell the caller's event loop."""
        try:
            self.result = self._begin()
        except BaseException as error:
            self.error = error
        try:
            self._loop.call_soon_threadsafe(self.tried.set)
        except RuntimeError:
            pass  # the loop was closed, so no caller waits

    def outcome(self) -> T:
        if self.error is not None:
            raise self.error
        return self.result  # type: ignore[return-value]


class Spawner:
    """Starter of programs for all event loops.

    It starts a program directly for a single caller, else one after the other in a thread, which lives while requests
    wait.
    """

    def __init__(self) -> None:
        self._forget()
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[_Start[object]] = deque()
        self._runs = False
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
        start = _Start(begin)
        if not self._put(start):
            return begin()
        cancelled: asyncio.CancelledError | None = None
        while not start.tried.is_set():
            try:
                await start.tried.wait()
            except asyncio.CancelledError as error:
                if self._take_back(start):
                    raise
                cancelled = error
        if cancelled is not None:
            if start.error is None:
                undo(start.outcome())
            raise cancelled
        return start.outcome()

    def _put(self, start: _Start[T]) -> bool:
        with self._lock:
            self._waiting.append(start)  # type: ignore[arg-type]
            if not self._runs:
                try:
                    threading.Thread(target=self._run, name="swerex-starts", daemon=True).start()
                except RuntimeError:  # no more threads can be started
                    self._waiting.pop()
                    return False
                self._runs = True
        return True

    def _take_back(self, start: _Start[T]) -> bool:
        with self._lock:
            try:
                self._waiting.remove(start)  # type: ignore[arg-type]
            except ValueError:
                return False
            return True

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._runs = False
                    return
                start = self._waiting.popleft()
            start.run()


spawner = Spawner()
"""The spawner of this process."""
