"""Calls of the frame client, executed at most once even if a connection breaks. `wire.protocol` defines the frames."""

from __future__ import annotations

import asyncio
import contextlib
import io
import math
import os
from collections.abc import AsyncGenerator, Awaitable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from swerex_c import _core
from swerex_c.exceptions import (
    AuthenticationError,
    ConnectionLostError,
    InvalidInputError,
    ProtocolError,
    ResultLostError,
    RuntimeClosedError,
    ServerRestartedError,
    SwerexException,
)
from swerex_c.remote.client.base import ANSWER_LIMIT, NotFrames, advice, too_long
from swerex_c.remote.client.connect import Address, check_upgrade, connect, upgrade_request
from swerex_c.remote.wire import file_transfer, protocol
from swerex_c.remote.wire.connection import FrameConnection
from swerex_c.remote.wire.exceptions import from_wire
from swerex_c.remote.wire.streams import Receiver, Sender
from swerex_c.utils.progress import Progress
from swerex_c.utils.wait import end_tasks

__all__ = ["ClientChannel"]

T = TypeVar("T")

_CONNECT_SECONDS = 10.0
"""Timeout of one attempt to connect, until the server has upgraded the connection, in seconds."""

_GOODBYE_SECONDS = 0.5
"""Seconds to wait after GOODBYE for the server to close the connection, before the client aborts it."""

_CANCEL_SECONDS = 1.0
"""Maximum seconds that a cancelled call waits for the server to confirm that it has read the cancellation."""

_LAST_SECONDS = 5.0
"""Seconds that the shutdown of an event loop waits for calls that its other asynchronous generators still make."""

_BACKOFF = (0.05, 1.0)
"""First and maximum pause between two attempts to connect, in seconds. The pause doubles each time."""

HEARTBEAT = 15.0
"""Seconds between two PING frames."""

_IDLE_BEATS = 20
"""Heartbeats without a call after which a connection is closed; the next call opens another one."""

_STEADY = 1.0
"""Seconds after which a connection counts as successful even without a response."""

_CLOSED = "The runtime was closed before the server answered"


@dataclass(eq=False, slots=True)
class _Call:
    """Client-side state of one call."""

    id: int
    method: str
    payload: dict[str, Any] | int
    """The request, or the size in bytes of one that is sent as a stream."""
    future: asyncio.Future[dict[str, Any]]
    patient: bool = True
    sent: bool = False
    dropped: bool = False
    """True if CANCEL is to be sent over the next connection."""
    up: Sender | None = None
    down: Receiver | None = None
    answer: Receiver | None = None
    answer_data: io.BytesIO = field(default_factory=io.BytesIO)
    """Bytes of `answer` received so far; `getvalue` does not copy them."""
    outcome: list[Any] | None = None
    """RESULT or ERROR frame; None until it is received."""

    @property
    def lanes(self) -> list[Sender | Receiver]:
        return [lane for lane in (self.up, self.down, self.answer) if lane is not None]


class ClientChannel:
    """Calls of one event loop to one server, over a connection that is opened when needed, and again when it breaks."""

    def __init__(self, address: Address, reconnect_seconds: float, answer_limit: int = ANSWER_LIMIT):
        self.address = address
        self.loop = asyncio.get_running_loop()
        self.instance_id: str | None = None
        """Id of the server process; None before the first connection."""
        self.closed = False
        """True if the channel takes no more calls."""
        self._answer_limit = answer_limit
        self._reconnect_seconds = reconnect_seconds
        self._name = os.urandom(16).hex()
        self._calls: dict[int, _Call] = {}
        self._last_id = 0
        self._connection: ClientConnection | None = None
        self._opened_at = 0.0
        self._idle_beats = 0
        """Number of heartbeats since the last call."""
        self._connecting: asyncio.Task[None] | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._outage_began = math.inf
        """Start of the current outage, in the loop's time; infinite if there is none."""
        self._pause = 0.0
        self._last_error = ""
        """Error message of the last attempt to connect, empty if the attempt succeeded."""
        self._late_refusal: NotFrames | None = None
        """The server's refusal of frames, if it came after all calls had timed out: the next call raises it."""
        self._guard: AsyncGenerator[None, None] | None = None

    # -- calls

    async def call(
        self, method: str, payload: dict[str, Any], seconds: float | None = None, patient: bool = True
    ) -> dict[str, Any]:
        """Call a method of the server and return its response, or raise the exception that the server sends.

        Args:
            seconds: timeout for the response; None means no limit while the server lives.
            patient: whether to retry when there is no connection.

        Raises:
            ConnectionLostError, AuthenticationError, ServerRestartedError, ResultLostError: see these classes.
            NotFrames: if the server does not speak this protocol; nothing was sent.
        """
        call = self._new(method, payload)
        call.patient = patient
        self._submit(call)
        return await self._finish(call, self._in_time(call, seconds, call.future))

    async def stream(
        self, method: str, payload: dict[str, Any], seconds: float | None = None
    ) -> AsyncGenerator[bytes | dict[str, Any], None]:
        """Yield the output in bytes as it arrives, and finally the response; `seconds` is the timeout for each.

        Ending the iteration cancels the call.
        """
        call = self._new(method, payload)
        down = call.down = Receiver(call.id, protocol.DOWN)
        self._submit(call)
        try:
            async with contextlib.aclosing(down.pieces()) as pieces:
                while data := await self._in_time(call, seconds, anext(pieces, b"")):
                    yield data
            yield await self._in_time(call, seconds, call.future)
        except (asyncio.CancelledError, GeneratorExit):
            await self._cancel(call)
            raise
        finally:
            self._forget(call)

    async def upload(self, source: str, target: str, progress: Progress | None = None) -> dict[str, Any]:
        """Send the file or tree `source` to the server, and return its response."""
        call = self._new("upload", {"target_path": target})
        up = call.up = Sender(call.id, protocol.UP)

        async def send() -> None:
            async with file_transfer.open_stream(source, progress) as pieces:
                await up.send(pieces)
            up.finish()

        return await self._transfer(call, send())

    async def download(self, source: str, target: str, progress: Progress | None = None) -> dict[str, Any]:
        """Fetch the file or tree `source` from the server, and return its response."""
        call = self._new("download", {"path": source})
        down = call.down = Receiver(call.id, protocol.DOWN)
        name = os.path.basename(os.path.normpath(source))  # the server must not choose the name of a local file
        return await self._transfer(call, file_transfer.receive(down.pieces(), target, name, progress))

    async def _transfer(self, call: _Call, files: Coroutine[Any, Any, None]) -> dict[str, Any]:
        """Send a request, await what sends or receives its files, and return the response."""
        self._submit(call)
        moving = asyncio.ensure_future(files)
        try:
            await self._finish(call, asyncio.gather(moving, call.future))
            return call.future.result()
        finally:
            await end_tasks(moving)

    async def _finish(self, call: _Call, work: Awaitable[T]) -> T:
        """Await work that ends with the call, which is cancelled if its caller is."""
        try:
            return await work
        except asyncio.CancelledError:
            await self._cancel(call)
            raise
        finally:
            self._forget(call)

    def _new(self, method: str, payload: dict[str, Any]) -> _Call:
        self._last_id = number = self._last_id + 1
        return _Call(number, method, payload, self.loop.create_future())

    def _submit(self, call: _Call) -> None:
        error = RuntimeClosedError(_CLOSED) if self.closed else self._late_refusal
        self._late_refusal = None
        if error is not None:
            self._fail(call, error)
            return
        self._idle_beats = 0
        self._calls[call.id] = call
        if self._connection is not None:
            self._send_request(self._connection, call)
        else:
            self._connect()

    def _send_request(self, connection: ClientConnection, call: _Call) -> None:
        """Send a request, for the first time or again, and continue its streams."""
        try:
            frame, long = protocol.encode_message(
                protocol.REQUEST, call.id, call.method, next(iter(self._calls)), call.payload
            )
            if long is not None and call.up is not None:
                raise InvalidInputError(f"The path for {call.method} is too long")
        except (_core.FrameError, InvalidInputError) as error:
            self._settle(call, InvalidInputError(f"The request cannot be sent: {error}"))
            return
        if long is not None:
            call.payload = len(long)
            call.up = Sender(call.id, protocol.UP)
            call.up.write(long)
        connection.send_encoded(frame)
        call.sent = True
        for lane in call.lanes:
            lane.attach(connection)

    async def _in_time(self, call: _Call, seconds: float | None, what: Awaitable[T]) -> T:
        """Await `what`, and fail the call if that takes longer than `seconds`."""
        timer = None if seconds is None else self.loop.call_later(seconds, self._expire, call, seconds)
        try:
            return await what
        finally:
            if timer is not None:
                timer.cancel()

    def _expire(self, call: _Call, seconds: float) -> None:
        why = "it is not connected" if self._connection is None else "the request was sent"
        msg = f"The server {self.address} did not respond to {call.method} within {seconds:g} seconds: {why}"
        self._fail(call, ConnectionLostError(msg if self._connection is not None else self._last_error or msg))

    async def _cancel(self, call: _Call) -> None:
        """Cancel a call, and wait until the server knows: a later request over another connection must not be first."""
        if self._drop(call) and call.method != "is_alive":
            with contextlib.suppress(Exception):
                await self.call("is_alive", {}, _CANCEL_SECONDS, patient=False)

    def _forget(self, call: _Call) -> None:
        """Drop a call whose caller no longer waits, and its error."""
        self._drop(call)
        if call.future.done() and not call.future.cancelled():
            call.future.exception()

    def _drop(self, call: _Call) -> bool:
        """Drop a call, and send CANCEL if it is unanswered, now or over the next connection; return whether now."""
        if call.id in self._calls and call.sent and self._connection is None and call.method != "is_alive":
            call.dropped = True
            call.future.cancel()
            return False
        if self._calls.pop(call.id, None) is None or not call.sent or self._connection is None:
            return False
        with contextlib.suppress(Exception):  # the loop is closed
            self._connection.send([protocol.CANCEL, call.id])
        return True

    def _settle(self, call: _Call, outcome: BaseException | dict[str, Any]) -> None:
        """End a call with its response or an error."""
        self._calls.pop(call.id, None)
        streamed = call.down is not None or call.answer is not None
        is_below = next(iter(self._calls), call.id) < call.id
        if streamed and is_below and call.outcome is not None and self._connection is not None:
            self._connection.send([protocol.CANCEL, call.id])  # the floor does not tell, while an older call is open
        if isinstance(outcome, BaseException):
            self._fail(call, outcome)
            return
        if not call.future.done():
            call.future.set_result(outcome)

    def _fail(self, call: _Call, error: BaseException) -> None:
        if not call.future.done():
            call.future.set_exception(error)
        if call.down is not None and call.down.total is None:
            call.down.fail(error)

    def _fail_all(self, error: BaseException) -> None:
        for call in list(self._calls.values()):
            self._settle(call, self._restarted(call) if isinstance(error, NotFrames) and call.sent else error)
        self._end_outage()

    def _restarted(self, call: _Call) -> ServerRestartedError:
        return ServerRestartedError(
            f"The server {self.address} was restarted: its sessions are gone, and whether {call.method} was "
            "carried out is not known"
        )

    # -- the connection

    def _connect(self) -> None:
        """Start an attempt to connect if calls need a connection, unless one is in progress."""
        if self._calls and self._connection is None and self._connecting is None:
            if self._retry is not None:
                self._retry.cancel()
            self._outage_began = min(self._outage_began, self.loop.time())
            self._connecting = self.loop.create_task(self._attempt())

    async def _attempt(self) -> None:
        """Open a connection, and wait for the server's upgrade, upon which the connection calls `attach`."""
        # A program is not started again.
        seconds = max(_CONNECT_SECONDS, self._reconnect_seconds if self.address.command else 0.0)
        try:
            connection = ClientConnection(self, upgrade_request(self.address, self._name))
            try:
                async with asyncio.timeout(seconds):
                    await connect(self.loop, self.address, connection)
                    await connection.ready
            except BaseException:
                if connection.transport is not None:
                    connection.abort()
                raise
        except NotFrames as error:
            self._late_refusal = None if self._calls else error
            self._fail_all(error)
        except (AuthenticationError, InvalidInputError, ProtocolError) as error:
            self._fail_all(error)
        except (OSError, SwerexException) as error:
            hint = f"; {advice(error)}" if isinstance(error, OSError) and not self.address.command else ""
            what = str(error) or type(error).__name__
            self._last_error = f"The server {self.address} cannot be reached: {what}{hint}"
            self._try_again(self._last_error)
        except ValueError as error:  # a host or a command that is none
            self._fail_all(InvalidInputError(f"The server {self.address} cannot be reached: {error}"))
        except Exception as error:
            self._fail_all(SwerexException(f"The connection to {self.address} failed: {error!r}"))
        finally:
            self._connecting = None

    def _try_again(self, message: str, worked: bool = False) -> None:
        """Connect again after a pause. Fail calls that do not retry, or all calls after `reconnect_seconds`.

        Args:
            worked: whether there was a useful connection until now.
        """
        now = self.loop.time()
        if worked:
            self._outage_began, self._pause = now, 0.0
        late = not worked and now - self._outage_began >= self._reconnect_seconds
        for call in [c for c in self._calls.values() if late or self.address.command or not c.patient]:
            self._settle(call, ConnectionLostError(message))
        if self._calls:
            self._pause = min(2 * self._pause, _BACKOFF[1]) or _BACKOFF[0]
            self._retry = self.loop.call_later(self._pause, self._connect)
        else:
            self._end_outage()

    def _end_outage(self) -> None:
        self._outage_began, self._pause = math.inf, 0.0

    def attach(self, connection: ClientConnection, instance_id: str, known: bool) -> None:
        """Use a new connection to a server process: send all requests without a response, for the first time or again.

        Args:
            known: whether that process knows the channel.
        """
        if self.closed:
            connection.abort()
            return
        restarted = self.instance_id is not None and instance_id != self.instance_id
        for call in [c for c in self._calls.values() if c.sent]:
            if call.method == "is_alive":
                call.sent = known  # a new server process can answer it as well
            elif restarted:
                self._settle(call, self._restarted(call))
            elif not known:
                msg = f"The server {self.address} no longer knows of this {call.method}; it may have been carried out"
                self._settle(call, ResultLostError(msg))
        self.instance_id = instance_id
        self._opened_at = self.loop.time()
        self._last_error = ""
        self._connection = connection
        for call in list(self._calls.values()):
            if call.dropped:
                self._drop(call)
            else:
                self._send_request(connection, call)
        self.loop.call_later(HEARTBEAT, self._beat, connection)

    def lost(self, connection: ClientConnection, error: BaseException) -> None:
        """Detach the streams from a lost connection, and reconnect if calls are waiting."""
        if connection is not self._connection:
            return
        self._connection = None
        for call in self._calls.values():
            for lane in call.lanes:
                lane.detach()
        if isinstance(error, ProtocolError):
            self._fail_all(error)
        worked = self._outage_began == math.inf or self.loop.time() - self._opened_at >= _STEADY
        self._try_again(f"The connection to {self.address} was lost: {error}", worked)

    def _beat(self, connection: ClientConnection) -> None:
        """Send a PING, unless nothing was received since the previous one: then abort the connection."""
        if connection is not self._connection:
            return
        self._idle_beats = 0 if self._calls else self._idle_beats + 1
        if not connection.heard:
            connection.fail(ConnectionLostError(f"nothing came for {HEARTBEAT:g} seconds"))
        elif self._idle_beats > _IDLE_BEATS and not self.address.command:
            self._connection = None
            connection.send_goodbye()
        else:
            connection.heard = False
            connection.send([protocol.PING, next(iter(self._calls), self._last_id + 1)])
            self.loop.call_later(HEARTBEAT, self._beat, connection)

    # -- closing

    async def guard(self) -> None:
        """Have the channel closed when its loop shuts down its asynchronous generators."""
        self._guard = self._until_shutdown()
        await anext(self._guard)

    async def _until_shutdown(self) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            self.closed = True
            if self._calls:  # of other generators
                await asyncio.wait([call.future for call in self._calls.values()], timeout=_LAST_SECONDS)
            await self.close_and_wait()

    async def close_and_wait(self) -> None:
        """Close the channel, and wait until its connection is closed."""
        if (connection := self.close()) is not None:
            await connection.closed.wait()

    def close(self) -> ClientConnection | None:
        """Close the channel, fail its calls, and return its connection, which is closing."""
        self.closed = True
        if self._connecting is not None:
            self._connecting.cancel()
        connection, self._connection = self._connection, None
        self._fail_all(RuntimeClosedError(_CLOSED))
        if connection is not None:
            connection.send_goodbye()
        return connection

    # -- frames

    def result(self, frame: list[Any]) -> None:
        if (call := self._calls.get(frame[1])) is not None:
            self._end_outage()
            call.outcome = frame
            self._complete(call)

    def _complete(self, call: _Call) -> None:
        """End a call when its response and all of its streams are there."""
        if call.outcome is None:
            return
        kind, _, size, payload = call.outcome
        if call.down is not None and call.down.received < size:
            return
        if payload.__class__ is int:
            if call.answer_data.tell() < payload:
                return
            payload = protocol.decode_payload(call.answer_data.getvalue())
        if kind == protocol.ERROR:
            self._settle(call, from_wire(payload))
        elif payload.__class__ is dict:
            if call.down is not None:
                call.down.end(size)
            self._settle(call, payload)
        else:
            raise ProtocolError("The server sent an invalid response")

    def data(self, frame: list[Any]) -> None:
        _, number, lane, offset, data = frame
        call = self._calls.get(number)
        if call is None:
            return
        if lane == protocol.ANSWER:
            if call.answer is None:
                call.answer = Receiver(number, protocol.ANSWER, self._connection)
            if offset + len(data) > self._answer_limit:
                self._fail(call, too_long(call.method, self._answer_limit))
                self._drop(call)
                return
            call.answer.data(offset, data)
            call.answer.drain(call.answer_data)
        elif lane == protocol.DOWN and call.down is not None:
            call.down.data(offset, data)
        self._complete(call)

    def credit(self, frame: list[Any]) -> None:
        _, number, _, offset = frame
        if (call := self._calls.get(number)) is not None and call.up is not None:
            call.up.credit(offset)


class ClientConnection(FrameConnection):
    """Client end of one frame connection, including the HTTP upgrade."""

    def __init__(self, channel: ClientChannel, request: bytes):
        super().__init__(b"HTTP/")
        self._channel = channel
        self._request = request
        self.closed = asyncio.Event()
        self.ready: asyncio.Future[None] = channel.loop.create_future()
        self.handlers |= {
            protocol.RESULT: channel.result,
            protocol.ERROR: channel.result,
            protocol.DATA: channel.data,
            protocol.CREDIT: channel.credit,
            protocol.GOODBYE: self._goodbye,
        }

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        transport.write(self._request)

    def head_received(self, head: bytes, rest: bytes) -> None:
        try:
            instance_id, known = check_upgrade(head, rest, self._channel.instance_id)
        except (NotFrames, SwerexException) as error:
            self.fail(error)
        else:
            if not self.ready.done():  # otherwise the attempt has timed out
                self.ready.set_result(None)
                self._channel.attach(self, instance_id, known)

    def lost(self, error: BaseException) -> None:
        self.closed.set()
        if not self.ready.done():
            self.ready.set_exception(self._explained(error))
        self._channel.lost(self, error)

    def _explained(self, error: BaseException) -> BaseException:
        """Return the error for a missing head, with the likely cause if there is one."""
        address = self._channel.address
        if address.command:
            if isinstance(error, ConnectionLostError):
                return ConnectionLostError("the program ended without a response; its standard error may say why")
            hint = "does it, or a startup file there, print something?"
            return ProtocolError(f"{address} did not answer as `swerex-remote --stdio` does ({hint}): {error}")
        if isinstance(error, ProtocolError):
            return NotFrames(str(error))
        nothing_came = self._head is not None and not self._head
        if nothing_came and not address.tls and isinstance(error, ConnectionLostError):
            return ConnectionLostError("the connection was closed without a response; an https server needs https://")
        return error

    def send_goodbye(self) -> None:
        """Send GOODBYE, so that the server closes the connection.

        If the client did with unread data, the system would reset the connection, and the last frames could be lost.
        """
        if not self.closing:
            self.send([protocol.GOODBYE, ""])
            self._uncork()
            self.closing = True
            self._loop.call_later(_GOODBYE_SECONDS, self.transport.abort)

    def _goodbye(self, frame: list[Any]) -> None:
        self.fail(ConnectionLostError(f"the server ended it: {frame[1]!s:.300}"))
