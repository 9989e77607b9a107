"""The use of a channel from another event loop than its own, for the one connection that cannot be opened twice: a
program's standard streams."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import AsyncIterator, Coroutine
from typing import Any, TypeVar

from swerex_c.exceptions import ConnectionLostError
from swerex_c.remote.client_channel import Channel
from swerex_c.remote.copying import Progress

__all__ = ["ChannelElsewhere"]

T = TypeVar("T")


class ChannelElsewhere:
    """Does what a `Channel` does, in its event loop, which runs in another thread. Made for one call.

    A call that is under way when that loop ends is lost with it (`ConnectionLostError`); the next one makes its own
    loop the channel's.
    """

    def __init__(self, channel: Channel):
        self._channel = channel

    @property
    def boot(self) -> str | None:
        return self._channel.boot

    async def call(
        self, method: str, payload: dict[str, Any], seconds: float | None = None, patient: bool = True
    ) -> dict[str, Any]:
        return await self._there(self._channel.call(method, payload, seconds, patient))

    async def stream(self, method: str, payload: dict[str, Any]) -> AsyncIterator[bytes | dict[str, Any]]:
        stream = self._channel.stream(method, payload)
        end = object()

        async def following() -> Any:
            return await anext(stream, end)

        try:
            while (item := await self._there(following())) is not end:
                yield item
        finally:
            await self._there(stream.aclose())  # type: ignore[attr-defined]

    async def upload(self, source: str, target: str, progress: Progress | None = None) -> dict[str, Any]:
        return await self._there(self._channel.upload(source, target, progress))

    async def download(self, source: str, target: str, progress: Progress | None = None) -> dict[str, Any]:
        return await self._there(self._channel.download(source, target, progress))

    async def _there(self, work: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self._channel.loop)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise ConnectionLostError("The event loop that had the connection has ended") from None
        except concurrent.futures.CancelledError:
            raise ConnectionLostError("The event loop that had the connection has ended") from None
