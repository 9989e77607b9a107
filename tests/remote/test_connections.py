"""Connections of a server in this process: who gets in, by which protocol, and what a stranger may do."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from swerex_c.remote.server.gate import Gate
from swerex_c.remote.server.limits import Limits
from swerex_c.remote.server.listeners import Listeners, ServeOptions
from swerex_c.remote.server.serve import serve
from swerex_c.remote.server.service import Service
from swerex_c.runtime.local import LocalRuntime
from tests.support.server_process import KEY, upgrade
from tests.support.wait import DEADLINE, settle, until_async


class Echo(asyncio.BufferedProtocol):
    """A connection of frames that sends back in capitals what it gets."""

    def __init__(self, peers: Echoes):
        self.peers = peers

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.peers.echoes.add(self)
        self.peers.service.connections += 1

    def connection_lost(self, exc: Exception | None) -> None:
        self.peers.echoes.discard(self)
        self.peers.service.connections -= 1

    def get_buffer(self, sizehint: int) -> memoryview:
        self.buffer = bytearray(5)
        return memoryview(self.buffer)

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(self.buffer[:nbytes])

    def data_received(self, data: bytes | bytearray) -> None:
        self.transport.write(bytes(data).upper())


class Echoes:
    """What speaks to upgraded connections, in the place of a `Registry`."""

    def __init__(self, service: Service):
        self.service = service
        self.echoes: set[Echo] = set()

    def new_connection(self) -> Echo:
        return Echo(self)

    def open(self, name: str, connection: Echo) -> bool:
        return False

    async def shutdown(self, seconds: float = 2.0) -> None:
        for echo in list(self.echoes):
            echo.transport.write(b"BYE")
            echo.transport.close()


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


class Clock:
    """The event loop's, which can be put on: what is due is due at once, however long the machine takes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        loop = asyncio.get_running_loop()
        self.ahead, time = 0.0, loop.time
        monkeypatch.setattr(loop, "time", lambda: time() + self.ahead)

    def advance(self, seconds: float) -> None:
        self.ahead += seconds


def head(path: str, size: int | None = None, key: str | None = KEY) -> bytes:
    """Return the head of a GET, or of a POST with a body of this size."""
    lines = [f"{'GET' if size is None else 'POST'} {path} HTTP/1.1", "Host: x"]
    lines += [] if key is None else [f"X-API-Key: {key}"]
    lines += [] if size is None else [f"Content-Length: {size}"]
    return "\r\n".join([*lines, "", ""]).encode()


class Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        with contextlib.suppress(ConnectionError):
            await self.writer.drain()

    async def head(self) -> tuple[int, dict[str, str]]:
        lines = (await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), DEADLINE)).decode().split("\r\n")
        pairs = (line.split(": ", 1) for line in lines[1:] if line)
        return int(lines[0].split()[1]), {name.lower(): value for name, value in pairs}

    async def answer(self) -> tuple[int, Any]:
        status, headers = await self.head()
        return status, json.loads(await self.reader.readexactly(int(headers["content-length"])))

    async def ended(self) -> bytes:
        """What still comes until the other end closes."""
        try:
            return await asyncio.wait_for(self.reader.read(), DEADLINE)
        except ConnectionError:
            return b""

    def close(self) -> None:
        self.writer.close()


class Served:
    """A server in this event loop."""

    def __init__(self, service: Service, port: int, stop: asyncio.Event):
        self.service = service
        self.port = port
        self.stop = stop

    async def connect(self, first: bytes = b"", **tls: Any) -> Connection:
        connection = Connection(*await asyncio.open_connection("127.0.0.1", self.port, **tls))
        await connection.send(first)
        return connection

    async def answers(self, **tls: Any) -> bool:
        connection = await self.connect(head("/fine"), **tls)
        answer = await connection.answer()
        connection.close()
        return answer == (200, {"path": "/fine", "size": 0})


@contextlib.asynccontextmanager
async def serving(tls: tuple[Path, Path] | None = None, **limits: Any) -> AsyncIterator[Served]:
    service = Service(SimpleNamespace(runtime=LocalRuntime(), AUTH_TOKEN=KEY), Limits(**limits))
    stop, ready = asyncio.Event(), asyncio.Event()
    cert, key = map(str, tls) if tls else (None, None)
    options = ServeOptions(port=0, limits=service.limits, graceful=2, tls_cert=cert, tls_key=key)
    listeners = Listeners(options)
    echoes: Any = Echoes(service)
    served = asyncio.create_task(
        serve(
            service, Gate(app, service, own_process=False), options, registry=echoes, listeners=listeners,
            ready=lambda places: ready.set(), stop=stop,
        )
    )  # fmt: skip
    await asyncio.wait_for(ready.wait(), DEADLINE)
    try:
        assert listeners.addresses.port is not None
        yield Served(service, listeners.addresses.port, stop)
    finally:
        stop.set()
        await asyncio.wait_for(served, DEADLINE)
        assert service.connections == 0


@pytest.fixture(params=["httptools", "h11"])
def parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Which of uvicorn's two protocols the server uses."""
    import uvicorn.protocols.http.auto as auto

    if request.param == "h11":
        from uvicorn.protocols.http.h11_impl import H11Protocol as below
    else:
        pytest.importorskip("httptools", reason="httptools is not installed")
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol as below
    monkeypatch.setattr(auto, "AutoHTTPProtocol", below)
    return str(request.param)


# Which protocol


@pytest.mark.usefixtures("parser")
@pytest.mark.parametrize("path", ["/wire", "/behind/a/proxy/wire", "/wire?x=1"])
async def test_a_connection_is_handed_over_with_what_came_after_the_head(path: str) -> None:
    async with serving() as server:
        for _ in range(2):
            connection = await server.connect(upgrade(path) + b"already here ")
            status, headers = await connection.head()
            assert status == 101
            assert (headers["upgrade"], headers["connection"]) == ("swerex-frames/1", "Upgrade")
            assert headers["x-swerex-server"] == server.service.instance_id
            assert await connection.reader.readexactly(13) == b"ALREADY HERE "
            await connection.send(b"GET / HTTP/1.1\r\n\r\n")
            assert await connection.reader.readexactly(18) == b"GET / HTTP/1.1\r\n\r\n"
            assert server.service.connections == 1
            connection.close()
            await until_async(lambda: not server.service.connections)


@pytest.mark.parametrize("size", [1, 2, 3, 7])
async def test_an_upgrade_may_come_in_pieces(size: int) -> None:
    async with serving() as server:
        connection = await server.connect()
        connection.writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        data = upgrade() + b"x"
        for start in range(0, len(data), size):
            await connection.send(data[start : start + size])
            await settle()
        assert (await connection.head())[0] == 101
        assert await connection.reader.readexactly(1) == b"X"
        connection.close()


@pytest.mark.usefixtures("parser")
@pytest.mark.parametrize(
    ("first", "status"),
    [
        (upgrade().replace(b"Upgrade: s", b"UPGRADE:   S").replace(b"Connection", b"connection"), 101),
        (upgrade(Connection="keep-alive, uPGRADE"), 101),
        (upgrade("/wired"), 200),
        (upgrade(Connection=""), 426),
        (upgrade(Upgrade=""), 426),
        (upgrade(Upgrade="websocket"), 426),
        (upgrade(Upgrade="h2c"), 426),
        (upgrade(version="1.0"), 426),
        (upgrade(channel=""), 426),
        (upgrade(channel="0123456789ABCDEF" * 2), 426),
        (upgrade(channel="0" * 33), 426),
        (upgrade().replace(b"GET", b"POST").replace(b"\r\n\r\n", b"\r\nContent-Length: 0\r\n\r\n"), 426),
        (head("/wire"), 426),
        (upgrade(**{f"A{number}": "x" for number in range(200)}), 426),
        (upgrade(key=None), 403),
        (upgrade(key=""), 403),
        (upgrade(key="wrong") + b"frames that came at once", 401),
        (upgrade(key=KEY + "x"), 401),
        (upgrade(key="\xe4\xff"), 401),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),  # TLS
    ],
)
async def test_a_head_decides_on_the_protocol(first: bytes, status: int) -> None:
    async with serving() as server:
        connection = await server.connect(first)
        assert (await connection.head())[0] == status
        if status in (401, 403):
            await connection.ended()
        connection.close()
        assert await server.answers()


async def test_a_later_request_is_not_upgraded() -> None:
    async with serving() as server:
        connection = await server.connect(head("/first"))
        assert (await connection.answer())[1]["path"] == "/first"
        await connection.send(upgrade())
        assert (await connection.head())[0] == 426
        connection.close()


@pytest.mark.usefixtures("parser")
async def test_http_passes_unchanged() -> None:
    async with serving() as server:
        connection = await server.connect(head("/one") + head("/two", 5) + b"12345")
        assert await connection.answer() == (200, {"path": "/one", "size": 0})
        assert await connection.answer() == (200, {"path": "/two", "size": 5})
        size = 3_000_000
        await connection.send(head("/three", size) + bytes(size))
        assert await connection.answer() == (200, {"path": "/three", "size": size})
        connection.close()
        connection = await server.connect(head("/four", size) + bytes(size))
        assert await connection.answer() == (200, {"path": "/four", "size": size})
        connection.close()


# Limits of a first head


@pytest.mark.usefixtures("parser")
@pytest.mark.parametrize(
    "start",
    [b"", b"G", b"GET /x HT", head("/x")[:-2], b"POST /x HTTP/1.1\r\nA:", b"\r\n", b"\x16", head("/x", 9, None)],
)
async def test_who_does_not_send_the_key_in_time_is_cut(monkeypatch: pytest.MonkeyPatch, start: bytes) -> None:
    clock = Clock(monkeypatch)
    async with serving(head_seconds=2.0) as server:
        connection = await server.connect(start)
        await settle()
        if start[:1] in (b"", b"G"):
            clock.advance(1.5)
            await connection.send(b"x" if start else b"")  # what drips in gains no time
            await settle()
            assert not connection.reader.at_eof()
        clock.advance(1.0 if start[:1] in (b"", b"G") else 2.5)
        await connection.ended()
        connection.close()
        assert await server.answers()


@pytest.mark.usefixtures("parser")
async def test_a_body_may_take_longer_than_a_head(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    async with serving(head_seconds=2.0) as server:
        connection = await server.connect(head("/slow", 8))
        for _ in range(8):
            await settle()
            clock.advance(1.0)
            await connection.send(b"x")
        assert await connection.answer() == (200, {"path": "/slow", "size": 8})
        clock.advance(2.5)  # a connection that waits for its next request is no late head
        await settle()
        await connection.send(head("/next"))
        assert (await connection.answer())[1]["path"] == "/next"
        connection.close()


@pytest.mark.parametrize("method", [b"GET", b"POST"])
@pytest.mark.parametrize("whole", [False, True])
async def test_a_first_head_that_is_too_long_is_refused(method: bytes, whole: bool) -> None:
    async with serving() as server:
        connection = await server.connect(
            method + b" /x HTTP/1.1\r\nHost: x\r\nA: " + b"x" * 70_000 + (b"\r\n\r\n" if whole else b"")
        )
        with contextlib.suppress(ConnectionError):
            assert (await connection.head())[0] == 431
        await connection.ended()
        connection.close()
        assert await server.answers()


async def test_random_bytes_harm_nothing() -> None:
    dice = random.Random(4)
    starts = [b"", b"GET ", b"GET /wire HTTP/1.1\r\n", b"\x16\x03\x01", upgrade()[:-2], b"POST / HTTP/1.1\r\n"]
    async with serving(head_seconds=1.0) as server:
        for number in range(120):
            data = starts[number % len(starts)] + dice.randbytes(dice.choice([1, 10, 1000, 100_000]))
            connection = await server.connect(data)
            if number % 3 == 0:
                connection.writer.transport.abort()
            elif number % 3 == 1:
                connection.close()
        assert await server.answers()
        await until_async(lambda: not server.service.connections)


# Limits of connections


async def test_more_connections_than_allowed_are_told_so() -> None:
    async with serving(connections=3) as server:
        inside = [await server.connect(upgrade()) for _ in range(3)]
        for connection in inside:
            assert (await connection.head())[0] == 101
        for first in (upgrade(), head("/x")):
            connection = await server.connect(first)
            status, content = await connection.answer()
            assert status == 511
            assert content["swerexception"]["class_path"] == "swerex.exceptions.ServerLimitError"
            assert "as many connections as it allows" in content["swerexception"]["message"]
            assert await connection.ended() == b""
            connection.close()
        inside.pop().close()
        await until_async(lambda: server.service.connections < 3)
        assert await server.answers()
        for connection in inside:
            connection.close()


@pytest.mark.parametrize("first", [b"", b"GET /", head("/x", 1000, None)], ids=["nothing", "part of a head", "no key"])
async def test_who_shows_no_key_gives_way(first: bytes) -> None:
    async with serving(unauthenticated=2) as server:
        strangers = [await server.connect(first) for _ in range(6)]
        inside = await server.connect(upgrade())
        assert (await inside.head())[0] == 101
        assert server.service.connections <= 3
        await strangers[0].ended()
        for connection in strangers:
            connection.close()
        inside.close()
        await until_async(lambda: not server.service.connections)
        assert await server.answers()


async def test_a_crowd_with_the_key_is_not_cut() -> None:
    """More at once than may be without the key."""
    async with serving(unauthenticated=8) as server:
        assert all(await asyncio.gather(*(server.answers() for _ in range(200))))


async def test_who_begins_no_handshake_is_cut(monkeypatch: pytest.MonkeyPatch, certificate: tuple[Path, Path]) -> None:
    clock = Clock(monkeypatch)
    tls = {"ssl": ssl.create_default_context(cafile=certificate[0]), "server_hostname": "localhost"}
    async with serving(certificate, unauthenticated=2, head_seconds=2.0) as server:
        strangers = [await server.connect() for _ in range(6)]
        assert await server.answers(**tls), "others give way"
        await strangers[0].ended()
        clock.advance(2.5)
        for connection in strangers:
            await connection.ended()
            connection.close()


async def test_peers_are_told_when_the_server_ends() -> None:
    async with serving() as server:
        connection = await server.connect(upgrade())
        await connection.head()
        idle = await server.connect(head("/x"))
        await idle.answer()
    assert await connection.ended() == b"BYE"
    assert await idle.ended() == b""
    connection.close()
    idle.close()


@pytest.mark.usefixtures("parser")
async def test_who_asks_while_the_server_ends_is_answered_and_goes() -> None:
    async with serving() as server:
        connection = await server.connect(head("/late")[:-2])
        await settle()
        with server.service.counted("execute"):  # the server waits for it
            server.stop.set()
            await until_async(lambda: server.service.ending)
            await connection.send(b"\r\n")
            assert await connection.answer() == (200, {"path": "/late", "size": 0})
            assert await connection.ended() == b""
    connection.close()
