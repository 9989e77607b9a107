"""Client of a swerex_c server over frames, for any event loop and any thread."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel

from swerex_c.exceptions import ProtocolError, RuntimeClosedError
from swerex_c.models import IsAliveResponse, UploadResponse
from swerex_c.remote.client.base import ANSWER_LIMIT, ServerInstances, fields_of, patience, response_of, too_long
from swerex_c.remote.client.calls import ClientChannel
from swerex_c.remote.client.connect import Address
from swerex_c.utils import background
from swerex_c.utils.progress import Progress

__all__ = ["FrameClient"]

M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")

OWN_AFTER = 8
"""Answered calls of an event loop after which it gets a connection of its own, so that its calls need no other thread.
The calls of a program with a new loop for each share one connection."""


@dataclass
class _Caller:
    """Event loop that calls: its own channel, and its calls over the shared connection."""

    channel: ClientChannel | None = None
    open: int = 0
    answered: int = 0


class FrameClient:
    """Client of one server, whose calls raise `NotFrames` if the server does not support frames.

    A connection in the private event loop serves the first calls of every loop, and all calls to a program. A loop that
    goes on to call gets a connection of its own.
    """

    def __init__(self, address: Address, reconnect_seconds: float = 30.0, answer_limit: int = ANSWER_LIMIT):
        """Create a client, which connects at its first call.

        Args:
            reconnect_seconds: seconds of attempts to connect before calls fail.
            answer_limit: maximum size of one response, in bytes.
        """
        self.address = address
        self._answer_limit = answer_limit
        self._reconnect_seconds = reconnect_seconds
        self._callers: dict[asyncio.AbstractEventLoop, _Caller] = {}
        self._instances = ServerInstances()
        self._shared: ClientChannel | None = None
        """Channel of the private event loop, which alone sets it."""

    # Calls

    async def is_alive(self, timeout: float) -> IsAliveResponse:
        """Check whether the server responds within `timeout` seconds; raise its error, or that of the connection."""
        answer = await self.run(lambda channel: channel.call("is_alive", {}, timeout, patient=False))
        return response_of(IsAliveResponse, answer)

    async def call(self, method: str, request: BaseModel | None, response_type: Callable[..., M]) -> M:
        """Call a method of the server, which executes the call at most once, and return or raise its outcome.

        Args:
            response_type: called with the fields of the response.

        Raises:
            ConnectionLostError, AuthenticationError, ServerRestartedError, ResultLostError: see these classes.
        """
        payload = fields_of(request)

        async def work(channel: ClientChannel) -> dict[str, Any]:
            try:
                # A server that was never reached has nothing to close, so do not retry.
                patient = method != "close" or channel.instance_id is not None
                answer = await channel.call(method, payload, patience(request), patient)
            except Exception as error:
                raise self._instances.explain(error, request, channel.instance_id) from None
            self._instances.note(method, request, channel.instance_id)
            return answer

        return response_of(response_type, await self.run(work))

    async def stream(self, request: BaseModel, response_type: Callable[..., M]) -> AsyncGenerator[str | M, None]:
        """Yield the output of an action as it arrives, and finally its observation."""
        decode = codecs.getincrementaldecoder("utf-8")("surrogatepass").decode
        pieces: list[str] = []
        size = 0
        async with contextlib.aclosing(self._items(request)) as items:
            async for item in items:
                if isinstance(item, bytes):
                    size += len(item)
                    try:
                        text = decode(item)
                    except UnicodeDecodeError as error:
                        raise ProtocolError(f"The server's output is not text: {error}") from error
                    if size <= self._answer_limit:
                        pieces.append(text)
                    else:
                        pieces.clear()  # the limit is for the output kept for the observation, not for the stream
                    if text:
                        yield text
                else:
                    if item.get("output", "") is None:
                        if size > self._answer_limit:
                            raise too_long("stream_in_session", self._answer_limit)
                        item["output"] = "".join(pieces)
                    yield response_of(response_type, item)

    async def _items(self, request: BaseModel) -> AsyncGenerator[bytes | dict[str, Any], None]:
        """Yield what a channel's `stream` yields."""
        own = await self.own_channel(long=True)

        async def items() -> AsyncGenerator[bytes | dict[str, Any], None]:
            channel = own or self.shared_channel()
            try:
                stream = channel.stream("stream_in_session", fields_of(request), patience(request))
                async with contextlib.aclosing(stream):
                    async for item in stream:
                        yield item
            except Exception as error:
                raise self._instances.explain(error, request, channel.instance_id) from None

        with contextlib.nullcontext() if own else self._shared_call():
            async with contextlib.aclosing(items() if own else background.iterate(items())) as source:
                async for item in source:
                    yield item

    async def upload(self, source: str, target: str, progress: Progress | None = None) -> UploadResponse:
        """Copy a file or directory tree to the server's machine, with modes and symbolic links."""
        await self.run(lambda channel: channel.upload(source, target, progress), long=True)
        return UploadResponse()

    async def download(self, source: str, target: str, progress: Progress | None = None) -> None:
        """Copy a file or directory tree from the server's machine, with modes and symbolic links."""
        await self.run(lambda channel: channel.download(source, target, progress), long=True)

    # Channels

    def __del__(self) -> None:
        """Close the connections of event loops that still run."""
        for channel in [self._shared, *(caller.channel for caller in self._callers.values())]:
            if channel is not None:
                with contextlib.suppress(RuntimeError):  # the loop is closed, so its connection is closed too
                    channel.loop.call_soon_threadsafe(channel.close)

    async def run(self, work: Callable[[ClientChannel], Coroutine[Any, Any, T]], *, long: bool = False) -> T:
        """Call `work` with the running loop's own channel, or in the private event loop with the shared one.

        A `long` call is worth an own channel, even if it is the first of its loop.
        """
        own = await self.own_channel(long)
        if own is not None:
            return await work(own)
        with self._shared_call():
            return await background.run(self._run_shared(work))

    async def _run_shared(self, work: Callable[[ClientChannel], Coroutine[Any, Any, T]]) -> T:
        return await work(self.shared_channel())

    @contextlib.contextmanager
    def _shared_call(self) -> Iterator[None]:
        """Count a call of the running loop over the shared connection."""
        caller = self._caller()
        caller.open += 1
        try:
            yield
            caller.answered += 1
        finally:
            caller.open -= 1

    def _caller(self) -> _Caller:
        loop = asyncio.get_running_loop()
        caller = self._callers.get(loop)
        if caller is None:
            for ended in [other for other in list(self._callers) if other.is_closed()]:
                self._callers.pop(ended, None)  # another thread may have done so
            caller = self._callers[loop] = _Caller()
        return caller

    async def own_channel(self, long: bool = False) -> ClientChannel | None:
        """Return the running loop's own channel for the next call; None if that goes over the shared connection."""
        caller = self._caller()
        if caller.channel is not None:
            return None if caller.channel.closed else caller.channel  # closed: the loop is shutting down
        # While shared calls are open, a call on another connection could overtake them.
        if self.address.command or caller.open or not (long or caller.answered >= OWN_AFTER):
            return None
        if background.is_running_loop():
            return None
        caller.channel = self._new_channel()
        await caller.channel.guard()
        return caller.channel

    def _new_channel(self) -> ClientChannel:
        return ClientChannel(self.address, self._reconnect_seconds, self._answer_limit)

    def shared_channel(self) -> ClientChannel:
        """Return the channel of the private event loop. Call this in that loop."""
        found, loop = self._shared, asyncio.get_running_loop()
        if found is not None and found.loop is not loop and self.address.command:
            raise RuntimeClosedError(f"The program `{self.address}` is the parent process's: make another runtime")
        if found is None or found.closed or found.loop is not loop:
            found = self._shared = self._new_channel()
        return found

    async def close(self) -> None:
        """Close the shared connection and that of the running loop; those of other loops close when these end."""
        caller = self._caller()
        own, caller.channel = caller.channel, None
        if own is not None:
            await own.close_and_wait()
        if self._shared is not None:
            await background.run(self._close_shared())

    async def _close_shared(self) -> None:
        channel, self._shared = self._shared, None
        if channel is not None and channel.loop is asyncio.get_running_loop():
            await channel.close_and_wait()
