"""The client's end of the frames: calls that are carried out once, over whatever connection there is.

    Channel      the calls of one event loop; connects when it must, and sends again what was not answered
    ClientLink   one connection, with the HTTP upgrade before its first frame

See `protocol` for what goes over the wire.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import threading
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

from swerex_c import _core
from swerex_c.exceptions import (
    AuthenticationError,
    ConnectionLostError,
    InvalidInputError,
    ProtocolError,
    ResultLostError,
    ServerRestartedError,
    SwerexException,
)
from swerex_c.remote import copying
from swerex_c.remote.client import ANSWER_LIMIT, too_long
from swerex_c.remote.dial import LONGEST_HEAD, Address, NotFrames, dial, upgrade_error, upgrade_request
from swerex_c.remote.flow import Receiver, Sender
from swerex_c.remote.link import FdTransport, Link
from swerex_c.remote.protocol import (
    CANCEL,
    CREDIT,
    DATA,
    DOWN,
    END,
    ERROR,
    GOODBYE,
    HEARTBEAT,
    HELLO,
    PING,
    REQUEST,
    RESULT,
    RESUME,
    TEXT,
    UP,
    VERSION,
    LongTexts,
    split_texts,
    texts_size,
)
from swerex_c.remote.transfer import from_wire

__all__ = ["Channel"]

T = TypeVar("T")

_CONNECT_SECONDS = 10.0
"""How long one attempt to connect may take, to the server's HELLO."""

_GOODBYE_SECONDS = 0.5
"""How long the end of an event loop waits for the end of its connection."""

_LAST_SECONDS = 5.0
"""How long the end of an event loop waits for what other generators that it closes still call."""

_BACKOFF = (0.05, 1.0)
"""Seconds between two attempts to connect, at first and at most; doubled each time."""

_STEADY = 1.0
"""Seconds after which a connection over which no answer came was not made in vain."""

_DIRECT = {"is_alive": 150e-6, "run_in_session": 300e-6}
"""Seconds that a call of these waits for its answer by itself, when the loop has nothing else to do. A loop does not
notice that, and it costs more to go through it twice than to carry such a request out."""

_DIRECT_RUN = 16
"""So many calls in a row may be answered that way; then the loop has a turn, whatever its tasks do."""

_RARELY = 63
"""Calls of a kind that do not wait by themselves, at most, after one that did so in vain."""


class _Waiting:
    """What an event loop waits for: so many calls, of all its channels."""

    __slots__ = ("calls",)

    def __init__(self) -> None:
        self.calls = 0


_waiting: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Waiting] = weakref.WeakKeyDictionary()
_waiting_lock = threading.Lock()


class _Habit:
    """Whether calls of one method have been short, so that it is worth waiting for the next one's answer."""

    __slots__ = ("seconds", "skip", "skipped")

    def __init__(self, seconds: float):
        self.seconds = seconds
        self.skip = 0
        self.skipped = 0

    def begins(self) -> bool:
        """Whether to wait this time."""
        if self.skipped >= self.skip:
            return True
        self.skipped += 1
        return False

    def waited(self, in_vain: bool) -> None:
        self.skip = min(2 * self.skip + 1, _RARELY) if in_vain else 0
        self.skipped = 0


class _Call:
    """One exchange, from here."""

    __slots__ = (
        "down",
        "future",
        "id",
        "long",
        "method",
        "patient",
        "payload",
        "seconds",
        "sent",
        "text",
        "texts",
        "until",
        "up",
    )

    def __init__(self, number: int, method: str, payload: dict[str, Any], future: asyncio.Future[Any]):
        self.id = number
        self.method = method
        self.payload = payload
        self.future = future
        self.patient = True
        self.seconds = 0.0
        self.until = math.inf
        """When who waits for it gives up, in the loop's time, after so many `seconds`."""
        self.sent = False
        self.texts: list[Any] = []
        self.up: Sender | None = None
        self.down: Receiver | None = None
        self.text: Receiver | None = None
        self.long: LongTexts | None = None


class Channel:
    """The calls of one event loop to one server."""

    def __init__(self, address: Address, reconnect_seconds: float, answer_limit: int = ANSWER_LIMIT):
        self.address = address
        self._answer_limit = answer_limit
        self.boot: str | None = None
        """Which server process it is."""
        self._reconnect_seconds = reconnect_seconds
        self._name = os.urandom(16)
        self._calls: dict[int, _Call] = {}
        self._last_id = 0
        self._given_up: list[int] = []
        """Calls that nobody waits for any more, and of which the server could not be told."""
        self._link: ClientLink | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()
        self._opened = False
        self.closed = False
        """Whether its loop, or the runtime, has no more use for it."""
        self._trouble: float | None = None
        """Since when there is no connection that is good for anything; in the loop's time."""
        self._why = ""
        """What the last attempt to connect came to, if that was nothing."""
        self._pause = 0.0
        self._untold: NotFrames | None = None
        """That the server does not speak this protocol, found out when nobody waited any more."""
        self._opened_at = 0.0
        self._heartbeat: asyncio.TimerHandle | None = None
        self._timer: asyncio.TimerHandle | None = None
        """Goes off when the first call may have waited long enough; one for all of them."""
        self._timer_at = math.inf
        self._habits = {method: _Habit(seconds) for method, seconds in _DIRECT.items()}
        self._direct_left = _DIRECT_RUN
        self._guard: Any = None
        self._enter(asyncio.get_running_loop())

    def _enter(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._ready: Any = getattr(loop, "_ready", (None,))
        """What the loop has to do right now; one that does not tell is taken for busy."""
        with _waiting_lock:
            self._waiting = _waiting.setdefault(loop, _Waiting())

    # -- calls

    async def call(
        self, method: str, payload: dict[str, Any], seconds: float | None = None, patient: bool = True
    ) -> dict[str, Any]:
        """What the server answers.

        Args:
            seconds: how long to wait for it; None is for as long as the server lives.
            patient: whether to try again when there is no connection.

        Raises:
            ConnectionLostError, AuthenticationError, ServerRestartedError, ResultLostError: see there.
            NotFrames: the server does not speak this protocol; nothing was sent.
            Exception: what the server answers with.
        """
        call = self._new(method, payload)
        call.patient = patient
        habit = self._habits.get(method)
        if habit is None or self._calls or self._ready or self._waiting.calls or call.up is not None:
            self._submit(call)
        elif (link := self._link) is None or not self._direct_left or not habit.begins():
            self._submit(call)
            self._direct_left = _DIRECT_RUN
            begin = self.loop.time()
            answer = await self._result(call, seconds)
            if self.loop.time() - begin < 2 * habit.seconds:
                habit.waited(False)
            return answer
        else:
            self._direct_left -= 1
            if self._ask_here(call, link, habit):
                return call.future.result()  # type: ignore[no-any-return]
        return await self._result(call, seconds)

    def _ask_here(self, call: _Call, link: ClientLink, habit: _Habit) -> bool:
        """Ask, and wait a moment without the loop; whether that was enough."""
        try:
            with link.held():
                self._submit(call)
            link.wait(habit.seconds)
        except BaseException:  # of a signal's handler
            self._forget(call)
            raise
        done = call.future.done()
        habit.waited(not done)
        return done

    async def stream(
        self, method: str, payload: dict[str, Any], seconds: float | None = None
    ) -> AsyncIterator[bytes | dict[str, Any]]:
        """Bytes as they come, and at last the answer. Ending the iteration cancels the call.

        Args:
            seconds: how long to wait for each of them; None is for as long as the server lives.
        """
        call = self._new(method, payload)
        down = call.down = Receiver(call.id, DOWN)
        self._submit(call)
        try:
            while data := await self._in_time(call, seconds, down.read()):
                yield data
            yield await self._in_time(call, seconds, call.future)
        finally:
            self._forget(call)

    async def upload(self, source: str, target: str, progress: copying.Progress | None = None) -> dict[str, Any]:
        """Send a file or a tree."""
        call = self._new("upload", {"target_path": target})
        call.up = Sender(call.id, UP)
        self._submit(call)
        sending = asyncio.ensure_future(self._send(source, call.up, progress))
        try:
            await asyncio.wait([sending, call.future], return_when=asyncio.FIRST_COMPLETED)
            if not call.future.done():
                await sending
            result: dict[str, Any] = await call.future
            return result
        finally:
            sending.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await sending
            self._forget(call)

    @staticmethod
    async def _send(source: str, sender: Sender, progress: copying.Progress | None) -> None:
        await copying.send(source, sender, progress)
        sender.finish()

    async def download(self, source: str, target: str, progress: copying.Progress | None = None) -> dict[str, Any]:
        """Fetch a file or a tree."""
        call = self._new("download", {"path": source})
        down = call.down = Receiver(call.id, DOWN)
        self._submit(call)
        name = os.path.basename(os.path.normpath(source))  # it is not the server that says what is written here
        receiving = asyncio.ensure_future(copying.receive(down, target, progress, name))
        try:
            await asyncio.wait([receiving, call.future], return_when=asyncio.FIRST_COMPLETED)
            if call.future.done():
                call.future.result()
            await receiving
            result: dict[str, Any] = await call.future
            return result
        finally:
            receiving.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await receiving
            self._forget(call)

    def _new(self, method: str, payload: dict[str, Any]) -> _Call:
        self._last_id = number = self._last_id + 1
        call = _Call(number, method, payload, self.loop.create_future())
        rest, texts, chunks = split_texts(payload)
        if texts:
            self._with_texts(call, rest, texts, chunks)
        return call

    def _with_texts(self, call: _Call, rest: dict[str, Any], texts: list[Any], chunks: list[str | bytes]) -> None:
        call.payload, call.texts = rest, texts
        call.up = Sender(call.id, UP)
        for chunk in chunks:
            call.up.write_text(chunk)

    def _submit(self, call: _Call) -> None:
        if self.closed:
            self._settle(call, ConnectionLostError("The runtime was closed"))
            return
        if self._untold is not None:
            error, self._untold = self._untold, None
            self._settle(call, error)
            return
        self._calls[call.id] = call
        if self._link is not None:
            self._send_request(self._link, call)
        else:
            self._connect()

    def _send_request(self, link: ClientLink, call: _Call) -> None:
        floor = next(iter(self._calls))
        frame = [REQUEST, call.id, call.method, call.payload, floor]
        if call.texts:
            frame.append(call.texts)
        try:
            link.send(frame)
        except _core.FrameError as error:
            if call.texts or not self._take_texts(call):
                self._settle(call, InvalidInputError(f"The request cannot be sent: {error}"))
                return
            link.send([*frame[:3], call.payload, floor, call.texts])
        call.sent = True
        if call.up is not None:
            call.up.attach(link, 0)

    def _take_texts(self, call: _Call) -> bool:
        """A request that holds what UTF-8 cannot carry."""
        rest, texts, chunks = split_texts(call.payload, all_of=True)
        if texts:
            self._with_texts(call, rest, texts, chunks)
        return bool(texts)

    async def _result(self, call: _Call, seconds: float | None) -> dict[str, Any]:
        waiting = self._waiting
        waiting.calls += 1
        try:
            return await self._in_time(call, seconds, call.future)
        finally:
            waiting.calls -= 1
            self._forget(call)

    async def _in_time(self, call: _Call, seconds: float | None, what: Awaitable[T]) -> T:
        if seconds is not None:
            call.seconds = seconds
            call.until = self.loop.time() + seconds
            if call.until < self._timer_at:
                self._look_at(call.until)
        try:
            return await what
        finally:
            call.until = math.inf

    def _look_at(self, when: float) -> None:
        """Look then who has waited long enough."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = when
        self._timer = self.loop.call_at(when, self._look) if when < math.inf else None

    def _look(self) -> None:
        now = self.loop.time() + 1e-3  # timers of a loop may go off early
        for call in [call for call in self._calls.values() if call.until <= now]:
            self._expire(call, call.seconds)
        self._look_at(min((call.until for call in self._calls.values() if call.until > now), default=math.inf))

    def _forget(self, call: _Call) -> None:
        """Nobody waits for it any more."""
        known = self._calls.pop(call.id, None) is not None
        if known and call.sent and self._link is not None:
            with contextlib.suppress(Exception):
                self._link.send([CANCEL, call.id])
        elif known and call.sent:
            self._given_up.append(call.id)
        if not call.future.done():
            with contextlib.suppress(RuntimeError):  # the loop is closed
                call.future.cancel()
        elif not call.future.cancelled():
            call.future.exception()

    def _expire(self, call: _Call, seconds: float) -> None:
        if not call.future.done():
            why = "it is not connected" if self._link is None else "it was asked and did not answer"
            msg = f"The server {self.address} gave no answer to {call.method} within {seconds:g} seconds: {why}"
            error = ConnectionLostError(msg if self._link is not None else self._why or msg)
            call.future.set_exception(error)
            if call.down is not None:
                call.down.fail(error)

    def _settle(self, call: _Call, outcome: BaseException | dict[str, Any]) -> None:
        self._calls.pop(call.id, None)
        if not call.future.done():
            if isinstance(outcome, BaseException):
                call.future.set_exception(outcome)
            else:
                call.future.set_result(outcome)
        if call.down is not None and call.down.total is None:
            if isinstance(outcome, BaseException):
                call.down.fail(outcome)
            else:
                call.down.fail(ProtocolError("An answer came before the end of its stream"))

    # -- the connection

    def _connect(self) -> None:
        if self._trouble is None:
            self._trouble = self.loop.time()
        if self._connecting is None:
            self._connecting = self.loop.create_task(self._keep_connecting())
        else:
            self._hurry.set()

    async def _keep_connecting(self) -> None:
        """Until there is a connection, or nobody waits for one, or it took too long."""
        try:
            while self._calls:
                # Who does not try again by itself, and may have little time, asks as often as it wants.
                if self._pause and all(call.patient for call in self._calls.values()):
                    self._hurry.clear()
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._hurry.wait(), self._pause)
                try:
                    link = await asyncio.wait_for(self._open(), _CONNECT_SECONDS)
                    if link.closing:
                        raise link.error or ConnectionLostError("the connection was closed")
                except (NotFrames, AuthenticationError, InvalidInputError, ProtocolError) as error:
                    if isinstance(error, NotFrames) and not self._calls:
                        self._untold = error
                    self._fail_all(error)
                except (OSError, SwerexException, TimeoutError) as error:
                    self._in_vain(f"The server {self.address} cannot be reached: {str(error) or type(error).__name__}")
                else:
                    self._attach(link)
                    break
        except Exception as error:
            self._fail_all(SwerexException(f"The connection to {self.address} failed: {error!r}"))
        finally:
            if self._connecting is asyncio.current_task():
                self._connecting = None

    def _in_vain(self, message: str) -> None:
        """There was no connection, or one that was of no use: wait longer before the next, or give up."""
        self._why = message
        since = self.loop.time() if self._trouble is None else self._trouble
        give_up = self.loop.time() - since >= self._reconnect_seconds or bool(self.address.command)
        for call in [c for c in self._calls.values() if give_up or not c.patient]:
            self._settle(call, ConnectionLostError(message))
        self._pause = min(2 * self._pause, _BACKOFF[1]) or _BACKOFF[0]
        if give_up:
            self._recovered()

    def _recovered(self) -> None:
        self._trouble = None
        self._pause = 0.0

    def _fail_all(self, error: BaseException) -> None:
        for call in list(self._calls.values()):
            if isinstance(error, NotFrames) and call.sent:
                msg = f"The server {self.address} is another one now; whether it carried {call.method} out is not known"
                self._settle(call, ServerRestartedError(msg))
            else:
                self._settle(call, error)

    async def _open(self) -> ClientLink:
        """A new connection, up to the server's HELLO."""
        address = self.address
        link = ClientLink(self, upgrade_request(address))
        try:
            await dial(self.loop, address, link)
            await link.ready
        except BaseException:
            if link.transport is not None:
                link.abort()
            raise
        return link

    def _attach(self, link: ClientLink) -> None:
        """There is a connection: what was not answered goes over it once more."""
        boot, known = link.boot, link.known
        restarted = self.boot is not None and boot != self.boot
        for call in [c for c in self._calls.values() if c.sent]:
            if call.method == "is_alive":
                call.sent = known  # asks the new one as well
            elif restarted:
                msg = (
                    f"The server {self.address} was restarted: its sessions are gone, and whether {call.method} was "
                    "carried out is not known"
                )
                self._settle(call, ServerRestartedError(msg))
            elif not known:
                msg = f"The server {self.address} no longer knows of this {call.method}; it may have been carried out"
                self._settle(call, ResultLostError(msg))
        self.boot = boot
        self._opened = True
        if self.closed:
            link.abort()
            return
        self._opened_at = self.loop.time()
        self._why = ""
        self._link = link
        given_up, self._given_up = self._given_up, []
        if known:
            for number in given_up:
                link.send([CANCEL, number])
        for call in list(self._calls.values()):
            if call.sent:
                self._send_again(link, call)
            else:
                self._send_request(link, call)
        if self._heartbeat is None:
            self._heartbeat = self.loop.call_later(HEARTBEAT, self._beat, False)

    def _send_again(self, link: ClientLink, call: _Call) -> None:
        got = [0 if lane is None else lane.received for lane in (call.down, call.text)]
        link.send([REQUEST, call.id, call.method, call.payload, next(iter(self._calls)), call.texts, got])
        for lane in (call.down, call.text):
            if lane is not None:
                lane.attach(link)
                lane.credit_again()

    def lost(self, link: ClientLink, error: BaseException) -> None:
        """The connection broke."""
        if link is not self._link:
            return
        self._link = None
        if self._heartbeat is not None:
            self._heartbeat.cancel()
            self._heartbeat = None
        for call in list(self._calls.values()):
            for lane in (call.up, call.down, call.text):
                if lane is not None:
                    lane.detach()
        if isinstance(error, ProtocolError):
            self._fail_all(error)
        if self._trouble is None or self.loop.time() - self._opened_at >= _STEADY:
            self._recovered()
            message = f"The connection to {self.address} was lost: {error}"
            for call in [c for c in self._calls.values() if not c.patient or self.address.command]:
                self._settle(call, ConnectionLostError(message))
        else:
            self._in_vain(f"The connection to {self.address} was lost: {error}")
        if self._calls:
            self._connect()

    def _beat(self, asked: bool) -> None:
        """Make oneself heard; and give a connection up on which a whole beat long nothing came, though it was asked."""
        link = self._link
        self._heartbeat = None
        if link is None:
            return
        if asked and not link.heard:
            link.fail(ConnectionLostError(f"nothing came for {HEARTBEAT:g} seconds"))
            return
        link.heard = False
        link.send([PING, next(iter(self._calls), self._last_id + 1)])
        self._heartbeat = self.loop.call_later(HEARTBEAT, self._beat, True)

    # -- its end

    async def guard(self) -> None:
        """Have the channel closed when its loop shuts its asynchronous generators down, as asyncio.run does."""
        self._guard = _until_the_end(self)
        await self._guard.__anext__()

    def close(self) -> ClientLink | None:
        """Nobody will call any more. Calls that are under way are given up. Returns the connection that is closing."""
        self.closed = True
        if self._connecting is not None:
            self._connecting.cancel()
        link, self._link = self._link, None
        if self._heartbeat is not None:
            self._heartbeat.cancel()
            self._heartbeat = None
        self._look_at(math.inf)
        for call in list(self._calls.values()):
            self._settle(call, ConnectionLostError("The runtime was closed"))
        if link is not None:
            link.leave()
        return link

    def move(self) -> None:
        """Go on in the running loop; that before does not run, and all its calls end. Only for a program's streams."""
        before = self.loop
        self._enter(asyncio.get_running_loop())
        calls, self._calls = self._calls, {}
        connecting, self._connecting = self._connecting, None
        timers, self._heartbeat, self._timer = (self._heartbeat, self._timer), None, None
        self._timer_at = math.inf
        self._recovered()
        self._hurry = asyncio.Event()
        if self._link is not None:
            self._link.move(self.loop)
            for call in calls.values():
                self._link.send([CANCEL, call.id])
            self._heartbeat = self.loop.call_later(HEARTBEAT, self._beat, False)
        with contextlib.suppress(RuntimeError):  # it is closed: nobody waits there
            for call in calls.values():
                error = ConnectionLostError("Another event loop has taken the connection")
                before.call_soon_threadsafe(self._settle, call, error)
            for timer in timers:
                if timer is not None:
                    before.call_soon_threadsafe(timer.cancel)
            if connecting is not None:
                before.call_soon_threadsafe(connecting.cancel)

    # -- frames

    def result(self, frame: list[Any]) -> None:
        call = self._calls.get(frame[1])
        if call is not None:
            if self._trouble is not None:
                self._recovered()
            payload = frame[2]
            if frame[0] == RESULT and payload.__class__ is not dict:
                raise ProtocolError("An answer is not as it should be")
            if len(frame) > 3:
                self._insert(call, payload, frame[3])
            if frame[0] == RESULT:
                self._settle(call, payload)
            else:
                self._settle(call, from_wire(payload))

    def _insert(self, call: _Call, payload: Any, texts: Any) -> None:
        long = call.long or LongTexts()
        if texts_size(texts) != long.size:
            raise ProtocolError("The texts of an answer are longer or shorter than announced")
        long.insert(payload, texts)
        if call.text is not None:
            call.text.close()

    def data(self, frame: list[Any]) -> None:
        _, number, lane, offset, data = frame
        call = self._calls.get(number)
        if call is None:
            return
        if lane == TEXT:
            if call.text is None:
                call.text, call.long = Receiver(number, TEXT), call.long or LongTexts()
                if self._link is not None:
                    call.text.attach(self._link)
            assert call.long is not None
            if call.long.size + len(data) > self._answer_limit:
                self._refuse(call)
                return
            call.text.data(offset, data)
            for piece in call.text.take():
                call.long.feed(piece)
                call.text.release(piece)
                call.text.done_with(len(piece))
        elif lane == DOWN and call.down is not None:
            if self._link is not None:
                call.down.attach(self._link)
            call.down.data(offset, data)

    def _refuse(self, call: _Call) -> None:
        """Its answer is too long: take no more of it."""
        self._settle(call, too_long(call.method, self._answer_limit))
        if call.text is not None:
            call.text.close()
        if self._link is not None:
            self._link.send([CANCEL, call.id])

    def end(self, frame: list[Any]) -> None:
        _, number, lane, offset = frame
        call = self._calls.get(number)
        if call is not None and lane == DOWN and call.down is not None and call.down.total is None:
            call.down.end(offset)
        elif call is not None and lane == TEXT and call.text is None:
            if offset.__class__ is not int or offset < 0:
                raise ProtocolError("The length of a text is none")
            if offset <= self._answer_limit:
                call.long = LongTexts(offset)

    def credit(self, frame: list[Any]) -> None:
        _, number, _, offset = frame
        call = self._calls.get(number)
        if call is not None and call.up is not None:
            call.up.credit(offset)

    def resume(self, frame: list[Any]) -> None:
        _, number, received = frame
        call = self._calls.get(number)
        if call is not None and call.up is not None and self._link is not None:
            call.up.attach(self._link, received)


class ClientLink(Link):
    """A connection to a server."""

    def __init__(self, channel: Channel, request: bytes | None):
        super().__init__()
        self._channel = channel
        self._request = request
        self._head: bytearray | None = None if request is None else bytearray()
        self.boot = ""
        self.known = False
        self._waits: Callable[[float], None] | None = None
        self.gone = asyncio.Event()
        self.ready: asyncio.Future[None] = channel.loop.create_future()
        self.handlers[HELLO] = self._hello
        self.handlers[GOODBYE] = self._goodbye

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._waits = transport.wait if isinstance(transport, FdTransport) else None
        if self._request is not None:
            transport.write(self._request)
        else:
            self._say_hello()

    def _say_hello(self) -> None:
        self.send([HELLO, VERSION, self._channel._name, self._channel._opened])

    def data_received(self, data: bytes | memoryview) -> None:
        if self.closing:
            return
        if self._head is None:
            Link.data_received(self, data)
            return
        self._head += data
        end = self._head.find(b"\r\n\r\n")
        if end < 0:
            if len(self._head) > LONGEST_HEAD or not self._head.startswith(b"HTTP/"[: len(self._head)]):
                self.fail(NotFrames("The server's answer is no HTTP"))
            return
        head, rest = bytes(self._head[:end]), bytes(self._head[end + 4 :])
        error = upgrade_error(head, rest)
        if error is not None:
            self.fail(error)
            return
        self._head = None
        self._say_hello()
        if rest:
            Link.data_received(self, rest)

    def lost(self, error: BaseException) -> None:
        self.gone.set()
        if not self.ready.done():
            error = self._explained(error)
            self.ready.set_exception(error)
        self._channel.lost(self, error)

    def _explained(self, error: BaseException) -> BaseException:
        """Why there is no HELLO, in words that say what may be wrong."""
        address = self._channel.address
        if address.command and isinstance(error, ProtocolError):
            hint = "does it, or a startup file there, print something?"
            return ProtocolError(f"What came from {address} is not what `swerex-remote --stdio` says ({hint}): {error}")
        if address.command and isinstance(error, ConnectionLostError):
            return ConnectionLostError("the program ended without an answer; its standard error may say why")
        nothing_came = self._head is not None and not self._head
        if nothing_came and not address.tls and isinstance(error, ConnectionLostError):
            return ConnectionLostError("the connection was closed without an answer; an https server needs https://")
        return error

    def leave(self) -> None:
        """Say good-bye. The server then ends the connection: if it were closed here while something comes that nobody
        reads, the system would end it at once, and what was said last could be lost."""
        if not self.closing:
            self.send([GOODBYE, ""])
            self._flush()
            self.closing = True
            self._loop.call_later(_GOODBYE_SECONDS, self.transport.abort)

    def wait(self, seconds: float) -> None:
        """Take what comes within so many seconds here and now, if the transport can do that."""
        if self._waits is not None and not self.closing:
            self._waits(seconds)

    async def left(self) -> None:
        """Wait until the connection has ended after `leave`, or end it."""
        try:
            await asyncio.wait_for(self.gone.wait(), _GOODBYE_SECONDS)
        except TimeoutError:
            self.transport.abort()

    def move(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._take_buffer()
        self.transport.move(loop)
        self._uncork()

    def _hello(self, frame: list[Any]) -> None:
        _, version, boot, known, _ = frame
        if version != VERSION or not isinstance(boot, str):
            raise ProtocolError(f"The server speaks version {version!r:.20} of the protocol; this is {VERSION}")
        self.boot, self.known = boot, bool(known)
        channel = self._channel
        del self.handlers[HELLO]
        self.handlers.update(
            {
                RESULT: channel.result,
                ERROR: channel.result,
                DATA: channel.data,
                END: channel.end,
                CREDIT: channel.credit,
                RESUME: channel.resume,
            }
        )
        if not self.ready.done():
            self.ready.set_result(None)

    def _goodbye(self, frame: list[Any]) -> None:
        self.fail(ConnectionLostError(f"the server ended it: {frame[1]!s:.300}"))


async def _until_the_end(channel: Channel) -> AsyncIterator[None]:
    try:
        yield
    finally:
        until = channel.loop.time() + _LAST_SECONDS
        while channel._calls and channel.loop.time() < until:
            await asyncio.sleep(0.005)
        link = channel.close()
        if link is not None:
            await link.left()
