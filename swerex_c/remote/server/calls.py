"""The server's end of the frame protocol: channels of clients, and their calls, each of which is executed once.

    Registry          all channels and connections of a server
    ServerConnection  one connection; finds its channel and passes frames to it
    ServerChannel     the calls of one client, over any number of successive connections
    ServerCall        one request: its task, its streams, and its response while the client may ask for it again

All of these objects belong to one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import http.client
import io
import re
import time
from collections import deque
from email.message import Message
from typing import Any

from swerex_c import _core
from swerex_c.exceptions import InvalidInputError, ProtocolError, ResultLostError, ServerLimitError, SwerexException
from swerex_c.remote.server import logs
from swerex_c.remote.server.requests import Request
from swerex_c.remote.server.service import METHODS, STREAMING_METHODS, InvalidRequestError, Service, validate
from swerex_c.remote.wire import file_transfer, protocol
from swerex_c.remote.wire.connection import FrameConnection
from swerex_c.remote.wire.exceptions import to_wire
from swerex_c.remote.wire.streams import Receiver, Sender

__all__ = ["Registry", "ServerConnection", "upgrade_fields"]

_SWEEP = 5.0
"""Seconds between two sweeps, which drop expired results and channels, and calls that wait for a client."""

_AT_ONCE = 64
"""Maximum number of frames of one client to handle in one turn of the event loop."""

_SHARE = 4
"""A client may have this part of `Limits.result_bytes` in responses that it has not read, whatever other clients do."""

_ENDING = "The server shuts down"

_REQUEST_LINE = re.compile(rb"GET [^ ?]*/wire(\?[^ ]*)? HTTP/1\.1")
_CHANNEL = re.compile("[0-9a-f]{32}")


def upgrade_fields(head: bytes) -> Message | None:
    """Return the headers if an HTTP head asks for the frame protocol on a channel, else None."""
    request, _, fields = head.partition(b"\r\n")
    if not _REQUEST_LINE.fullmatch(request):
        return None
    try:
        headers = http.client.parse_headers(io.BytesIO(fields + b"\r\n\r\n"))
    except http.client.HTTPException:
        return None
    tokens = ",".join(headers.get_all("Connection", [])).lower().split(",")
    asked = headers.get("Upgrade", "").strip().lower() == protocol.UPGRADE and "upgrade" in map(str.strip, tokens)
    return headers if asked and _CHANNEL.fullmatch(headers.get(protocol.CHANNEL_HEADER, "")) else None


class ServerCall(Request):
    """One request, from its first frame until its response is no longer needed."""

    def __init__(self, channel: ServerChannel, number: int, method: str, payload: Any):
        super().__init__((channel.name, number))
        self.channel = channel
        self.id = number
        self.connection = channel.connection
        """Connection over which the client sent the request last; None if that is lost."""
        self.method = method
        self.begin = time.perf_counter()
        self.response: bytes | None = None
        """Encoded RESULT or ERROR frame; None until the request is finished."""
        has_stream = payload.__class__ is int or method == "upload"
        self.up = Receiver(number, protocol.UP, self.connection) if has_stream else None
        """Stream of the client; None once nothing more of it is needed."""
        self.down: Sender | None = None
        self.answer: Sender | None = None
        """Stream of a response that is too long for a frame."""
        self.unwanted = False
        """True if the client has cancelled the request."""
        self.task = asyncio.create_task(self._run(payload))
        self.task.add_done_callback(self._done)

    # -- the request

    async def _run(self, payload: Any) -> dict[str, Any]:
        """Execute the request as soon as its payload is there; return the fields of its result."""
        service = self.channel.registry.service
        if self.method != "is_alive":
            self.channel.check_unread()
        if payload.__class__ is int and payload > (most := service.limits.body):
            raise ServerLimitError(f"The request has {payload} bytes; the server takes {most}")
        if self.method not in METHODS and self.method not in STREAMING_METHODS:
            raise InvalidInputError(f"There is no method {self.method!r:.100}")
        with service.counted(self.method):
            if payload.__class__ is int:
                payload = await self._long_payload(payload)
            try:
                request = validate(STREAMING_METHODS.get(self.method) or METHODS[self.method], payload)
            except InvalidRequestError as error:
                raise InvalidInputError(f"The request for {self.method} is not valid: {error}") from None
            del payload  # which may be long
            if self.method in STREAMING_METHODS:
                fields: dict[str, Any] = await getattr(self, f"_{self.method}")(request)
                return fields
            return (await service.call(self.method, request)).__dict__

    async def _long_payload(self, size: int) -> Any:
        assert self.up is not None
        data = io.BytesIO()
        async with contextlib.aclosing(self.up.pieces()) as pieces:
            while data.tell() < size and (piece := await anext(pieces, b"")):
                data.write(piece)
        up, self.up = self.up, None
        if up.received != size:
            raise InvalidInputError("The request does not have its announced size")
        try:
            return protocol.decode_payload(data.getvalue())
        except _core.FrameError as error:
            raise InvalidInputError(f"The request cannot be read: {error}") from None

    async def _stream_in_session(self, action: Any) -> dict[str, Any]:
        self.down = Sender(self.id, protocol.DOWN, self.connection)
        answer: dict[str, Any] = {}
        sent = hashlib.blake2b()
        stream = self.channel.registry.service.runtime.stream_in_session(action)
        async with contextlib.aclosing(stream):  # type: ignore[type-var]
            async for item in stream:
                if isinstance(item, str):
                    data = item.encode("utf-8", "surrogatepass")
                    sent.update(data)
                    self.down.write(data)
                    await self.down.room()
                else:
                    answer = dict(item.__dict__)
        output = answer.get("output")
        if output and hashlib.blake2b(output.encode("utf-8", "surrogatepass")).digest() == sent.digest():
            answer["output"] = None
        return answer

    async def _upload(self, request: Any) -> dict[str, Any]:
        if self.up is None:
            raise InvalidInputError("The path is too long")
        await file_transfer.receive(self.up.pieces(), request.target_path)
        return {}

    async def _download(self, request: Any) -> dict[str, Any]:
        self.down = Sender(self.id, protocol.DOWN, self.connection)
        async with file_transfer.open_stream(request.path) as pieces:
            await self.down.send(pieces)
        return {}

    # -- the response

    def _done(self, task: asyncio.Task[dict[str, Any]]) -> None:
        """Encode the outcome, keep it, send it, and log it."""
        error = SwerexException("The request was cancelled") if task.cancelled() else task.exception()
        size = 0 if self.down is None else self.down.written
        kind, payload = (protocol.RESULT, task.result()) if error is None else (protocol.ERROR, to_wire(error))
        try:
            self.response, long = protocol.encode_message(kind, self.id, size, payload)
        except _core.FrameError as reason:
            refused = ServerLimitError(f"The answer cannot be sent: {reason}")
            self.response, long = protocol.encode_message(protocol.ERROR, self.id, size, to_wire(refused))
        self.task = None
        self.up = None
        if long is not None:
            self.answer = Sender(self.id, protocol.ANSWER, self.connection)
            self.answer.write(long)
        if self.connection is not None:
            self.connection.send_encoded(self.response)
        self.channel.requests.finished(self, len(self.response) + len(long or b""))
        if self.channel.ended or self.unwanted or self.method == "is_alive":  # which the client may ask again
            self.channel.requests.drop(self)
        outcome = "cancelled" if task.cancelled() else "done" if error is None else type(error).__name__
        client = "" if self.connection is None else self.connection.client
        seconds = time.perf_counter() - self.begin
        logs.request_done(self.method, seconds, outcome, client, str(self.id), error is not None)

    # -- connections

    def attach(self, connection: ServerConnection) -> None:
        """Continue over the connection on which the client asked again."""
        self.connection = connection
        for lane in self.lanes:
            lane.attach(connection)
        if self.response is not None:
            connection.send_encoded(self.response)

    def detach(self) -> None:
        self.connection = None
        for lane in self.lanes:
            lane.detach()

    @property
    def lanes(self) -> list[Sender | Receiver]:
        return [lane for lane in (self.up, self.down, self.answer) if lane is not None]

    @property
    def in_transfer(self) -> bool:
        """True if the client is connected and has not yet taken all bytes of the streams."""
        return self.connection is not None and any(lane.held for lane in (self.down, self.answer) if lane is not None)

    def dropped(self) -> None:
        del self.channel.calls[self.id]


class ServerChannel:
    """The requests of one client and their responses, over successive connections."""

    def __init__(self, registry: Registry, name: str):
        self.registry = registry
        self.name = name
        self.connection: ServerConnection | None = None
        self.calls: dict[int, ServerCall] = {}
        self.highest = 0
        self.detached_at = 0.0
        self.ended = False
        """True if the client will not ask for responses again."""
        self.requests = registry.service.requests

    def request(self, frame: list[Any]) -> None:
        _, number, method, floor, payload = frame
        if number.__class__ is not int or number < 1 or floor.__class__ is not int or method.__class__ is not str:
            raise ProtocolError("The client sent an invalid request")
        if payload.__class__ is int and payload < 0:
            raise ProtocolError("A request has a negative size")
        self.forget(floor)
        call = self.calls.get(number)
        assert self.connection is not None
        if call is not None:
            call.attach(self.connection)
            return
        if number <= self.highest and method != "is_alive":
            msg = "The request was received before; its result is no longer kept"
            self.connection.send([protocol.ERROR, number, 0, to_wire(ResultLostError(msg))])
            return
        self.highest = max(number, self.highest)
        self.calls[number] = ServerCall(self, number, method, payload)

    def check_unread(self) -> None:
        """Check the limit on responses that the client has not read: they use memory, and are not dropped."""
        most = self.registry.service.limits.result_bytes
        if self.requests.kept_bytes > most:
            unread = [call.size for call in self.calls.values() if call.in_transfer]
            if len(unread) > 1 and sum(unread) * _SHARE > most:
                raise ServerLimitError(
                    f"The client has not read {sum(unread)} bytes of earlier responses: read them first"
                )

    def forget(self, floor: int) -> None:
        """Drop the calls below `floor`, whose responses the client has."""
        calls = self.calls
        while calls:
            first = next(iter(calls))
            if first >= floor or calls[first].response is None:
                break
            self.requests.drop(calls[first])

    def attach(self, connection: ServerConnection) -> None:
        """Take the frames of a new connection."""
        if (old := self.connection) is not None:  # which the client has lost
            self.detach()
            old.channel = None
            old.abort()
        self.connection = connection
        connection.channel = self
        connection.handlers |= {
            protocol.REQUEST: self.request,
            protocol.CANCEL: self.cancel,
            protocol.CREDIT: self.credit,
            protocol.DATA: self.data,
            protocol.END: self.end_of_stream,
            protocol.GOODBYE: connection.goodbye,
        }

    def detach(self) -> None:
        self.connection = None
        self.detached_at = time.monotonic()
        for call in self.calls.values():
            call.detach()

    def cancel(self, frame: list[Any]) -> None:
        """Cancel a call for which the client no longer waits; drop a finished call."""
        call = self.calls.get(frame[1])
        if call is not None:
            if call.response is None:
                call.unwanted = True
                call.cancel()
            else:
                call.detach()
                self.requests.drop(call)

    def credit(self, frame: list[Any]) -> None:
        _, number, lane, offset = frame
        call = self.calls.get(number)
        sender = None if call is None else call.down if lane == protocol.DOWN else call.answer
        if sender is not None:
            sender.credit(offset)

    def data(self, frame: list[Any]) -> None:
        _, number, _, offset, data = frame
        if (call := self.calls.get(number)) is not None and call.up is not None:
            call.up.data(offset, data)

    def end_of_stream(self, frame: list[Any]) -> None:
        _, number, _, offset = frame
        if (call := self.calls.get(number)) is not None and call.up is not None:
            call.up.end(offset)

    def end(self) -> None:
        """Cancel all calls and drop their responses: the client is gone for good."""
        self.ended = True
        self.detach()
        self.cancel_all()
        for call in [call for call in self.calls.values() if call.response is not None]:
            self.requests.drop(call)
        self.registry.channels.pop(self.name, None)

    def cancel_all(self) -> None:
        for call in self.calls.values():
            call.cancel()

    @property
    def idle(self) -> bool:
        return all(call.response is not None for call in self.calls.values())


class Registry:
    """All channels and connections of a server."""

    def __init__(self, service: Service):
        self.service = service
        self.channels: dict[str, ServerChannel] = {}
        self.connections: set[ServerConnection] = set()
        self.ending = False
        """True if the server is shutting down. It then refuses channels: their requests are being cancelled."""
        self._timer = asyncio.get_running_loop().call_later(_SWEEP, self._sweep)

    def open(self, name: str, connection: ServerConnection) -> bytes:
        """Make `connection` that of the channel `name`; return the head of the response.

        Raises:
            ServerLimitError: if there are too many channels, or the server shuts down.
        """
        if self.ending:
            raise ServerLimitError(_ENDING)
        known = name in self.channels
        if not known:
            if len(self.channels) >= 2 * self.service.limits.connections:
                self._forget_oldest()
            self.channels[name] = ServerChannel(self, name)
        self.channels[name].attach(connection)
        return (
            f"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: {protocol.UPGRADE}\r\n"
            f"{protocol.SERVER_HEADER}: {self.service.instance_id}\r\n"
            f"{protocol.CHANNEL_HEADER}: {'known' if known else 'new'}\r\n\r\n"
        ).encode()

    def _forget_oldest(self) -> None:
        lonely = [channel for channel in self.channels.values() if channel.connection is None and channel.idle]
        if not lonely:
            raise ServerLimitError("The server has too many clients: try again later")
        min(lonely, key=lambda channel: channel.detached_at).end()

    def _sweep(self) -> None:
        self.service.requests.trim()
        now = time.monotonic()
        keep = self.service.limits.result_seconds
        for channel in list(self.channels.values()):
            if channel.connection is None and now - channel.detached_at > keep:
                if channel.idle:
                    channel.end()
                for call in channel.calls.values():
                    if call.up is not None or call.down is not None:  # it may wait for the client
                        call.cancel()
        self._timer = asyncio.get_running_loop().call_later(_SWEEP, self._sweep)

    def cancel_detached(self) -> None:
        """Cancel the requests of clients without a connection: nobody waits for the responses."""
        for channel in self.channels.values():
            if channel.connection is None:
                channel.cancel_all()

    async def shutdown(self, seconds: float = 2.0) -> None:
        """Send GOODBYE and close all connections; responses have up to `seconds` to be sent first."""
        self.ending = True
        self.cancel_detached()
        for connection in list(self.connections):
            connection.send([protocol.GOODBYE, _ENDING])
            connection.close()
        until = time.monotonic() + seconds
        while self.connections and time.monotonic() < until:
            await asyncio.sleep(0.01)
        for connection in list(self.connections):
            connection.abort()
        for channel in self.channels.values():
            channel.cancel_all()
        self._timer.cancel()


class ServerConnection(FrameConnection):
    """The server's end of one connection, after authentication."""

    def __init__(self, registry: Registry, head: bytes | None = None):
        super().__init__(head)
        self.registry = registry
        self.channel: ServerChannel | None = None
        self.client = ""
        self._backlog: deque[Any] = deque()
        """Received frames that are not handled yet; reading is paused while there are any."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.client = logs.client_name(transport.get_extra_info("peername"))
        self.registry.connections.add(self)
        self.registry.service.connections += 1

    def lost(self, error: BaseException) -> None:
        self.registry.connections.remove(self)
        self.registry.service.connections -= 1
        if isinstance(error, ProtocolError):
            logs.LOGGER.warning("The client %s was disconnected: %s", self.client, error)
        if self.channel is not None:
            self.channel.detach()

    def handle(self, frames: list[Any]) -> None:
        """Handle a limited number of frames in each turn of the event loop, so that other tasks run in between."""
        if len(frames) <= _AT_ONCE and not self._backlog:
            super().handle(frames)
            return
        if not self._backlog:
            self.transport.pause_reading()
            self._loop.call_soon(self._go_on)
        self._backlog.extend(frames)

    def _go_on(self) -> None:
        if self.paused or self.closing:
            return
        super().handle([self._backlog.popleft() for _ in range(min(_AT_ONCE, len(self._backlog)))])
        if self._backlog:
            self._loop.call_soon(self._go_on)
        elif not self.paused and not self.closing:
            self.transport.resume_reading()

    def pause_writing(self) -> None:
        """Stop reading from a client that does not read."""
        super().pause_writing()
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._go_on()

    # -- frames

    def _ping(self, frame: list[Any]) -> None:
        super()._ping(frame)
        if self.channel is not None and len(frame) > 1:
            self.channel.forget(frame[1])

    def goodbye(self, frame: list[Any]) -> None:
        """End the channel and the connection: the client will not ask for its responses again."""
        channel, self.channel = self.channel, None
        if channel is not None:
            channel.end()
        self.close()
