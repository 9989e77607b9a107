"""The client of the frames, for servers of ours: what a runtime calls, in any event loop and any thread."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import threading
import weakref
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from swerex_c.exceptions import (
    AuthenticationError,
    ConnectionLostError,
    ProtocolError,
    ResultLostError,
    ServerLimitError,
    ServerRestartedError,
)
from swerex_c.remote.client import ANSWER_LIMIT, Boots, patience, too_long
from swerex_c.remote.client_channel import Channel
from swerex_c.remote.dial import Address, NotFrames
from swerex_c.remote.elsewhere import ChannelElsewhere
from swerex_c.runtime.abstract import (
    BashAction,
    BashInterruptAction,
    Command,
    IsAliveResponse,
    ReadFileRequest,
    UploadResponse,
    WriteFileRequest,
)
from swerex_c.utils.progress import Progress, adding

__all__ = ["Address", "NotFrames", "WireClient"]

M = TypeVar("M", bound=BaseModel)

_PLAIN = {BashAction, BashInterruptAction, Command, ReadFileRequest, WriteFileRequest}
"""Requests whose fields are nothing but what frames carry."""

_UNREACHABLE = (
    AuthenticationError,
    ConnectionLostError,
    ProtocolError,
    ResultLostError,
    ServerLimitError,
    ServerRestartedError,
)


class WireClient:
    """Calls a server, over a channel for each event loop it is used in. Raises `NotFrames` if that cannot be."""

    def __init__(self, address: Address, reconnect_seconds: float = 30.0, answer_limit: int = ANSWER_LIMIT):
        """
        Args:
            reconnect_seconds: how long a call waits for a connection, at first and when it broke.
            answer_limit: bytes of one answer that are taken.
        """
        self.address = address
        self._answer_limit = answer_limit
        self._reconnect_seconds = reconnect_seconds
        self._channels: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Channel] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()
        self._boots = Boots()
        self.refuses_key = False
        """Whether that was why the last `is_alive` got no answer."""
        self._only: Channel | None = None
        """The channel of a program's streams, of which there is one for all loops."""

    # Calls

    async def is_alive(self, timeout: float) -> IsAliveResponse:
        """Whether the server answers that it is alive, within `timeout` seconds."""
        self.refuses_key = False
        try:
            answer = await (await self.channel()).call("is_alive", {}, timeout, patient=False)
            return _model(IsAliveResponse, answer)
        except _UNREACHABLE as error:
            self.refuses_key = isinstance(error, AuthenticationError)
            return IsAliveResponse(is_alive=False, message=f"Failed to connect to {self.address}\n{error}")

    async def call(self, method: str, request: BaseModel | None, response_type: Callable[..., M]) -> M:
        """What a method of the server returns or raises. It is carried out at most once.

        Args:
            response_type: called with the fields of the answer.

        Raises:
            ConnectionLostError, AuthenticationError, ServerRestartedError, ResultLostError: see there.
        """
        channel = await self.channel()
        payload = _fields(request)
        try:
            # What was never reached has nothing to close that would be worth waiting for.
            patient = method != "close" or channel.boot is not None
            answer = await channel.call(method, payload, patience(request), patient)
        except Exception as error:
            raise self._boots.explain(error, request, channel.boot) from None
        self._boots.note(method, request, channel.boot)
        return _model(response_type, answer)

    async def stream(self, request: BaseModel, response_type: Callable[..., M]) -> AsyncIterator[str | M]:
        """The output of an action as it comes, and at last its observation."""
        channel = await self.channel()
        decoder = codecs.getincrementaldecoder("utf-8")("surrogatepass")
        pieces: list[str] | None = []
        size = 0
        try:
            async for item in channel.stream("stream_in_session", request.model_dump(), patience(request)):
                if isinstance(item, bytes):
                    size += len(item)
                    if size > self._answer_limit:
                        pieces = None  # a stream may be as long as it likes; what is kept for its answer may not
                    if text := _text(decoder, item):
                        if pieces is not None:
                            pieces.append(text)
                        yield text
                else:
                    if item.get("output", "") is None:
                        if pieces is None:
                            raise too_long("stream_in_session", self._answer_limit)
                        item["output"] = "".join(pieces)
                    yield _model(response_type, item)
        except Exception as error:
            raise self._boots.explain(error, request, channel.boot) from None

    async def upload(self, source: str, target: str, progress: Progress | None = None) -> UploadResponse:
        """Copy a file or a tree to the server's machine, in pieces; modes and symbolic links are kept."""
        await (await self.channel()).upload(source, target, adding(progress))
        return UploadResponse()

    async def download(self, source: str, target: str, progress: Progress | None = None) -> None:
        """Copy a file or a tree from the server's machine, by the rules of an upload."""
        await (await self.channel()).download(source, target, adding(progress))

    # Channels

    def __del__(self) -> None:
        """Nobody calls any more: end the connections of loops that run on."""
        for loop, channel in list(self._channels.items()):
            with contextlib.suppress(RuntimeError):  # it is closed, and has nothing open
                loop.call_soon_threadsafe(channel.close)

    async def channel(self) -> Channel | ChannelElsewhere:
        """The channel of the running loop, or to the one that there is."""
        loop = asyncio.get_running_loop()
        found = self._channels.get(loop)
        if found is not None and not found.closed:
            return found
        if self.address.command:
            return self._the_only(loop)
        with self._lock:
            for other in [other for other in self._channels if other.is_closed()]:
                del self._channels[other]
            made = self._channels[loop] = self._new_channel()
        if found is None:  # else the loop is ending, and what is closed last still calls
            await made.guard()
        return made

    def _new_channel(self) -> Channel:
        return Channel(self.address, self._reconnect_seconds, self._answer_limit)

    def _the_only(self, loop: asyncio.AbstractEventLoop) -> Channel | ChannelElsewhere:
        with self._lock:
            if self._only is None:
                self._only = self._new_channel()
            elif self._only.loop is not loop:
                if self._only.loop.is_running():
                    return ChannelElsewhere(self._only)
                self._only.move()
            return self._only

    async def close(self) -> None:
        """End the running loop's connection; those of other loops end with these."""
        loop = asyncio.get_running_loop()
        with self._lock:
            found = self._channels.pop(loop, None)
            if self._only is not None:
                found, self._only = self._only, None
        if found is None:
            return
        if found.loop is not loop:
            if found.loop.is_running():
                found.loop.call_soon_threadsafe(found.close)
                return
            found.move()
        if (link := found.close()) is not None:
            await link.left()


def _fields(request: BaseModel | None) -> dict[str, Any]:
    if request is None:
        return {}
    # A subclass of a caller may hold anything.
    return dict(request.__dict__) if type(request) in _PLAIN else request.model_dump()


def _model(response_type: Callable[..., M], fields: Any) -> M:
    try:
        return response_type(**fields)
    except (ValidationError, TypeError) as error:
        raise ProtocolError(f"The server's answer cannot be read: {error}") from error


def _text(decoder: codecs.IncrementalDecoder, data: bytes) -> str:
    try:
        return decoder.decode(data)
    except UnicodeDecodeError as error:
        raise ProtocolError(f"The server's output is no text: {error}") from error
