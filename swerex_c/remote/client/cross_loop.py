"""Proxy to a channel of another event loop.

It is needed because a program's standard streams cannot be connected twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

from swerex_c.exceptions import ConnectionLostError
from swerex_c.remote.client.calls import ClientChannel
from swerex_c.remote.wire.file_transfer import Progress
from swerex_c.utils.asyncio_compat import LOG_DESTROYED

__all__ = ["CrossLoopChannel"]

T = TypeVar("T")

_LOOK = 0.1
"""Seconds between two checks whether the channel's event loop still runs."""


class CrossLoopChannel:
    """Proxy, for one call, of a `ClientChannel` whose loop runs in another thread.

    If that loop ends during the call, the call fails with `ConnectionLostError`; the next call then moves the channel
    to the caller's loop.
    """

    def __init__(self, channel: ClientChannel):
        self._channel = channel
        self._loop = channel.loop

    @property
    def instance_id(self) -> str | None:
        return self._channel.instance_id

    async def call(
        self, method: str, payload: dict[str, Any], seconds: float | None = None, patient: bool = True
    ) -> dict[str, Any]:
        return await self._there(lambda: self._channel.call(method, payload, seconds, patient))

    async def stream(
        self, method: str, payload: dict[str, Any], seconds: float | None = None
    ) -> AsyncIterator[bytes | dict[str, Any]]:
        stream = self._channel.stream(method, payload, seconds)
        end = object()

        async def following() -> Any:
            return await anext(stream, end)

        try:
            while (item := await self._there(following)) is not end:
                yield item
        finally:
            with contextlib.suppress(ConnectionLostError):
                await self._there(stream.aclose)  # type: ignore[attr-defined]

    async def upload(self, source: str, target: str, progress: Progress | None = None) -> dict[str, Any]:
        return await self._there(lambda: self._channel.upload(source, target, progress))

    async def download(self, source: str, target: str, progress: Progress | None = None) -> dict[str, Any]:
        return await self._there(lambda: self._channel.download(source, target, progress))

    async def _there(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run `work` in the channel's event loop, and return or raise its outcome."""
        here = asyncio.get_running_loop()
        done: asyncio.Future[T] = here.create_future()
        tasks: list[asyncio.Task[T]] = []

        def begin() -> None:
            if self._channel.loop is self._loop and not done.cancelled():
                task = self._loop.create_task(work())
                tasks.append(task)
                task.add_done_callback(tell)
            else:
                tell(None)

        def tell(task: asyncio.Task[T] | None) -> None:
            try:
                here.call_soon_threadsafe(settle, task)
            except RuntimeError:
                pass  # the caller's loop has ended

        def settle(task: asyncio.Task[T] | None) -> None:
            if done.done():
                return
            if task is None or task.cancelled():
                done.set_exception(ConnectionLostError("The event loop that had the connection has ended"))
            elif (error := task.exception()) is not None:
                done.set_exception(error)
            else:
                done.set_result(task.result())

        def cancel() -> None:
            for task in tasks:
                task.cancel()

        if not self._tell_there(begin):
            settle(None)
        try:
            still = 0
            while not done.done():
                await asyncio.wait([done], timeout=_LOOK)
                still = 0 if self._loop.is_running() else still + 1
                if still > 1:  # one check may fall between two runs of the loop
                    if not self._tell_there(cancel):
                        _drop(tasks)
                    settle(None)
            return done.result()
        except asyncio.CancelledError:
            done.cancel()
            self._tell_there(cancel)
            raise

    def _tell_there(self, work: Callable[[], None]) -> bool:
        """Schedule `work` in the channel's loop; return False if that loop is closed."""
        try:
            self._loop.call_soon_threadsafe(work)
        except RuntimeError:
            return False
        return True


def _drop(tasks: list[asyncio.Task[T]]) -> None:
    """Suppress warnings about unfinished tasks of a closed loop; their callers get an error."""
    for task in tasks:
        work = task.get_coro()
        if inspect.iscoroutine(work) and inspect.getcoroutinestate(work) == inspect.CORO_CREATED:
            work.close()
        setattr(task, LOG_DESTROYED, False)
