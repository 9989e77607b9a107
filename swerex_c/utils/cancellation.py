"""Cancellation of blocking calls in threads."""

from __future__ import annotations

import concurrent.futures
import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

__all__ = ["Cancellation", "cancellable", "check_cancelled"]

T = TypeVar("T")


class Cancellation:
    """The cancellation of blocking calls in threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._interrupt: Callable[[], object] | None = None
        self.requested = False

    def run(self, function: Callable[[], T]) -> T:
        """Call a function that can use `check_cancelled` and `cancellable`."""
        _thread.cancellation = self
        try:
            return function()
        finally:
            _thread.cancellation = None

    def cancel(self) -> None:
        """Interrupt what the call waits for. Thread-safe; a second time has no effect."""
        with self._lock:
            self.requested, interrupt, self._interrupt = True, self._interrupt, None
        if interrupt is not None:
            interrupt()

    def check(self) -> None:
        """Raise `concurrent.futures.CancelledError` if the call was cancelled."""
        if self.requested:
            raise concurrent.futures.CancelledError


_thread = threading.local()


def check_cancelled() -> None:
    """Raise `concurrent.futures.CancelledError` if this thread's call was cancelled."""
    if (cancellation := getattr(_thread, "cancellation", None)) is not None:
        cancellation.check()


@contextlib.contextmanager
def cancellable(interrupt: Callable[[], object]) -> Iterator[None]:
    """Have the block interrupted if this thread's call is cancelled.

    Args:
        interrupt: called in another thread; it makes the block end soon.

    Raises:
        concurrent.futures.CancelledError: if the call is already cancelled.
    """
    cancellation: Cancellation = getattr(_thread, "cancellation", None) or Cancellation()
    with cancellation._lock:
        cancellation.check()
        cancellation._interrupt = interrupt
    try:
        yield
    finally:
        with cancellation._lock:
            cancellation._interrupt = None
