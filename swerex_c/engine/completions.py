"""Deliver the core's completions to asyncio futures.

Each event loop has one completion queue, which lives as long as the loop: a descriptor that the loop watches, and a
queue that the core's thread fills. The queue belongs to no runtime, so callers may use another loop for every call.
"""

from __future__ import annotations

import asyncio
import weakref
from typing import Any

from swerex_c import _core
from swerex_c.engine.outcomes import translated

__all__ = ["CompletionQueue", "current_completions", "end_shell"]

INLINE_MICROSECONDS = 5000
"""Microseconds that a caller waits by itself for a command: above a tick of the kernel, because an earlier timer costs
as much as a short command. Whatever would wake the event loop ends that wait."""


class CompletionQueue:
    """The completion queue of one event loop."""

    __slots__ = ("__weakref__", "_loop", "core", "pending", "programs", "ready", "starting", "wake_fd")

    def __init__(self, loop: asyncio.AbstractEventLoop):
        self.core = _core.Completions()
        self._loop = weakref.ref(loop)
        # Number of calls that wait for an operation in this loop.
        self.pending = 0
        # Number of calls that use a program, and the lock for the one that starts it in a thread.
        self.programs = 0
        self.starting = asyncio.Lock()
        # These names are private to asyncio; tested with Python 3.11 to 3.14.
        # The loop's own queue of ready callbacks. A loop that hides it, its timers or its descriptor counts as busy.
        self.ready: Any = getattr(loop, "_ready", ())
        # The descriptor on which the loop sleeps, or -1 if it counts as busy, as uvloop's does.
        fileno = getattr(getattr(loop, "_selector", None), "fileno", None)
        shown = hasattr(loop, "_ready") and hasattr(loop, "_scheduled")
        self.wake_fd: int = fileno() if shown and fileno is not None else -1
        # This reader holds the only strong reference to the queue, until the loop is closed.
        loop.add_reader(self.core.fileno(), self._drain)

    def inline_wait(self) -> int:
        """Return the microseconds that a call may wait by itself, instead of the loop; 0 if the loop would not sleep.

        The wait has to end when `wake_fd` can be read.
        """
        if self.ready or self.pending or self.wake_fd < 0:
            return 0
        loop: Any = self._loop()
        timers = loop._scheduled
        if timers and timers[0].when() - loop.time() < 1e-6 * INLINE_MICROSECONDS:
            return 0
        return INLINE_MICROSECONDS

    def _drain(self) -> None:
        for waiter in self.core.take():
            if type(waiter) is asyncio.Event:
                waiter.set()
            elif not waiter.done():
                waiter.set_result(None)


_ATTRIBUTE = "_swerex_c_completions"
"""Attribute of an event loop with a weak reference to its completion queue. A lookup in a `WeakKeyDictionary` takes
three times as long, and each command needs the queue."""


def current_completions() -> CompletionQueue:
    """Return the completion queue of the running event loop, creating it if necessary.

    Raises:
        ResourceError: if no descriptor is left for it.
    """
    loop = asyncio.get_running_loop()
    known = getattr(loop, _ATTRIBUTE, None)
    found: CompletionQueue | None = known() if known is not None else None
    if found is None:
        with translated("Cannot create the completion queue of this event loop"):
            found = CompletionQueue(loop)
        setattr(loop, _ATTRIBUTE, weakref.ref(found))
    return found


async def end_shell(core: _core.Session) -> None:
    """End a shell and everything it started, and wait until all is gone. The core ends it even without that wait."""
    completions = current_completions()
    future = asyncio.get_running_loop().create_future()
    with translated():
        operation = core.close(completions.core, future)
    if not operation.done:
        await asyncio.shield(future)
