"""Calls of finalizers in other threads.

Garbage collection, which runs finalizers, can begin at any allocation, even while a lock is held.
"""

from __future__ import annotations

import _thread
import contextlib
import threading
from collections.abc import Callable

__all__ = ["call_from_finalizer"]


def call_from_finalizer(function: Callable[[], object]) -> None:
    """Call a function in a new thread, which the process waits for when it exits.

    This takes no lock and does not wait, so a `__del__` method or a callback of `weakref.finalize` may call it. If no
    thread can be started, the function is not called.
    """

    def start() -> None:
        # `Thread.start` takes locks of its module, which the collecting thread may hold, so call it in another thread.
        with contextlib.suppress(RuntimeError):
            # Set `daemon`, because its default calls `current_thread`, which would register this thread for ever.
            threading.Thread(target=function, name="finalizer", daemon=False).start()

    with contextlib.suppress(RuntimeError):
        _thread.start_new_thread(start, ())
