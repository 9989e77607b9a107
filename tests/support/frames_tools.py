"""What tests of the frames share: servers in this loop, a proxy that breaks connections, peers moved by hand."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from swerex_c import _core
from swerex_c.remote.client.calls import ClientChannel
from swerex_c.remote.client.connect import Address
from swerex_c.remote.client.frames import FrameClient
from swerex_c.remote.server.calls import Registry
from swerex_c.remote.server.gate import Gate
from swerex_c.remote.server.limits import Limits
from swerex_c.remote.server.listeners import Listeners
from swerex_c.remote.server.serve import serve
from swerex_c.remote.server.service import Service
from swerex_c.remote.wire import protocol
from swerex_c.remote.wire.protocol import CHANNEL_HEADER, DATA, PIECE, PONG, REQUEST, SERVER_HEADER, UP, UPGRADE
from swerex_c.runtime.local import LocalRuntime
from tests.support import raw_http
from tests.support.server_process import KEY, upgrade
from tests.support.wait import DEADLINE, until_async

NAME = b"0123456789abcdef"
SWITCHING = (
    f"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: {UPGRADE}\r\n"
    f"{SERVER_HEADER}: the server\r\n{CHANNEL_HEADER}: new\r\n\r\n"
).encode()
SESSION = {"session": "default", "session_type": "bash", "startup_source": []}

encode = _core.FrameEncoder(max_frame=2 * protocol.MAX_FRAME).encode


def bash(command: str, timeout: float | None = 20, **more: Any) -> dict[str, Any]:
    """Return the payload of a command in the session."""
    return {"command": command, "action_type": "bash", "check": "silent", "timeout": timeout, **more}


# Servers


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Answer with the path and the size of the body."""
    if scope["type"] != "http":
        raise NotImplementedError  # as apps do that have no lifespan
    size, more = 0, True
    while more:
        message = await receive()
        size += len(message.get("body", b""))
        more = message.get("more_body", False)
    body = json.dumps({"path": scope["path"], "size": size}).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


class Served:
    """A server in the running loop."""

    def __init__(self, limits: Limits | None, port: int):
        self.place = SimpleNamespace(runtime=LocalRuntime(), AUTH_TOKEN=KEY)
        self.service = Service(self.place, limits)
        self.registry = Registry(self.service)
        self.port = port
        self.stop = asyncio.Event()
        self.errors: list[dict[str, Any]] = []
        """What the loop was told of exceptions that nobody caught."""

    @property
    def exchanges(self) -> list[Any]:
        """Those that are known: running and kept ones."""
        return [call for channel in self.registry.channels.values() for call in channel.calls.values()]

    @property
    def calls(self) -> int:
        return len(self.exchanges)

    @property
    def running(self) -> int:
        return sum(exchange.response is None for exchange in self.exchanges)

    def client(self) -> FrameClient:
        return client(self.port)


@contextlib.asynccontextmanager
async def serving(
    limits: Limits | None = None,
    *,
    session: bool = False,
    tls: tuple[Path, Path] | None = None,
    make: Callable[[Service], Any] = lambda service: Gate(app, service, own_process=False),
) -> AsyncIterator[Served]:
    """Run a server of what `make` makes in the running loop, where no exception may stay unhandled."""
    cert, key = map(str, tls) if tls else (None, None)
    listeners = Listeners(tls_cert=cert, tls_key=key)
    served = Served(limits, listeners.port or 0)
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: served.errors.append(context))
    application, more = make(served.service), {"registry": served.registry, "stop": served.stop}
    server = asyncio.create_task(serve(served.service, application, listeners, graceful=2.0, **more))
    try:
        if session:
            make_session = served.client()
            await make_session.run(lambda channel: channel.call("create_session", SESSION))
            await make_session.close()
            await until_async(lambda: not served.registry.connections)
        yield served
    finally:
        served.stop.set()
        await server
    assert not served.errors, served.errors
    assert served.service.connections == 0


def client(port: int, seconds: float = 5.0) -> FrameClient:
    return FrameClient(Address(port=port, headers={"X-API-Key": KEY}), seconds)


@contextlib.asynccontextmanager
async def channel_to(port: int, seconds: float = 5.0) -> AsyncIterator[ClientChannel]:
    """Open a client's channel for the block."""
    wire = client(port, seconds)
    channel = await wire.own_channel(long=True)
    try:
        yield channel
    finally:
        await wire.close()


# Between them


class Proxy:
    """Passes a connection on to a port, and breaks it.

    Attributes:
        to: the port to which the next connections are passed on.
        cut_up, cut_down: bytes from the client or to it after which the next connection is cut.
        gently: whether it is cut by closing, not by a reset.
        stalled: whether nothing is passed on.
        up, down: bytes that were passed on.
    """

    def __init__(self, port: int, own_port: int = 0):
        self.port = own_port
        self.cut_up: int | None = None
        self.cut_down: int | None = None
        self.gently = False
        self.stalled = False
        self.rate = 0.0
        self.up = self.down = 0
        self.connections = 0
        self.to = port
        self._open: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> Proxy:
        self._server = await asyncio.start_server(self._connection, "127.0.0.1", self.port, limit=1 << 20)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.cut()
        await asyncio.sleep(0)

    def cut(self) -> None:
        """Cut all connections now."""
        for writer in list(self._open):
            writer.transport.abort()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            far_reader, far = await asyncio.open_connection("127.0.0.1", self.to, limit=1 << 20)
        except OSError:
            writer.transport.abort()
            return
        self._open |= {writer, far}
        cut_up, self.cut_up, cut_down, self.cut_down = self.cut_up, None, self.cut_down, None
        pumps = [
            asyncio.ensure_future(self._pump(reader, far, "up", cut_up)),
            asyncio.ensure_future(self._pump(far_reader, writer, "down", cut_down)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            for end in (writer, far):
                end.close() if self.gently else end.transport.abort()
            self._open -= {writer, far}

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: str, most: int | None
    ) -> None:
        passed = 0
        with contextlib.suppress(ConnectionError):
            while most is None or passed < most:
                data = await reader.read(1 << 16)
                if self.rate:
                    await asyncio.sleep(len(data) / self.rate)
                while self.stalled:
                    await asyncio.sleep(0.01)
                if not data:
                    return
                data = data if most is None else data[: most - passed]
                passed += len(data)
                setattr(self, way, getattr(self, way) + len(data))
                writer.write(data)
                await writer.drain()
            if self.gently:
                await asyncio.sleep(0.001)


# By hand


class Peer:
    """One end of a connection, moved by hand."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self.reader = reader
        self.writer = writer
        self.decoder = _core.FrameDecoder(max_frame=protocol.MAX_FRAME)
        self._frames: list[Any] = []

    def send(self, *frames: Any) -> None:
        self.writer.write(b"".join(frame if isinstance(frame, bytes) else encode(frame) for frame in frames))

    async def frame(self, seconds: float = DEADLINE) -> Any:
        """Return the next frame; None at the end of the connection."""
        async with asyncio.timeout(seconds):
            while not self._frames:
                try:
                    data = await self.reader.read(1 << 20)
                except ConnectionError:
                    return None
                if not data:
                    return None
                self._frames += self.decoder.feed(data)
        return self._frames.pop(0)

    async def frames(self, number: int, *kinds: int) -> Any:
        """Return the next frame of these kinds for that exchange; None at the end of the connection."""
        while (frame := await self.frame()) is not None and (frame[0] not in kinds or frame[1] != number):
            pass
        return frame

    async def answer(self, number: int) -> Any:
        """Return the frame that ends an exchange."""
        return await self.frames(number, protocol.RESULT, protocol.ERROR)

    async def ended(self) -> None:
        """Wait until the other end has closed it."""
        await self.frames(0)

    def close(self) -> None:
        self.writer.transport.abort()


@contextlib.asynccontextmanager
async def raw_client(port: int, name: bytes = NAME, known: bool = False, key: str = KEY) -> AsyncIterator[Peer]:
    """Connect a client with the key; the server knows its channel or not."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    peer = Peer(reader, writer)
    try:
        writer.write(upgrade(key=key, channel=name.hex()))
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 101 ")
        assert f"\r\n{CHANNEL_HEADER}: {'known' if known else 'new'}\r\n".encode() in head
        yield peer
    finally:
        peer.close()


def request(number: int, method: str = "is_alive", payload: Any = None, floor: Any = 1) -> list[Any]:
    return [REQUEST, number, method, floor, {} if payload is None else payload]


def long_request(number: int, method: str, payload: Any) -> list[list[Any]]:
    """Return the frames of a request whose payload, of less than WINDOW bytes, comes as a stream."""
    data = encode(payload)
    starts = range(0, len(data), PIECE)
    return [request(number, method, len(data)), *[[DATA, number, UP, at, data[at : at + PIECE]] for at in starts]]


@contextlib.asynccontextmanager
async def raw_server(script: Callable[[Peer], Awaitable[None]], upgrades: bool = True) -> AsyncIterator[int]:
    """Run a server whose connections run `script`, after the upgrade if it `upgrades`; yield its port."""

    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            if upgrades:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(SWITCHING)
            await script(Peer(reader, writer))
        writer.close()

    async with raw_http.serving(connection) as url:
        yield int(url.rpartition(":")[2])


async def keep_answering(peer: Peer, respond: Callable[[list[Any]], list[Any]]) -> None:
    """Answer each request with frames, and pings, until the good-bye."""
    while (frame := await peer.frame(60)) is not None and frame[0] != protocol.GOODBYE:
        if frame[0] == REQUEST:
            peer.send(*respond(frame))
        elif frame[0] == protocol.PING:
            peer.send([PONG])
