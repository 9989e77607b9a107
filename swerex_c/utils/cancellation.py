"""Cancellation of blocking calls in threads. Imports no asyncio, because files are also copied without it."""

from __future__ import annotations

import concurrent.futures
import threading

__all__ = ["check_cancelled", "this_call"]

this_call = threading.local()
"""In the thread of a call that can be cancelled, `cancelled` is the event that its caller has stopped waiting."""


def check_cancelled() -> None:
    """Raise `concurrent.futures.CancelledError` if this thread's call was cancelled."""
    cancelled: threading.Event | None = getattr(this_call, "cancelled", None)
    if cancelled is not None and cancelled.is_set():
        raise concurrent.futures.CancelledError
