"""Connections of a server in this process: their protocols, limits and addresses."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import socket
import ssl
import stat
from pathlib import Path
from typing import Any

import pytest

from swerex_c.exceptions import InvalidInputError, ResourceError
from swerex_c.remote.server.limits import Limits
from swerex_c.remote.server.listeners import Listeners
from swerex_c.remote.wire.protocol import PING, PONG
from tests.support.frames_tools import Served, encode, serving
from tests.support.server_process import KEY, upgrade
from tests.support.wait import DEADLINE, settle, until_async

PONGS = encode([PONG])


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
        """Return what is received until the other end closes."""
        try:
            return await asyncio.wait_for(self.reader.read(), DEADLINE)
        except ConnectionError:
            return b""

    def close(self) -> None:
        self.writer.close()


async def connect(server: Served, first: bytes = b"", **tls: Any) -> Connection:
    connection = Connection(*await asyncio.open_connection("127.0.0.1", server.port, **tls))
    await connection.send(first)
    return connection


async def answers(server: Served, **tls: Any) -> bool:
    connection = await connect(server, head("/fine"), **tls)
    answer = await connection.answer()
    connection.close()
    return answer == (200, {"path": "/fine", "size": 0})


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

LONG = b"A: " + b"x" * 70_000
"""A header that is longer than a first head may be."""


@pytest.mark.usefixtures("parser")
@pytest.mark.parametrize(
    ("path", "size"),
    [("/wire", 1000), ("/behind/a/proxy/wire", 1000), ("/wire?x=1", 1000), *(("/wire", size) for size in (1, 2, 3, 7))],
)
async def test_a_connection_is_handed_over_with_what_came_after_the_head(path: str, size: int) -> None:
    """The head may arrive in pieces of any size."""
    async with serving() as server:
        connection = await connect(server)
        connection.writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        data = upgrade(path) + encode([PING, 0])
        for start in range(0, len(data), size):
            await connection.send(data[start : start + size])
            await settle()
        status, headers = await connection.head()
        assert status == 101
        assert (headers["upgrade"], headers["connection"]) == ("swerex-frames/1", "Upgrade")
        assert headers["x-swerex-server"] == server.service.instance_id
        assert await connection.reader.readexactly(len(PONGS)) == PONGS
        await connection.send(encode([PING, 0]))
        assert await connection.reader.readexactly(len(PONGS)) == PONGS
        assert server.service.connections == 1
        connection.close()
        await until_async(lambda: not server.service.connections)


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
        *((head("/x", size)[:-2] + LONG + end, 431) for size in (None, 0) for end in (b"", b"\r\n\r\n")),
    ],
    ids=lambda value: repr(value)[:60],
)
async def test_a_head_decides_on_the_protocol(first: bytes, status: int) -> None:
    async with serving() as server:
        connection = await connect(server, first)
        assert (await connection.head())[0] == status
        if status in (401, 403, 431):
            await connection.ended()
        connection.close()
        assert await answers(server)


@pytest.mark.usefixtures("parser")
async def test_http_passes_unchanged() -> None:
    async with serving() as server:
        connection = await connect(server, head("/one") + head("/two", 5) + b"12345")
        assert await connection.answer() == (200, {"path": "/one", "size": 0})
        assert await connection.answer() == (200, {"path": "/two", "size": 5})
        size = 3_000_000
        await connection.send(head("/three", size) + bytes(size))
        assert await connection.answer() == (200, {"path": "/three", "size": size})
        await connection.send(upgrade())
        assert (await connection.head())[0] == 426, "only a first request is for frames"
        connection.close()
        connection = await connect(server, head("/four", size) + bytes(size))
        assert await connection.answer() == (200, {"path": "/four", "size": size})
        connection.close()


# Limits of a first head


@pytest.mark.usefixtures("parser")
@pytest.mark.parametrize(
    "start",
    [b"", b"G", b"GET /x HT", head("/x")[:-2], b"POST /x HTTP/1.1\r\nA:", b"\r\n", b"\x16", head("/x", 9, None)],
)
async def test_connections_without_the_key_are_closed_in_time(monkeypatch: pytest.MonkeyPatch, start: bytes) -> None:
    clock = Clock(monkeypatch)
    async with serving(Limits(head_seconds=2.0)) as server:
        connection = await connect(server, start)
        await settle()
        if start[:1] in (b"", b"G"):
            clock.advance(1.5)
            await connection.send(b"x" if start else b"")  # what drips in gains no time
            await settle()
            assert not connection.reader.at_eof()
        clock.advance(1.0 if start[:1] in (b"", b"G") else 2.5)
        await connection.ended()
        connection.close()
        assert await answers(server)


@pytest.mark.usefixtures("parser")
async def test_a_body_may_take_longer_than_a_head(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    async with serving(Limits(head_seconds=2.0)) as server:
        connection = await connect(server, head("/slow", 8))
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


# Limits of connections


async def test_more_connections_than_allowed_are_told_so() -> None:
    async with serving(Limits(connections=3)) as server:
        inside = [await connect(server, upgrade()) for _ in range(3)]
        for connection in inside:
            assert (await connection.head())[0] == 101
        for first in (upgrade(), head("/x")):
            connection = await connect(server, first)
            status, content = await connection.answer()
            assert status == 511
            assert content["swerexception"]["class_path"] == "swerex.exceptions.ServerLimitError"
            assert "as many connections as it allows" in content["swerexception"]["message"]
            assert await connection.ended() == b""
            connection.close()
        inside.pop().close()
        await until_async(lambda: server.service.connections < 3)
        assert await answers(server)
        for connection in inside:
            connection.close()


@pytest.mark.parametrize(
    ("first", "tls"),
    [(b"", False), (b"GET /", False), (head("/x", 1000, None), False), (b"", True)],
    ids=["nothing", "part of a head", "no key", "no handshake"],
)
async def test_connections_without_the_key_give_way(
    monkeypatch: pytest.MonkeyPatch, certificate: tuple[Path, Path], first: bytes, tls: bool
) -> None:
    clock = Clock(monkeypatch)
    context = ssl.create_default_context(cafile=certificate[0])
    client: dict[str, Any] = {"ssl": context, "server_hostname": "localhost"} if tls else {}
    async with serving(Limits(unauthenticated=2, head_seconds=2.0), tls=certificate if tls else None) as server:
        strangers = [await connect(server, first) for _ in range(6)]
        inside = await connect(server, upgrade(), **client)
        assert (await inside.head())[0] == 101
        assert server.service.connections <= 3
        await strangers[0].ended()
        clock.advance(2.5)
        for connection in strangers:
            await connection.ended()
            connection.close()
        inside.close()
        await until_async(lambda: not server.service.connections)
        assert await answers(server, **client)


async def test_a_crowd_with_the_key_is_not_cut() -> None:
    """There are more of them at once than connections may be without the key."""
    async with serving(Limits(unauthenticated=8)) as server:
        assert all(await asyncio.gather(*(answers(server) for _ in range(200))))


@pytest.mark.usefixtures("parser")
async def test_requests_during_the_shutdown_are_answered() -> None:
    async with serving() as server:
        connection = await connect(server, head("/late")[:-2])
        await settle()
        with server.service.counted("execute"):  # the server waits for it
            server.stop.set()
            await until_async(lambda: server.service.ending)
            await connection.send(b"\r\n")
            assert await connection.answer() == (200, {"path": "/late", "size": 0})
            assert await connection.ended() == b""
    connection.close()


# Where a server listens, and what it says if it cannot


@pytest.mark.parametrize(
    "case",
    [
        ({"host": None}, InvalidInputError, "neither on a port nor on a unix socket"),
        ({"host": "192.0.2.1"}, ResourceError, "Cannot listen on port 0 of 192.0.2.1: Cannot assign requested address"),
        ({"host": "no.such.host.invalid"}, ResourceError, "Cannot listen on no.such.host.invalid: "),
        ({"tls_key": "key.pem"}, InvalidInputError, "A TLS key was given without a certificate"),
        ({"tls_cert": "none"}, ResourceError, "is in none: No such file or directory"),
        ({"tls_cert": "cert.pem", "tls_key": "none"}, ResourceError, "is in cert.pem and none: No such file"),
        ({"tls_cert": "cert.pem"}, ResourceError, "No TLS certificate with its key (without a passphrase) is in cert"),
        ({"tls_cert": "key.pem", "tls_key": "key.pem"}, ResourceError, "No TLS certificate with its key"),
        ({"host": None, "unix": "cert.pem"}, ResourceError, "Address already in use"),
        ({"host": None, "unix": "none/socket"}, ResourceError, "No such file"),
        ({"host": None, "unix": "x" * 200}, ResourceError, "the path is too long"),
    ],
)
def test_an_unusable_address_is_named(
    tmp_path: Path, monkeypatch: Any, certificate: tuple[Path, Path], case: Any
) -> None:
    options, error, says = case
    monkeypatch.chdir(tmp_path)
    for path in certificate:
        shutil.copy(path, tmp_path)
    with pytest.raises(error) as caught:
        Listeners(**options)
    assert says in str(caught.value)
    assert sorted(os.listdir()) == ["cert.pem", "key.pem"]
    assert (tmp_path / "cert.pem").read_text() == certificate[0].read_text()


def test_all_addresses_of_a_host_have_one_port(monkeypatch: pytest.MonkeyPatch) -> None:
    addresses = [("127.0.0.1", 0), ("127.0.0.2", 0), ("192.0.2.1", 0)]
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", address) for address in addresses]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    with contextlib.closing(Listeners("all.of.them")) as listeners:
        port = listeners.port
        assert [one.getsockname() for one in listeners.all] == [("127.0.0.1", port), ("127.0.0.2", port)]
        assert str(listeners) == f"http://all.of.them:{port}"


def test_a_client_that_vanishes_is_noticed() -> None:
    listeners = Listeners()
    with contextlib.closing(listeners), socket.create_connection(("127.0.0.1", listeners.port or 0)):
        accepted, _ = listeners.all[0].accept()
        with accepted:
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 60
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 120_000


def test_a_unix_socket_belongs_to_one_user_and_one_server(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with contextlib.closing(Listeners(unix=str(path))) as listeners:  # a dead server's is replaced
        assert str(listeners) == f"http://127.0.0.1:{listeners.port} and unix://{path}"
        mode = path.stat().st_mode
        assert stat.S_ISSOCK(mode) and stat.S_IMODE(mode) == 0o600
        with pytest.raises(ResourceError, match="Address already in use"):
            Listeners(unix=str(path))
        path.unlink()
        new = Listeners(unix=str(path))
    assert path.exists(), "another server's is not removed"
    new.close()
    assert not path.exists()
