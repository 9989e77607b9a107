"""Private names of asyncio in use here; tested with Python 3.11 to 3.14.

uvloop has none of them. A loop without one of them counts as busy, which costs time but never an answer.
"""

from __future__ import annotations

__all__ = ["READY", "SELECTOR", "TIMERS"]

READY = "_ready"
"""Attribute of an event loop: the queue of callbacks to run now."""

TIMERS = "_scheduled"
"""Attribute of an event loop: the heap of its timers, the earliest first."""

SELECTOR = "_selector"
"""Attribute of an event loop: what it sleeps in."""
