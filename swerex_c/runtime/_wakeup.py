"""From the core's completions to asyncio's futures.

Each event loop gets one waker: a descriptor that the loop watches, and a queue that the core's thread fills. It lives
as long as the loop. Nothing here is tied to a runtime: callers may use another loop for every call.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from typing import TYPE_CHECKING, Any

from swerex_c import _core
from swerex_c.runtime._answers import resource_error

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["LoopWaker", "current_waker"]


class LoopWaker:
    """What one event loop needs to wait for the core."""

    __slots__ = ("__weakref__", "_loop", "core", "create_future", "pending", "ready")

    def __init__(self, loop: asyncio.AbstractEventLoop):
        self.core = _core.Waker()
        self._loop = weakref.ref(loop)
        self.create_future: Callable[[], asyncio.Future[None]] = _weak_create_future(self._loop)
        # Calls that wait for an operation in this loop.
        self.pending = 0
        # How much else the loop has to do right now; loops that do not tell are taken for busy, unless somebody says
        # that nothing is to be done, and that no timer minds to be late by a tick of the kernel.
        self.ready: Any = getattr(loop, "_ready", (None,))
        # This is what keeps it alive, and no longer than until the loop is closed.
        loop.add_reader(self.core.fileno(), self._drain)

    def has_time(self, seconds: float) -> bool:
        """Whether the loop has no timer that is due in that time; of loops that do not tell, what `ready` says."""
        loop: Any = self._loop()
        timers: Any = getattr(loop, "_scheduled", None)
        if timers is None:
            return not self.ready
        return not timers or timers[0].when() - loop.time() > seconds

    def _drain(self) -> None:
        for waiter in self.core.take():
            if type(waiter) is _Event:
                waiter.set()
            elif not waiter.done():
                waiter.set_result(None)


_Event = asyncio.Event


def _weak_create_future(loop: weakref.ref[asyncio.AbstractEventLoop]) -> Callable[[], asyncio.Future[None]]:
    def create_future() -> asyncio.Future[None]:
        running = loop()
        assert running is not None, "a waker is used within its own loop only"
        return running.create_future()

    return create_future


_wakers: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, weakref.ref[LoopWaker]] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


class _Last(threading.local):
    known: tuple[Callable[[], Any], Callable[[], Any]] | None = None
    """A loop and its waker, both weak."""


_last = _Last()


def current_waker() -> LoopWaker:
    """The waker of the running event loop.

    Raises:
        ResourceError: if there is no descriptor left for it.
    """
    loop = asyncio.get_running_loop()
    last = _last.known
    if last is not None and last[0]() is loop:
        waker: LoopWaker = last[1]()
        return waker
    with _lock:
        known = _wakers.get(loop)
        found = known() if known is not None else None
        if found is None:
            try:
                found = LoopWaker(loop)
            except (OSError, MemoryError) as e:
                raise resource_error(e, "This event loop cannot wait for an answer") from e
            _wakers[loop] = weakref.ref(found)
    _last.known = weakref.ref(loop), weakref.ref(found)
    return found
