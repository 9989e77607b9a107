"""Client of a swerex_c server over frames, for any event loop and any thread."""

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
from swerex_c.models import (
    BashAction,
    BashInterruptAction,
    Command,
    IsAliveResponse,
    ReadFileRequest,
    UploadResponse,
    WriteFileRequest,
)
from swerex_c.remote.client.base import ANSWER_LIMIT, ServerInstances, fields_of, patience, too_long
from swerex_c.remote.client.calls import ClientChannel
from swerex_c.remote.client.connect import Address, NotFrames
from swerex_c.remote.client.cross_loop import CrossLoopChannel
from swerex_c.utils.progress import Progress, adding

__all__ = ["Address", "NotFrames", "WireClient"]

M = TypeVar("M", bound=BaseModel)

_PLAIN = {BashAction, BashInterruptAction, Command, ReadFileRequest, WriteFileRequest}
"""Request models whose fields can be encoded in a frame without conversion."""

_UNREACHABLE = (  # errors that `is_alive` reports as a server that is not alive
    AuthenticationError,
    ConnectionLostError,
    ProtocolError,
    ResultLostError,
    ServerLimitError,
    ServerRestartedError,
)


class WireClient:
    """Client of one server, with one channel per event loop.

    Calls raise `NotFrames` if frames are not available.
    """

    def __init__(self, address: Address, reconnect_seconds: float = 30.0, answer_limit: int = ANSWER_LIMIT):
        """Create a client, which connects at its first call.

        Args:
            reconnect_seconds: seconds of attempts to connect, at first or after a lost connection, before calls fail.
            answer_limit: maximum size of one response, in bytes.
        """
        self.address = address
        self._answer_limit = answer_limit
        self._reconnect_seconds = reconnect_seconds
        self._channels: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, ClientChannel]
        self._channels = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()
        self._instances = ServerInstances()
        self.refuses_key = False
        """True if the last `is_alive` failed because the server refuses the key."""
        self._only: ClientChannel | None = None
        """Channel over a program's standard streams, which all event loops share."""

    # Calls

    async def is_alive(self, timeout: float) -> IsAliveResponse:
        """Check whether the server is alive and responds within `timeout` seconds."""
        self.refuses_key = False
        try:
            answer = await (await self.channel()).call("is_alive", {}, timeout, patient=False)
            return _model(IsAliveResponse, answer)
        except _UNREACHABLE as error:
            self.refuses_key = isinstance(error, AuthenticationError)
            return IsAliveResponse(is_alive=False, message=f"Failed to connect to {self.address}\n{error}")

    async def call(self, method: str, request: BaseModel | None, response_type: Callable[..., M]) -> M:
        """Call a method of the server, and return or raise its outcome.

        The server executes the call at most once.

        Args:
            response_type: called with the fields of the response.

        Raises:
            ConnectionLostError, AuthenticationError, ServerRestartedError, ResultLostError: see these classes.
        """
        channel = await self.channel()
        payload = _fields(request)
        try:
            # A server that was never reached has nothing to close, so do not retry.
            patient = method != "close" or channel.instance_id is not None
            answer = await channel.call(method, payload, patience(request), patient)
        except Exception as error:
            raise self._instances.explain(error, request, channel.instance_id) from None
        self._instances.note(method, request, channel.instance_id)
        return _model(response_type, answer)

    async def stream(self, request: BaseModel, response_type: Callable[..., M]) -> AsyncIterator[str | M]:
        """Yield the output of an action as it arrives, and finally its observation."""
        channel = await self.channel()
        decoder = codecs.getincrementaldecoder("utf-8")("surrogatepass")
        pieces: list[str] | None = []
        size = 0
        try:
            async for item in channel.stream("stream_in_session", request.model_dump(), patience(request)):
                if isinstance(item, bytes):
                    size += len(item)
                    if size > self._answer_limit:
                        pieces = None  # the limit is for the output kept for the observation, not for the stream
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
            raise self._instances.explain(error, request, channel.instance_id) from None

    async def upload(self, source: str, target: str, progress: Progress | None = None) -> UploadResponse:
        """Copy a file or directory tree to the server's machine.

        It is sent in chunks, with modes and symbolic links.
        """
        await (await self.channel()).upload(source, target, adding(progress))
        return UploadResponse()

    async def download(self, source: str, target: str, progress: Progress | None = None) -> None:
        """Copy a file or directory tree from the server's machine.

        It is sent in chunks, with modes and symbolic links.
        """
        await (await self.channel()).download(source, target, adding(progress))

    # Channels

    def __del__(self) -> None:
        """Close the connections of event loops that still run."""
        for loop, channel in list(self._channels.items()):
            with contextlib.suppress(RuntimeError):  # the loop is closed, so its connection is closed too
                loop.call_soon_threadsafe(channel.close)

    async def channel(self) -> ClientChannel | CrossLoopChannel:
        """Return the running loop's channel.

        For a program, return the shared channel, or a proxy to it if it belongs to another running loop.
        """
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
        if found is None:  # otherwise the loop is shutting down, and its last generators still make calls
            await made.guard()
        return made

    def _new_channel(self) -> ClientChannel:
        return ClientChannel(self.address, self._reconnect_seconds, self._answer_limit)

    def _the_only(self, loop: asyncio.AbstractEventLoop) -> ClientChannel | CrossLoopChannel:
        with self._lock:
            if self._only is None:
                self._only = self._new_channel()
            elif self._only.loop is not loop:
                if self._only.loop.is_running():
                    return CrossLoopChannel(self._only)
                self._only.move()
            return self._only

    async def close(self) -> None:
        """Close the running loop's connection, or the shared connection to a program.

        Connections of other loops close when these loops end.
        """
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
        await found.close_and_wait()


def _fields(request: BaseModel | None) -> dict[str, Any]:
    if request is None:
        return {}
    # A caller's subclass of a model may have fields of any type.
    return dict(request.__dict__) if type(request) in _PLAIN else fields_of(request)


def _model(response_type: Callable[..., M], fields: Any) -> M:
    try:
        return response_type(**fields)
    except (ValidationError, TypeError) as error:
        raise ProtocolError(f"The server's answer cannot be read: {error}") from error


def _text(decoder: codecs.IncrementalDecoder, data: bytes) -> str:
    try:
        return decoder.decode(data)
    except UnicodeDecodeError as error:
        raise ProtocolError(f"The server's output is not text: {error}") from error
