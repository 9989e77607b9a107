"""Table of requests by id: each is executed once, and its outcome is kept for a client that asks again.

It serves all clients, over frames and over HTTP, so its limits hold for all of them together.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Hashable
from typing import TYPE_CHECKING, Any

from swerex_c.exceptions import ResultLostError
from swerex_c.remote.server.limits import Limits

if TYPE_CHECKING:
    from starlette.responses import Response

__all__ = ["Request", "RequestTable"]

_MOST_LOST = 1 << 17
"""Maximum number of ids to remember without an outcome: those of 200 requests a second for ten minutes, in 30 MB."""

_LOOK_AT = 64
"""Maximum number of outcomes that one `trim` examines: outcomes in transfer cannot be dropped."""


class Request:
    """A request, from its start until its outcome is dropped."""

    def __init__(self, key: Hashable):
        self.key = key
        self.task: asyncio.Task[Any] | None = None
        """Task that executes the request; None if there is none to wait for or to cancel."""
        self.finished_at = 0.0
        """Monotonic time of the outcome."""
        self.size = 0
        """Bytes of memory that the outcome takes."""

    @property
    def in_transfer(self) -> bool:
        """True while a connected client is still taking the outcome, which is then not dropped."""
        return False

    def cancel(self) -> None:
        """Cancel the task, unless it was cancelled before: a second cancellation would interrupt its cleanup."""
        if self.task is not None and not self.task.cancelling():
            self.task.cancel()

    def dropped(self) -> None:
        """Handle the removal of the request from the table."""


class RequestTable:
    """Running requests, and outcomes of finished ones within `Limits`.

    The newest outcome stays, whatever its size. An outcome that is dropped before its time is over leaves its id, so
    that the request is not executed again.
    """

    def __init__(self, limits: Limits):
        self._limits = limits
        self._requests: dict[Hashable, Request] = {}  # of HTTP: a channel has its own
        self._finished: OrderedDict[Hashable, Request] = OrderedDict()  # the oldest first
        self._lost: OrderedDict[Hashable, float] = OrderedDict()  # monotonic times of completion or cancellation
        self.kept_bytes = 0
        """Total bytes of the kept outcomes."""

    def finished(self, request: Request, size: int) -> None:
        """Keep the outcome of a request, which takes `size` bytes."""
        request.size = size
        request.finished_at = time.monotonic()
        self._finished[request.key] = request
        self.kept_bytes += size
        self.trim()

    def drop(self, request: Request) -> None:
        """Drop a request and its outcome, unless it was dropped before."""
        self._requests.pop(request.key, None)
        if self._finished.pop(request.key, None) is not None:
            self.kept_bytes -= request.size
            request.dropped()

    @property
    def _full(self) -> bool:
        return len(self._finished) > self._limits.results or self.kept_bytes > self._limits.result_bytes

    def trim(self) -> None:
        """Drop outcomes whose time is over, and the oldest ones while there are too many."""
        newest = next(reversed(self._finished.values()), None)
        before = time.monotonic() - self._limits.result_seconds
        while self._lost and (len(self._lost) > _MOST_LOST or next(iter(self._lost.values())) <= before):
            self._lost.popitem(last=False)
        for request in list(itertools.islice(self._finished.values(), _LOOK_AT)):
            expired = request.finished_at <= before
            if not expired and (request is newest or not self._full):
                break
            if not request.in_transfer:
                self.drop(request)
                if not expired:
                    self._lost[request.key] = request.finished_at

    # Requests of HTTP, whose outcome is the result of their task

    async def run(
        self, key: Hashable, work: Callable[[], Coroutine[Any, Any, Response]], *, keep: bool = True
    ) -> Response:
        """Return the result of `work()`, or raise its error.

        Only the first request with this key calls `work`, and it goes on without its caller.

        Args:
            keep: False for a request that may be executed twice: only callers that already wait get its result.

        Raises:
            ResultLostError: if the request was cancelled, or if its result was dropped because the kept results
                exceeded a limit.
        """
        self.trim()
        request = self._requests.get(key)
        if request is None:
            if key in self._lost:
                raise ResultLostError("The request was received or cancelled before; there is no result of it")
            request = self._requests[key] = Request(key)
            request.task = asyncio.create_task(work())
            request.task.add_done_callback(lambda task: self._done(request, task, keep))
        assert request.task is not None
        try:
            return await asyncio.shield(request.task)
        except asyncio.CancelledError:
            if request.task.cancelled():
                msg = "The request has no result: it was cancelled, or the server shut down"
                raise ResultLostError(msg) from None
            raise

    def _done(self, request: Request, task: asyncio.Task[Response], keep: bool) -> None:
        if keep:
            self.finished(request, len(task.result().body) if not task.cancelled() and task.exception() is None else 0)
        else:
            self.drop(request)

    async def cancel(self, key: Hashable) -> None:
        """Cancel the request with this key, and wait until it has ended. If it comes later, it is not started."""
        self.trim()
        request = self._requests.get(key)
        if request is None:
            self._lost.setdefault(key, time.monotonic())
        elif request.task is not None:
            request.cancel()
            await asyncio.wait([request.task])
