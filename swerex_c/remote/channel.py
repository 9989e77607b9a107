"""The server's end of the frames: channels, and the exchanges on them, each of which is carried out once.

    Registry   all channels of a server, and what all of them may keep
    ServerLink one connection; finds its channel and hands it the frames
    Channel    what one client asked, whatever connection it has now
    Exchange   one request: its task, what it streams, its answer for as long as the client may ask again

All of it belongs to one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import logging
import time
from collections import deque
from collections.abc import Coroutine
from typing import Any

from pydantic import BaseModel

from swerex_c import _core
from swerex_c._version import __version__
from swerex_c.exceptions import (
    InvalidInputError,
    ProtocolError,
    ResourceError,
    ResultLostError,
    ServerLimitError,
    SwerexException,
)
from swerex_c.remote import copying, logs
from swerex_c.remote.direct import first_step, rest, silent_waker
from swerex_c.remote.flow import Receiver, Sender
from swerex_c.remote.link import Link
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
    PIECE,
    PING,
    REQUEST,
    RESULT,
    RESUME,
    TEXT,
    UP,
    VERSION,
    LongTexts,
    new_encoder,
    split_texts,
    texts_size,
)
from swerex_c.remote.service import METHODS, Service
from swerex_c.remote.transfer import to_wire
from swerex_c.runtime.local import LocalRuntime

__all__ = ["Registry", "ServerLink"]

_SWEEP = 5.0
"""Seconds between two looks for what is no longer to be kept."""

_SILENCE = 4 * HEARTBEAT
"""Seconds after which a connection that says nothing is given up. Its channel stays."""

_AT_ONCE = 64
"""Frames of one client that are looked at in one turn of the loop."""

_LOOK_AT = 64
"""Kept answers that are looked at, when there are too many, for one that can go."""

_FIRST_FRAME = 10.0
"""Seconds for a connection to say which channel it is."""

_BEGUN = "begun"
"""The field of an error that has what was sent of a text before the error was found."""

_SHORT = ("is_alive", "run_in_session")
"""Methods that are often done without waiting for anything."""

logger = logs.LOGGER


class Exchange:
    """One request, from its first frame until its answer is no longer needed."""

    __slots__ = (
        "answer",
        "answered",
        "channel",
        "done_at",
        "down",
        "id",
        "link",
        "method",
        "payload",
        "size",
        "task",
        "streamed",
        "text",
        "texts",
        "up",
    )

    def __init__(self, channel: Channel, number: int, method: str, payload: Any):
        self.channel = channel
        self.id = number
        self.link = channel.link
        """The connection over which the client asked for it; None if that is gone and it did not ask again."""
        self.method = method
        self.payload = payload
        self.task: asyncio.Task[None] | None = None
        self.answer: bytes | None = None
        """The frame that ends it, encoded, once there is one."""
        self.answered = False
        """Whether that was sent, over this connection."""
        self.up: Receiver | None = None
        self.down: Sender | None = None
        self.text: Sender | None = None
        self.texts: list[Any] = []
        self.streamed: list[Any] = []
        """The texts of the answer that were sent while they were made; see `protocol`."""
        self.size = 0
        self.done_at = 0.0

    # -- the request

    def start(self, texts: list[Any] | None) -> None:
        """Carry it out, as soon as all of it is there."""
        service = self.channel.registry.service
        work: Coroutine[Any, Any, Any]
        if texts:
            size = texts_size(texts)
            if size > service.limits.body:
                msg = f"The request has {size} bytes; the server takes {service.limits.body}"
                raise ServerLimitError(msg)
            self.up = self._receiver()
            self.texts = texts
            work = self._with_texts(size)
        elif self.method == "read_file" and type(service.runtime) is LocalRuntime:
            work = service.count(self.method, self._read_file(service.validate(self.method, self.payload)))
        elif self.method in METHODS:
            work = service.call(self.method, service.validate(self.method, self.payload))
        elif self.method == "stream_in_session":
            work = service.count(self.method, self._stream())
        elif self.method == "upload":
            self.up = self._receiver()
            work = service.count(self.method, self._upload())
        elif self.method == "download":
            work = service.count(self.method, self._download())
        else:
            raise InvalidInputError(f"There is no method {self.method!r:.100}")
        alone = self.link is not None and self.link.alone
        if alone and self.method in _SHORT and type(service.runtime) is LocalRuntime:
            self._begin(self._run(work))
        else:
            self.task = self.channel.registry.loop.create_task(self._run(work))

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Carry out at once what may not have to wait, and the rest as a task.

        That spares a turn of the event loop. Up to where it waits, the work is not a task and must not ask for one.
        """
        try:
            waits_for = first_step(self.channel.registry.waker, work)
        except StopIteration:
            return
        if self.answer is None:
            self.task = self.channel.registry.loop.create_task(rest(work, waits_for))

    def _receiver(self) -> Receiver:
        receiver = Receiver(self.id, UP)
        if self.link is not None:
            receiver.attach(self.link)
        return receiver

    async def _run(self, work: Coroutine[Any, Any, Any]) -> None:
        begin = time.perf_counter()
        outcome = ""
        try:
            answer = await work
            self.finish(RESULT, answer if answer.__class__ is dict else answer.__dict__)
        except asyncio.CancelledError:
            outcome = "cancelled"
            self.finish(ERROR, to_wire(SwerexException("The request was cancelled")))
        except Exception as error:
            outcome = type(error).__name__
            self.finish(ERROR, to_wire(error))
        if outcome or self.channel.registry.logs_all:
            client = "" if self.link is None else self.link.client
            seconds = time.perf_counter() - begin
            logs.request_done(self.method, seconds, outcome or "done", client, str(self.id), bool(outcome))

    async def _with_texts(self, size: int) -> BaseModel:
        assert self.up is not None
        long = LongTexts(size)
        while long.size < size:
            await self.up.news()
            if not (pieces := self.up.take()):
                raise ProtocolError("A request ended before its texts did")
            for piece in pieces:
                long.feed(piece)
                self.up.release(piece)
                self.up.done_with(len(piece))
        long.insert(self.payload, self.texts)
        self.up.close()
        self.texts = []
        if self.method not in METHODS:
            raise InvalidInputError(f"{self.method} takes no long texts")
        service = self.channel.registry.service
        request = service.validate(self.method, self.payload)
        self.payload = None
        return await service.call(self.method, request)

    async def _stream(self) -> dict[str, Any]:
        service = self.channel.registry.service
        action: Any = service.validate("run_in_session", self.payload)
        self.down = self._sender(DOWN)
        stream = service.runtime.stream_in_session(action)
        answer: dict[str, Any] = {}
        sent = hashlib.blake2b()
        async with contextlib.aclosing(stream):  # type: ignore[type-var]
            async for item in stream:
                if isinstance(item, str):
                    data = item.encode("utf-8", "surrogatepass")
                    sent.update(data)
                    self.down.write(data)
                    await self.down.room()
                else:
                    answer = dict(item.__dict__)
        self.down.finish()
        if answer.get("output") and _same(answer["output"], sent.digest()):
            answer["output"] = None
        return answer

    async def _upload(self) -> dict[str, Any]:
        assert self.up is not None
        await copying.receive(self.up, _text(self.payload, "target_path"))
        return {}

    async def _download(self) -> dict[str, Any]:
        self.down = self._sender(DOWN)
        await copying.send(_text(self.payload, "path"), self.down)
        self.down.finish()
        return {}

    async def _read_file(self, request: Any) -> Any:
        """A long text goes out as it is read; what is wrong with one is told as if it had been read as a whole."""
        runtime = self.channel.registry.service.runtime
        sender = self._sender(TEXT)

        def begins() -> None:
            self.text = sender

        try:
            if (await runtime.is_alive()).is_alive:
                found = await copying.send_text(request.path, request.encoding, request.errors, sender, begins)
                if isinstance(found, str):
                    return {"content": found}
                if found:
                    self.streamed = [[["content"], sender.written]]
                    return {"content": ""}
            return await runtime.read_file(request)
        except UnicodeError:
            await runtime.read_file(request)
            raise ResourceError(f"{request.path} changed while it was read: try again") from None

    def _sender(self, lane: int) -> Sender:
        sender = Sender(self.id, lane)
        if self.link is not None:
            sender.attach(self.link, 0)
        return sender

    # -- the answer

    def finish(self, kind: int, payload: dict[str, Any]) -> None:
        """There is an answer: send it, and keep it."""
        if kind == ERROR and self.text is not None:
            payload = {**payload, _BEGUN: ""}
            self.streamed = [[[_BEGUN], self.text.written]]
        answer, chunks = self._encode(kind, payload)
        self.answer = answer
        self.size = len(answer) + (sum(map(len, chunks)) if self.text is None else self.text.held)
        self.payload = None
        self.task = None
        self.done_at = time.monotonic()
        if chunks:
            total = sum(map(len, chunks))
            if self.text is None and self.link is not None and total > PIECE:
                self.link.send([END, self.id, TEXT, total])
            self.text = self.text or self._sender(TEXT)
            for chunk in chunks:
                self.text.write_text(chunk)
        if self.text is not None:
            self.text.when_sent(self.send_answer)
        if self.down is not None:
            self.down.when_sent(self.send_answer)
        elif self.text is None:
            self.send_answer()
        self.channel.finished(self)

    def _encode(self, kind: int, payload: dict[str, Any]) -> tuple[bytes, list[str | bytes]]:
        encode = self.channel.registry.encode
        try:
            rest, texts, chunks = split_texts(payload)
            texts = [*self.streamed, *texts]
            return encode([kind, self.id, rest, texts] if texts else [kind, self.id, rest]), chunks
        except _core.FrameError:
            pass
        try:  # with a text that UTF-8 cannot carry
            rest, texts, chunks = split_texts(payload, all_of=True)
            return encode([kind, self.id, rest, [*self.streamed, *texts]]), chunks
        except _core.FrameError as error:
            return encode([ERROR, self.id, to_wire(ServerLimitError(f"The answer cannot be sent: {error}"))]), []

    def send_answer(self) -> None:
        """It comes last: after all that was streamed, and after its texts."""
        for lane in (self.down, self.text):
            if lane is not None and not lane.through:
                return
        if self.link is not None and self.answer is not None and not self.answered:
            self.answered = True
            self.link.send_encoded(self.answer)

    # -- connections

    def attach(self, link: ServerLink, got: list[int]) -> None:
        """The client asks again, over this connection; of DOWN and TEXT it has so many bytes."""
        self.link = link
        self.answered = False
        if self.up is not None:
            self.up.attach(link)
            link.send([RESUME, self.id, self.up.received])
            self.up.credit_again()
        else:
            link.send([RESUME, self.id, 0])
        if self.down is not None:
            self.down.attach(link, got[0])
        if self.text is not None:
            self.text.attach(link, got[1])
        if self.down is None and self.text is None:
            self.send_answer()

    def detach(self) -> None:
        self.link = None
        for lane in (self.up, self.down, self.text):
            if lane is not None:
                lane.detach()

    @property
    def owes(self) -> bool:
        """Whether the client that asked for it has yet to take some of what it was answered."""
        return self.link is not None and any(lane is not None and lane.held for lane in (self.down, self.text))

    @property
    def waits_for_client(self) -> bool:
        """Whether it cannot end unless the client sends or takes something."""
        if self.task is None:
            return False
        return bool(self.texts) or self.down is not None or self.text is not None or self.method == "upload"

    def cancel(self) -> None:
        """End it. It has begun by then: a task that is cancelled before that would leave no answer."""
        if self.task is not None:
            self.channel.registry.loop.call_soon(self._cancel)

    def _cancel(self) -> None:
        if self.task is not None:
            self.task.cancel()


class Channel:
    """What one client asked, and what it was answered."""

    def __init__(self, registry: Registry, name: bytes, link: ServerLink):
        self.registry = registry
        self.name = name
        self.link: ServerLink | None = link
        self.exchanges: dict[int, Exchange] = {}
        self.highest = 0
        self.detached_at = 0.0
        self._kept: dict[int, Exchange] = {}  # those with an answer, the oldest answers first
        self._kept_bytes = 0

    def request(self, frame: list[Any]) -> None:
        number, method, payload, floor = frame[1:5]
        if number.__class__ is not int or number < 1 or floor.__class__ is not int or method.__class__ is not str:
            raise ProtocolError("A request is not as it should be")
        again = frame[6] if len(frame) > 6 else None
        self.forget(floor)
        exchange = self.exchanges.get(number)
        assert self.link is not None
        if method == "is_alive" and exchange is None and not (len(frame) > 5 and frame[5]) and self._says_alive(number):
            return
        if exchange is not None:
            exchange.attach(self.link, again or [0, 0])
            return
        if number <= self.highest:
            msg = "The request was received before; its result is no longer kept"
            self.link.send([ERROR, number, to_wire(ResultLostError(msg))])
            return
        self.highest = number
        exchange = self.exchanges[number] = Exchange(self, number, method, payload)
        try:
            self.registry.admit(self.link)
            self._check_room(method)
            exchange.start(frame[5] if len(frame) > 5 else None)
        except SwerexException as error:
            exchange.finish(ERROR, to_wire(error))
        if again is not None:
            self.link.send([RESUME, number, 0])

    def _says_alive(self, number: int) -> bool:
        """Answer here and now where that asks nothing of the runtime. It is not kept, since it may be asked twice."""
        registry = self.registry
        link = self.link
        if link is None or registry.logs_all or registry.service.rate.wait(link.client):
            return False
        answer = registry.service.alive()
        if answer is None:
            return False
        if number > self.highest:
            self.highest = number
        link.send([RESULT, number, answer])
        return True

    def _check_room(self, method: str) -> None:
        """Requests that are not whole yet are not in flight, and answers that the client does not take are not dropped,
        but both take room as well."""
        limits = self.registry.service.limits
        if method == "is_alive":
            return
        if len(self.exchanges) - len(self._kept) > limits.requests:
            raise ServerLimitError(f"The server allows {limits.requests} requests at the same time: try again later")
        if self._kept_bytes > limits.result_bytes:
            owed = [exchange.size for exchange in self._kept.values() if exchange.owes]
            if len(owed) > 1 and sum(owed) > limits.result_bytes:
                raise ServerLimitError(f"The client has yet to take {sum(owed)} bytes of answers: it must do so first")

    def finished(self, exchange: Exchange) -> None:
        """It is kept from now on; the oldest go when there are too many."""
        self._kept[exchange.id] = exchange
        self._kept_bytes += exchange.size
        if self._full:
            for other in list(itertools.islice(self._kept.values(), _LOOK_AT)):
                if not self._full:
                    break
                if other is not exchange and not other.owes:
                    self._drop(other)

    @property
    def _full(self) -> bool:
        limits = self.registry.service.limits
        return len(self._kept) > limits.results or self._kept_bytes > limits.result_bytes

    def _drop(self, exchange: Exchange) -> None:
        del self.exchanges[exchange.id]
        if self._kept.pop(exchange.id, None) is not None:
            self._kept_bytes -= exchange.size

    def forget(self, floor: int) -> None:
        """The client has all answers below this one."""
        exchanges = self.exchanges
        while exchanges:
            first = next(iter(exchanges))
            if first >= floor or exchanges[first].answer is None:
                break
            self._drop(exchanges[first])

    def sweep(self, now: float) -> None:
        """Drop answers that were kept long enough."""
        before = now - self.registry.service.limits.result_seconds
        for exchange in [e for e in self._kept.values() if e.done_at < before and not e.owes]:
            self._drop(exchange)

    def attach(self, link: ServerLink) -> None:
        """The client has a new connection: the one before, if it still seems to be there, is not."""
        old, self.link = self.link, link
        if old is not None and old is not link:
            self._detach_all()
            old.channel = None
            old.abort()

    def detach(self, link: ServerLink) -> None:
        if self.link is link:
            self.link = None
            self.detached_at = time.monotonic()
            self._detach_all()

    def _detach_all(self) -> None:
        for exchange in self.exchanges.values():
            exchange.detach()

    def cancel(self, number: int) -> None:
        """The client does not wait for it any more."""
        exchange = self.exchanges.get(number)
        if exchange is not None:
            if exchange.answer is None:
                exchange.cancel()
            else:
                exchange.detach()
                self._drop(exchange)

    def end(self) -> None:
        """The client is gone for good."""
        self.link = None
        self._detach_all()
        self.cancel_all()

    def cancel_all(self) -> None:
        """End everything that was asked for on it."""
        for exchange in self.exchanges.values():
            exchange.cancel()

    @property
    def idle(self) -> bool:
        """Whether nothing runs on it."""
        return len(self._kept) == len(self.exchanges)


class Registry:
    """All channels of a server."""

    def __init__(self, service: Service):
        self.service = service
        self.loop = asyncio.get_running_loop()
        self.logs_all = logs.LOGGER.isEnabledFor(logging.DEBUG)
        """Whether requests are logged that went well."""
        self.encode = new_encoder().encode
        self.waker = silent_waker()
        """What sessions ask whether the loop has other things to do, where the loop itself does not tell."""
        self.channels: dict[bytes, Channel] = {}
        self.links: set[ServerLink] = set()
        self._timer: asyncio.TimerHandle | None = None

    def __call__(self) -> ServerLink:
        """A protocol for a new connection."""
        return ServerLink(self)

    def open(self, name: bytes, link: ServerLink) -> tuple[Channel, bool]:
        """The channel of this name, and whether it was known."""
        channel = self.channels.get(name)
        if channel is not None:
            channel.attach(link)
            return channel, True
        if len(self.channels) >= 2 * self.service.limits.connections:
            self._forget_oldest()
        channel = self.channels[name] = Channel(self, name, link)
        return channel, False

    def _forget_oldest(self) -> None:
        lonely = [(c.detached_at, name) for name, c in self.channels.items() if c.link is None and c.idle]
        if not lonely:
            raise ServerLimitError("The server has too many clients: try again later")
        del self.channels[min(lonely)[1]]

    def admit(self, link: ServerLink) -> None:
        """Raise `ServerLimitError` if this client asks more often than it may."""
        if self.service.rate.wait(link.client):
            rate = self.service.limits.rate
            raise ServerLimitError(f"The server takes {rate:g} requests a second of one client: slow down")

    def join(self, link: ServerLink) -> None:
        self.links.add(link)
        self.service.connections += 1
        if self._timer is None:
            self._timer = self.loop.call_later(_SWEEP, self._sweep)

    def leave(self, link: ServerLink) -> None:
        if link in self.links:
            self.links.discard(link)
            self.service.connections -= 1

    def _sweep(self) -> None:
        now = time.monotonic()
        for link in list(self.links):
            link.check(now)
        keep = self.service.limits.result_seconds
        for name, channel in list(self.channels.items()):
            channel.sweep(now)
            if channel.link is None and now - channel.detached_at > keep:
                if channel.idle:
                    del self.channels[name]
                for exchange in channel.exchanges.values():
                    if exchange.waits_for_client:
                        exchange.cancel()
        busy = self.links or self.channels
        self._timer = self.loop.call_later(_SWEEP, self._sweep) if busy else None

    async def shutdown(self, seconds: float = 2.0) -> None:
        """Tell the clients, and end all connections; the answers that are there go out first, if that is soon."""
        for channel in self.channels.values():
            if channel.link is None:  # nobody is there to wait for
                channel.cancel_all()
        for link in list(self.links):
            link.shutdown()
        until = time.monotonic() + seconds
        while self.links and time.monotonic() < until:
            await asyncio.sleep(0.01)
        for link in list(self.links):
            link.abort()
        for channel in self.channels.values():
            channel.cancel_all()
        if self._timer is not None:
            self._timer.cancel()


class ServerLink(Link):
    """A connection of a client that was let in."""

    def __init__(self, registry: Registry):
        super().__init__()
        self.registry = registry
        self.channel: Channel | None = None
        self.client = ""
        """Where it comes from; the same for all connections of a unix socket."""
        self._last = time.monotonic()
        self._backlog: deque[Any] = deque()
        """Frames that came and wait for their turn. Nothing is read meanwhile."""
        self.handlers[HELLO] = self._hello

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        peer = transport.get_extra_info("peername")
        self.client = str(peer[0]) if isinstance(peer, tuple) and peer else "local"
        self.registry.join(self)

    def lost(self, error: BaseException) -> None:
        self.registry.leave(self)
        if isinstance(error, ProtocolError):
            logger.warning("The client %s was disconnected: %s", self.client, error)
        if self.channel is not None:
            self.channel.detach(self)

    def handle(self, frames: list[Any]) -> None:
        """A few in each turn of the loop, so that others have theirs."""
        if len(frames) <= _AT_ONCE and not self._backlog:
            super().handle(frames)
            return
        if not self._backlog:
            self.transport.pause_reading()
            self.registry.loop.call_soon(self._go_on)
        self._backlog.extend(frames)

    def _go_on(self) -> None:
        if self.paused or self.closing:
            return
        super().handle([self._backlog.popleft() for _ in range(min(_AT_ONCE, len(self._backlog)))])
        if self._backlog:
            self.registry.loop.call_soon(self._go_on)
        elif not self.paused and not self.closing:
            self.transport.resume_reading()

    def pause_writing(self) -> None:
        """Who does not read is not read from."""
        super().pause_writing()
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.paused or self.closing:
            return
        if self._backlog:
            self.registry.loop.call_soon(self._go_on)
        else:
            self.transport.resume_reading()

    def check(self, now: float) -> None:
        """Give it up when it has said nothing for too long."""
        if self.heard:
            self.heard = False
            self._last = now
        elif now - self._last > (_SILENCE if self.channel is not None else _FIRST_FRAME):
            self.abort()

    def shutdown(self) -> None:
        if not self.closing:
            self.send([GOODBYE, "The server shuts down"])
            self.close()

    # -- frames

    def _hello(self, frame: list[Any]) -> None:
        _, version, name, resumes = frame
        if version != VERSION or not isinstance(name, bytes) or len(name) != 16:
            raise ProtocolError(f"The client speaks version {version!r:.20} of the protocol; this is {VERSION}")
        self.handlers.pop(HELLO)
        service = self.registry.service
        try:
            self.channel, known = self.registry.open(name, self)
        except ServerLimitError as error:
            self.send([GOODBYE, str(error)])
            self.close()
            return
        self.send([HELLO, VERSION, service.boot, known, {"version": __version__}])
        self.handlers.update(
            {
                REQUEST: self.channel.request,
                CANCEL: self._cancel,
                CREDIT: self._credit,
                DATA: self._data,
                END: self._end,
                PING: self._ping,
                GOODBYE: self._goodbye,
            }
        )

    def _exchange(self, number: int) -> Exchange | None:
        return self.channel.exchanges.get(number) if self.channel is not None else None

    def _cancel(self, frame: list[Any]) -> None:
        if self.channel is not None:
            self.channel.cancel(frame[1])

    def _credit(self, frame: list[Any]) -> None:
        _, number, lane, offset = frame
        exchange = self._exchange(number)
        sender = None if exchange is None else exchange.down if lane == DOWN else exchange.text
        if sender is not None:
            sender.credit(offset)

    def _data(self, frame: list[Any]) -> None:
        _, number, _, offset, data = frame
        exchange = self._exchange(number)
        if exchange is not None and exchange.up is not None and exchange.answer is None:
            exchange.up.data(offset, data)

    def _end(self, frame: list[Any]) -> None:
        _, number, _, offset = frame
        exchange = self._exchange(number)
        if exchange is not None and exchange.up is not None and exchange.answer is None:
            exchange.up.end(offset)

    def _ping(self, frame: list[Any]) -> None:
        super()._ping(frame)
        if self.channel is not None and len(frame) > 1:
            self.channel.forget(frame[1])

    def _goodbye(self, frame: list[Any]) -> None:
        """The client is done: nobody will ask for its answers."""
        channel, self.channel = self.channel, None
        if channel is not None:
            channel.end()
            self.registry.channels.pop(channel.name, None)
        self.close()


def _same(text: str, digest: bytes) -> bool:
    """Whether this text was streamed."""
    whole = hashlib.blake2b()
    for start in range(0, len(text), PIECE):
        whole.update(text[start : start + PIECE].encode("utf-8", "surrogatepass"))
    return whole.digest() == digest


def _text(payload: Any, name: str) -> str:
    value = payload.get(name) if isinstance(payload, dict) else None
    if not isinstance(value, str):
        raise InvalidInputError(f"The request needs {name!r}, a text")
    return value
