"""Starting programs without holding an event loop up.

To start a program takes a millisecond or two, because the kernel lets who asked for it wait until the new process has
become the program, and many times that (100 ms were seen) where other processes want the processors. Who is alone
starts at once, in the event loop: a thread costs more. Where others wait for programs or sessions, a thread does it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from swerex_c.runtime._wakeup import current_waker

__all__ = ["Starts", "starts"]

T = TypeVar("T")


class _Start(Generic[T]):
    """One that was asked for."""

    def __init__(self, begin: Callable[[], T]):
        self._begin = begin
        self._loop = asyncio.get_running_loop()
        self.tried = asyncio.Event()
        self.result: T | None = None
        self.error: BaseException | None = None

    def run(self) -> None:
        """In the thread."""
        try:
            self.result = self._begin()
        except BaseException as error:
            self.error = error
        try:
            self._loop.call_soon_threadsafe(self.tried.set)
        except RuntimeError:
            pass  # the loop was closed: nobody waits

    def outcome(self) -> T:
        if self.error is not None:
            raise self.error
        return self.result  # type: ignore[return-value]


class Starts:
    """Starts programs, those of many callers one after the other in a thread that lives while there are any to start.
    For all event loops."""

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
        """Around all that a caller does who starts a program: as long as that is under way, others have a thread."""
        with self._lock:
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1

    async def start(self, begin: Callable[[], T], undo: Callable[[T], None] = lambda result: None) -> T:
        """What `begin` returns or raises, which is called here or in the thread.

        Args:
            undo: called with it if the caller is cancelled meanwhile. A start that has begun is waited for even then.
        """
        if self._users < 2 and not current_waker().pending:
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
                except RuntimeError:  # there can be no more threads
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


starts = Starts()
"""Those of this process."""
