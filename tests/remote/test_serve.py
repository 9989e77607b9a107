"""The server process: who gets in, what a connection may do, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import select
import shutil
import signal
import socket
import ssl
import stat
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import requests

from swerex_c.exceptions import InvalidInputError, ResourceError
from swerex_c.remote.server import auth as keys
from swerex_c.remote.server.limits import Limits
from swerex_c.remote.server.listeners import Listeners, ServeOptions
from swerex_c.remote.server.serve import serve
from swerex_c.remote.server.service import Service
from swerex_c.remote.wire.protocol import ERROR, GOODBYE, HELLO, RESULT, VERSION, encode, new_decoder
from swerex_c.runtime.abstract import Command, CommandResponse
from swerex_c.runtime.local import LocalRuntime
from tests.support.frames_tools import Frames
from tests.support.processes import Family
from tests.support.server_process import (
    FRONT,
    KEY,
    REMOTE,
    Background,
    Server,
    arguments_of,
    ended,
    environment,
    environment_of,
    open_files,
    serving,
    threads_of,
    upgrade,
)
from tests.support.wait import DEADLINE, settle, until, until_async

pytestmark = pytest.mark.slow

# The door, in this process, with an app that says what it got and a protocol that sends back what it gets


class Echo(asyncio.BufferedProtocol):
    def __init__(self, peers: Echoes):
        self.peers = peers

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.peers.open.add(self)
        self.peers.service.connections += 1

    def connection_lost(self, exc: Exception | None) -> None:
        self.peers.open.discard(self)
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
        self.open: set[Echo] = set()

    def new_connection(self) -> Echo:
        return Echo(self)

    async def shutdown(self, seconds: float = 2.0) -> None:
        for echo in list(self.open):
            echo.transport.write(b"BYE")
            echo.transport.close()


async def app(scope: Any, receive: Any, send: Any) -> None:
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


class House:
    """A server in this event loop."""

    def __init__(self, service: Service, port: int):
        self.service = service
        self.port = port

    async def connect(self, first: bytes = b"") -> Connection:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        connection = Connection(reader, writer)
        await connection.send(first)
        return connection

    async def answers(self) -> bool:
        connection = await self.connect(b"GET /fine HTTP/1.1\r\nHost: x\r\n\r\n")
        answer = await connection.answer()
        connection.close()
        return answer == (200, {"path": "/fine", "size": 0})


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

    async def ended(self, seconds: float = DEADLINE) -> bytes:
        """What still comes until the other end closes."""
        try:
            return await asyncio.wait_for(self.reader.read(), seconds)
        except ConnectionError:
            return b""

    def close(self) -> None:
        self.writer.close()


@contextlib.asynccontextmanager
async def server_state(**limits: Any) -> AsyncIterator[House]:
    place = SimpleNamespace(runtime=LocalRuntime(), AUTH_TOKEN=KEY)
    service = Service(place, Limits(**limits))
    stop, ready = asyncio.Event(), asyncio.Event()
    options = ServeOptions(port=0, limits=service.limits, graceful=2)
    listeners = Listeners(options)
    echoes: Any = Echoes(service)
    served = asyncio.create_task(
        serve(
            service, app, options, registry=echoes, listeners=listeners,
            ready=lambda places: ready.set(), stop=stop,
        )
    )  # fmt: skip
    await asyncio.wait_for(ready.wait(), DEADLINE)
    try:
        assert listeners.addresses.port is not None
        yield House(service, listeners.addresses.port)
    finally:
        stop.set()
        await asyncio.wait_for(served, DEADLINE)
        assert service.connections == 0


@pytest.fixture(params=["httptools", "h11"], autouse=False)
def parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Which of uvicorn's two protocols is below the door."""
    import uvicorn.protocols.http.auto as auto

    if request.param == "h11":
        from uvicorn.protocols.http.h11_impl import H11Protocol as below
    else:
        pytest.importorskip("httptools", reason="httptools is not installed")
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol as below
    monkeypatch.setattr(auto, "AutoHTTPProtocol", below)
    return str(request.param)


@pytest.mark.usefixtures("parser")
@pytest.mark.parametrize("path", ["/wire", "/behind/a/proxy/wire", "/wire?x=1"])
async def test_a_connection_is_handed_over_with_what_came_after_the_head(path: str) -> None:
    async with server_state() as server:
        for _ in range(2):
            connection = await server.connect(upgrade(path) + b"already here ")
            status, headers = await connection.head()
            assert status == 101
            assert (headers["upgrade"], headers["connection"]) == ("swerex-frames", "Upgrade")
            assert headers["x-swerex-server"] == server.service.instance_id
            assert await connection.reader.readexactly(13) == b"ALREADY HERE "
            await connection.send(b"GET / HTTP/1.1\r\n\r\n")
            assert await connection.reader.readexactly(18) == b"GET / HTTP/1.1\r\n\r\n"
            assert server.service.connections == 1
            connection.close()
            await until_async(lambda: not server.service.connections)


@pytest.mark.parametrize("size", [1, 2, 3, 7])
async def test_an_upgrade_may_come_in_pieces(size: int) -> None:
    async with server_state() as server:
        connection = await server.connect()
        connection.writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        data = upgrade() + b"x"
        for start in range(0, len(data), size):
            await connection.send(data[start : start + size])
            await settle()
        assert (await connection.head())[0] == 101
        assert await connection.reader.readexactly(1) == b"X"
        connection.close()


@pytest.mark.parametrize(
    "head",
    [
        upgrade().replace(b"Upgrade: s", b"UPGRADE:   S").replace(b"Connection", b"connection"),
        upgrade(Connection="keep-alive, uPGRADE"),
    ],
)
async def test_names_and_tokens_have_no_case(head: bytes) -> None:
    async with server_state() as server:
        connection = await server.connect(head)
        assert (await connection.head())[0] == 101
        connection.close()


@pytest.mark.usefixtures("parser")
@pytest.mark.parametrize(
    "head",
    [
        upgrade("/wired"),
        upgrade(Connection=""),
        upgrade(Upgrade=""),
        upgrade(Upgrade="websocket"),
        upgrade(Upgrade="h2c"),
        upgrade(version="1.0"),
        upgrade().replace(b"GET", b"POST").replace(b"\r\n\r\n", b"\r\nContent-Length: 0\r\n\r\n"),
        b"GET /wire HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
)
async def test_any_other_head_is_for_the_app(head: bytes) -> None:
    async with server_state() as server:
        connection = await server.connect(head)
        status, content = await connection.answer()
        assert status == 200 and content["path"] in ("/wire", "/wired")
        connection.close()


async def test_a_later_request_is_not_upgraded() -> None:
    async with server_state(head_seconds=1.0) as server:
        connection = await server.connect(b"GET /first HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await connection.answer())[1]["path"] == "/first"
        await connection.send(upgrade())
        assert (await connection.answer())[1]["path"] == "/wire"
        connection.close()


@pytest.mark.parametrize(
    ("key", "status", "detail"),
    [
        (None, 403, "Not authenticated"),
        ("", 403, "Not authenticated"),
        ("wrong", 401, "Invalid API Key"),
        (KEY + "x", 401, "Invalid API Key"),
        ("\xe4\xff", 401, "Invalid API Key"),
    ],
)
async def test_an_upgrade_needs_the_key(key: str | None, status: int, detail: str) -> None:
    async with server_state() as server:
        connection = await server.connect(upgrade(key=key) + b"frames that came at once")
        assert await connection.answer() == (status, {"detail": detail})
        assert await connection.ended() == b""
        connection.close()
        assert await server.answers()


@pytest.mark.usefixtures("parser")
async def test_http_passes_the_door_unchanged() -> None:
    async with server_state() as server:
        connection = await server.connect(
            b"GET /one HTTP/1.1\r\nHost: x\r\n\r\nPOST /two HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n12345"
        )
        assert await connection.answer() == (200, {"path": "/one", "size": 0})
        assert await connection.answer() == (200, {"path": "/two", "size": 5})
        size = 3_000_000
        await connection.send(b"POST /three HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % size)
        await connection.send(bytes(size))
        assert await connection.answer() == (200, {"path": "/three", "size": size})
        connection.close()


@pytest.mark.usefixtures("parser")
@pytest.mark.parametrize(
    "start", [b"", b"G", b"GET /x HT", b"GET /x HTTP/1.1\r\nHost: x\r\n", b"POST /x HTTP/1.1\r\nA:", b"\r\n"]
)
@pytest.mark.parametrize("kept_alive", [False, True])
async def test_a_head_that_does_not_end_ends_its_connection(
    monkeypatch: pytest.MonkeyPatch, start: bytes, kept_alive: bool
) -> None:
    clock = Clock(monkeypatch)
    async with server_state(head_seconds=2.0) as server:
        connection = await server.connect()
        if kept_alive:
            await connection.send(b"GET /first HTTP/1.1\r\nHost: x\r\n\r\n")
            await connection.answer()
            start = start or b"G"
        await connection.send(start)
        await settle()
        if start != b"\r\n":
            assert not connection.reader.at_eof()
            clock.advance(1.5)
            await connection.send(b"x" if b":" in start else b"")  # what drips in gains no time
            await settle()
            assert not connection.reader.at_eof()
            clock.advance(1.0)
        await connection.ended()
        connection.close()
        assert await server.answers()


@pytest.mark.usefixtures("parser")
async def test_a_body_may_take_longer_than_a_head(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    async with server_state(head_seconds=2.0) as server:
        connection = await server.connect(b"POST /slow HTTP/1.1\r\nHost: x\r\nContent-Length: 8\r\n\r\n")
        for _ in range(8):
            await settle()
            clock.advance(1.0)
            await connection.send(b"x")
        assert await connection.answer() == (200, {"path": "/slow", "size": 8})
        clock.advance(2.5)  # a connection that waits for its next request is no late head
        await settle()
        await connection.send(b"GET /next HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await connection.answer())[1]["path"] == "/next"
        connection.close()


LONG = b"A: " + b"x" * 70_000


@pytest.mark.usefixtures("parser")
@pytest.mark.parametrize("method", [b"GET", b"POST"])
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("kept_alive", [False, True])
async def test_a_head_that_is_too_long_is_refused(parser: str, method: bytes, whole: bool, kept_alive: bool) -> None:
    async with server_state() as server:
        connection = await server.connect()
        if kept_alive:
            await connection.send(b"GET /first HTTP/1.1\r\nHost: x\r\n\r\n")
            await connection.answer()
        head = method + b" /x HTTP/1.1\r\nHost: x\r\n" + LONG
        await connection.send(head + (b"\r\n\r\n" if whole else b""))
        for _ in range(10):  # in several reads, as it may take more than one to see it
            await connection.send(b"y" * 10_000)
            await settle()
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            status, _ = await connection.head()
            assert status in ({431, 400} if parser == "h11" else {431})  # h11 has its own limit, and calls it 400
        await connection.ended()
        connection.close()
        assert await server.answers()


async def test_random_bytes_harm_nothing() -> None:
    dice = random.Random(4)
    starts = [b"", b"GET ", b"GET /wire HTTP/1.1\r\n", b"\x16\x03\x01", upgrade()[:-2], b"POST / HTTP/1.1\r\n"]
    async with server_state(head_seconds=1.0) as server:
        for number in range(120):
            data = starts[number % len(starts)] + dice.randbytes(dice.choice([1, 10, 1000, 100_000]))
            connection = await server.connect(data)
            if number % 3 == 0:
                connection.writer.transport.abort()
            elif number % 3 == 1:
                connection.close()
        assert await server.answers()
        await until_async(lambda: not server.service.connections)


async def test_more_connections_than_allowed_are_told_so() -> None:
    async with server_state(connections=3) as server:
        inside = [await server.connect(upgrade()) for _ in range(3)]
        for connection in inside:
            assert (await connection.head())[0] == 101
        for head in (upgrade(), b"GET /x HTTP/1.1\r\nHost: x\r\n\r\n"):
            connection = await server.connect(head)
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


def test_a_client_that_vanishes_is_noticed() -> None:
    listeners = Listeners(ServeOptions(port=0))
    with contextlib.closing(listeners), socket.create_connection(("127.0.0.1", listeners.addresses.port or 0)):
        accepted, _ = listeners.tcp[0].accept()
        with accepted:
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 60
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 120_000


@pytest.mark.parametrize("limits", [{"connections": 2}, {"unauthenticated": 2}])
async def test_who_shows_no_key_gives_way(limits: dict[str, int]) -> None:
    async with server_state(**limits) as server:
        connections = [await server.connect() for _ in range(6)]
        inside = await server.connect(upgrade())
        assert (await inside.head())[0] == 101
        assert server.service.connections <= 3
        assert await connections[0].ended() == b""
        for connection in connections:
            connection.close()
        inside.close()
        await until_async(lambda: not server.service.connections)
        assert await server.answers()


async def test_peers_are_told_when_the_server_ends() -> None:
    async with server_state() as server:
        connection = await server.connect(upgrade())
        await connection.head()
        idle = await server.connect(b"GET /x HTTP/1.1\r\nHost: x\r\n\r\n")
        await idle.answer()
    assert await connection.ended() == b"BYE"
    assert await idle.ended() == b""
    connection.close()
    idle.close()


# Options: every sentence and exit code


@pytest.mark.parametrize("flag", ["-v", "--version"])
@pytest.mark.parametrize("command", [REMOTE, FRONT], ids=["swerex-remote", "swerex-c serve"])
def test_the_version_is_the_apis(flag: str, command: list[str]) -> None:
    done = ended(flag, command=command)
    assert (done.stdout, done.stderr, done.returncode) == ("1.4.0\n", "", 0)


def test_the_version_goes_alone() -> None:
    done = ended("--version", "--port", "1")
    assert (done.stdout, done.stderr) == ("Error: --version cannot be combined with other arguments\n", "")
    assert done.returncode == 1


def test_help_shows_the_options() -> None:
    said = ended("--help").stdout
    for name in ("host", "port", "auth-token", "auth-token-file", "unix", "stdio", "tls-cert", "tls-key", "metrics"):
        assert f"--{name} " in said
    assert "0.0.0.0" in said and "SWEREX_AUTH_TOKEN" in said
    assert "127.0.0.1" in ended("--help", command=FRONT).stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "The server needs a key: set --auth-token-file FILE, the variable SWEREX_AUTH_TOKEN, or --auth-token KEY"),
        (["--auth-token", ""], "The key from --auth-token is empty: a server does not start without a key"),
        (["--auth-token", "two\nlines"], "must be printable ASCII"),
        (["--auth-token", " x"], "without a space at either end"),
        (["--auth-token", "a", "--auth-token-file", "b"], "--auth-token cannot be combined with --auth-token-file"),
        (["--auth-token-file", "/no/such/file"], "cannot be read from /no/such/file: No such file or directory"),
        (["--auth-token", "a", "--port", "x"], "argument --port: invalid port (0 to 65535) value: 'x'"),
        (["--auth-token", "a", "--port", "65536"], "invalid port (0 to 65535) value: '65536'"),
        (["--auth-token", "a", "--max-body", "1Q"], "argument --max-body: invalid number of bytes value: '1Q'"),
        (["--auth-token", "a", "--max-sessions", "0"], "argument --max-sessions: invalid count value: '0'"),
        (["--auth-token", "a", "--max-rate", "1"], "unrecognized arguments: --max-rate 1"),
        (["--auth-token", "a", "--max-head-seconds", "0"], "invalid number value: '0'"),
        (["--auth-token", "a", "--graceful", "nan"], "invalid number value: 'nan'"),
        (["--auth-token", "a", "--log-format", "xml"], "argument --log-format: invalid choice: 'xml'"),
        (["--auth-token", "a", "--no-such-option"], "unrecognized arguments: --no-such-option"),
        (["--auth-token", "a", "--tls-key", "/dev/null"], "A TLS key was given without a certificate"),
        (["--stdio", "--port", "1"], "--stdio cannot be combined with --port"),
        (["--stdio", "--auth-token", "x"], "--stdio cannot be combined with --auth-token"),
        (["--stdio", "--metrics"], "--stdio cannot be combined with --metrics"),
    ],
)  # fmt: skip
def test_wrong_options_are_refused_in_one_sentence(arguments: list[str], says: str) -> None:
    done = ended(*arguments)
    assert (done.stdout, done.returncode) == ("", 2)
    assert says in done.stderr and done.stderr.startswith("swerex-remote: ") and done.stderr.count("\n") == 1


def test_an_empty_variable_is_no_key() -> None:
    done = ended(SWEREX_AUTH_TOKEN="")
    assert (done.stdout, done.returncode) == ("", 2)
    assert "The key from SWEREX_AUTH_TOKEN is empty" in done.stderr


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = ended("--auth-token", "a", "--host", "127.0.0.1", "--port", str(port))
    assert (done.stdout, done.returncode) == ("", 1)
    assert done.stderr == f"swerex-remote: Cannot listen on port {port} of 127.0.0.1: it is taken by another process\n"


def test_a_host_that_is_not_ours_is_named() -> None:
    for host in ("192.0.2.1", "no.such.host.invalid"):
        done = ended("--auth-token", "a", "--host", host, "--port", "0")
        assert (done.stdout, done.returncode) == ("", 1)
        assert host in done.stderr and "Cannot listen on" in done.stderr and done.stderr.count("\n") == 1


# The key


def test_a_key_file_loses_its_newline_and_must_be_private(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(b"secret\r\n")
    path.chmod(0o600)
    assert keys.from_file(path) == "secret"
    path.chmod(0o640)
    with pytest.warns(UserWarning, match=r"open to others than its owner \(mode 0640\): chmod 600 "):
        assert keys.from_file(path) == "secret"
    path.chmod(0o600)
    for content in (b"", b"\n", b"a\nb\n", b"\xff\n", b"a\0"):
        path.write_bytes(content)
        with pytest.raises(InvalidInputError):
            keys.from_file(path)
    with pytest.raises(InvalidInputError, match="Is a directory"):
        keys.from_file(tmp_path)


def test_keys_cannot_be_guessed() -> None:
    made = {keys.new() for _ in range(100)}
    assert len(made) == 100 and all(len(key) >= 32 and keys.checked(key, "here") == key for key in made)


def test_the_key_comes_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text(KEY + "\n")
    path.chmod(0o644)
    with serving(tmp_path / "log", "--auth-token-file", str(path), key=None) as server:
        assert server.get("/is_alive").json()["is_alive"] is True
        assert "open to others than its owner" in server.said() and KEY not in server.said()


def test_the_key_is_out_of_sight(tmp_path: Path) -> None:
    variable = {"SWEREX_AUTH_TOKEN": KEY}
    for arguments, env in ((["--auth-token", KEY], {}), ([f"--auth-token={KEY}"], {}), ([], variable)):
        with serving(tmp_path / "log", *arguments, key=None, **env) as server:
            shown = arguments_of(server.process.pid) + environment_of(server.process.pid)
            assert KEY.encode() not in shown
            assert server.get("/is_alive").status_code == 200
            ran = server.post("/execute", command="env; tr '\\0' '\\n' < /proc/$PPID/environ", shell=True)
            assert ran.status_code == 200 and "PATH=" in ran.json()["stdout"]
            assert KEY not in ran.json()["stdout"] and KEY not in server.said()


def test_hiding_a_key_leaves_the_rest_as_it_is(tmp_path: Path) -> None:
    """A key that also occurs elsewhere, such as one letter."""
    with serving(tmp_path / "log", key="e", HERE="e", THERE="see e") as server:
        server.client.headers["X-API-Key"] = "e"
        said = server.post("/execute", command="echo $HERE,$THERE; ls /proc/self", shell=True).json()["stdout"]
        assert said.startswith("e,see e\n") and "environ" in said


@pytest.mark.parametrize(("key", "status"), [(None, 403), ("wrong", 401)])
def test_without_the_key_nothing_is_done(tmp_path: Path, key: str | None, status: int) -> None:
    with serving(tmp_path / "log") as server:
        server.client.headers["X-API-Key"] = key  # type: ignore[assignment]
        target = tmp_path / "made"
        answer = server.post("/execute", command=f"touch {target}", shell=True)
        assert answer.status_code in (401, 403) and not target.exists()
        with socket.create_connection(("127.0.0.1", server.port)) as wire:
            wire.sendall(upgrade(key=key))
            assert wire.recv(65536).startswith(b"HTTP/1.1 %d " % status)


# Where it listens


def test_it_says_where_it_listens(tmp_path: Path) -> None:
    with serving(tmp_path / "log", "--port", "0") as server:
        assert server.url.startswith("http://0.0.0.0:")  # as the original's callers need it
        assert server.port > 0 and server.said().count("Listening on") == 1


def test_the_front_listens_here_only_and_makes_a_key(tmp_path: Path) -> None:
    with serving(tmp_path / "log", "--port", "0", command=FRONT, key=None) as server:
        assert server.url.startswith("http://127.0.0.1:")
        assert server.process.stdout is not None
        said = b""
        while b"RemoteRuntime(host=" not in said:
            said += os.read(server.process.stdout.fileno(), 65536)
        line = next(line for line in said.decode().splitlines() if "RemoteRuntime(host=" in line)
        made = line.split('auth_token="')[1].split('"')[0]
        arguments = f'host="http://127.0.0.1", port={server.port}, auth_token="{made}"'
        assert line.strip() == f"runtime = RemoteRuntime({arguments})"
        assert made not in server.said()
        server.client.headers["X-API-Key"] = made
        assert server.get("/is_alive").status_code == 200


def test_the_front_names_its_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with serving(tmp_path / "log", "--unix", str(path), command=FRONT, key=None) as server:
        assert server.process.stdout is not None
        said = b""
        while b"RemoteRuntime(host=" not in said:
            said += os.read(server.process.stdout.fileno(), 65536)
        made = said.decode().split('auth_token="')[1].split('"')[0]
        assert f'    runtime = RemoteRuntime(host="unix://{path}", auth_token="{made}")\n' in said.decode()
        assert talk(path, upgrade(key=made)).startswith(b"HTTP/1.1 101 ")


def test_the_front_takes_a_key(tmp_path: Path) -> None:
    with serving(tmp_path / "log", "--port", "0", command=FRONT) as server:
        assert server.get("/is_alive").status_code == 200
        assert server.terminate() == 0
        assert server.process.stdout is not None and server.process.stdout.read() == b""


# TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    if shutil.which("openssl") is None:
        pytest.skip("the machine lacks openssl")
    place = tmp_path_factory.mktemp("tls")
    cert, key = place / "cert.pem", place / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
         "-keyout", key, "-out", cert],
        check=True, capture_output=True,
    )  # fmt: skip
    return cert, key


def test_tls_serves_http_and_frames(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    cert, key = certificate
    arguments = ("--tls-cert", str(cert), "--tls-key", str(key), "--max-head-seconds", "1")
    with serving(tmp_path / "log", *arguments) as server:
        assert server.url.startswith("https://127.0.0.1:")
        assert server.get("/is_alive", verify=str(cert)).json()["is_alive"] is True
        context = ssl.create_default_context(cafile=str(cert))
        with (
            socket.create_connection(("127.0.0.1", server.port)) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as wire,
        ):
            wire.sendall(upgrade())
            assert wire.recv(65536).startswith(b"HTTP/1.1 101 ")
        with socket.create_connection(("127.0.0.1", server.port)) as silent:
            silent.settimeout(10)
            assert silent.recv(100) == b""  # no handshake, no connection
        with socket.create_connection(("127.0.0.1", server.port)) as plain:
            plain.sendall(b"GET /is_alive HTTP/1.1\r\n\r\n")
            plain.settimeout(10)
            with contextlib.suppress(ConnectionError):
                assert b"200" not in plain.recv(100)
        assert server.get("/is_alive", verify=str(cert)).status_code == 200
        assert server.terminate() == 0


def test_certificates_that_do_not_work_are_named(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    cert, key = certificate
    for arguments, says in (
        (["--tls-cert", "/no/such.pem"], "The TLS file /no/such.pem cannot be read: No such file or directory"),
        (["--tls-cert", str(cert), "--tls-key", "/no/key"], "The TLS file /no/key cannot be read"),
        (["--tls-cert", str(cert)], f"No TLS certificate with its key (without a passphrase) is in {cert}"),
        (["--tls-cert", str(key), "--tls-key", str(key)], "No TLS certificate with its key"),
    ):
        done = ended("--auth-token", "a", "--port", "0", *arguments)
        assert (done.stdout, done.returncode) == ("", 1)
        assert says in done.stderr and done.stderr.count("\n") == 1


# The unix socket


def talk(path: Path, data: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX) as wire:
        wire.settimeout(DEADLINE)
        wire.connect(str(path))
        wire.sendall(data)
        return wire.recv(65536)


def test_a_unix_socket_serves_the_same(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with serving(tmp_path / "log", "--unix", str(path)) as server:
        assert server.url == f"unix://{path}"
        mode = path.stat().st_mode
        assert stat.S_ISSOCK(mode) and stat.S_IMODE(mode) == 0o600
        head = f"GET /is_alive HTTP/1.1\r\nHost: x\r\nX-API-Key: {KEY}\r\n\r\n"
        assert talk(path, head.encode()).startswith(b"HTTP/1.1 200 ")
        assert talk(path, upgrade()).startswith(b"HTTP/1.1 101 ")
        assert talk(path, upgrade(key="wrong")).startswith(b"HTTP/1.1 401 ")

        done = ended("--auth-token", "a", "--unix", str(path))
        assert (done.stdout, done.returncode) == ("", 1)
        assert done.stderr == f"swerex-remote: Cannot listen on the unix socket {path}: another server does\n"
        assert talk(path, upgrade()).startswith(b"HTTP/1.1 101 ")
        assert server.terminate() == 0
    assert not path.exists()


def test_a_unix_socket_and_a_port(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with serving(tmp_path / "log", "--unix", str(path), "--port", "0", "--host", "127.0.0.1") as server:
        assert server.get("/is_alive").status_code == 200
        assert f"and unix://{path}" in server.said()
        assert talk(path, upgrade()).startswith(b"HTTP/1.1 101 ")


def test_a_dead_servers_socket_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with serving(tmp_path / "log", "--unix", str(path)) as server:
        server.process.kill()
        server.process.wait()
    assert path.exists()
    with serving(tmp_path / "log", "--unix", str(path)):
        assert talk(path, upgrade()).startswith(b"HTTP/1.1 101 ")


def test_what_is_no_socket_stays(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("precious")
    with pytest.raises(ResourceError, match="something else is there already"):
        Listeners(ServeOptions(host=None, unix=str(path)))
    assert path.read_text() == "precious"
    for wrong, says in ((tmp_path / "no" / "socket", "No such file"), (tmp_path / ("x" * 200), "the path is too long")):
        with pytest.raises(ResourceError, match=says):
            Listeners(ServeOptions(host=None, unix=str(wrong)))
    with pytest.raises(InvalidInputError):
        Listeners(ServeOptions(host=None))


def test_another_servers_socket_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    old = Listeners(ServeOptions(host=None, unix=str(path)))
    path.unlink()
    new = Listeners(ServeOptions(host=None, unix=str(path)))
    old.close()
    assert path.exists()
    new.close()
    assert not path.exists()


# Strangers on the port of a real server


@pytest.mark.idle
def test_a_hundred_idle_connections_cost_nothing(tmp_path: Path) -> None:
    with serving(tmp_path / "log") as server, contextlib.ExitStack() as stack:
        server.get("/is_alive")
        files = open_files(server.process.pid)
        for number in range(100):
            wire = stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            wire.sendall((b"", b"GET /is", b"GET /is_alive HTTP/1.1\r\n", upgrade())[number % 4])
        until(lambda: open_files(server.process.pid) == files + 100)
        assert server.get("/is_alive").status_code == 200
        before = _cpu_seconds(server.process.pid)
        time.sleep(1)
        assert _cpu_seconds(server.process.pid) - before <= 0.02
        stack.close()
        until(lambda: open_files(server.process.pid) <= files)


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_noise_on_the_port_is_not_logged(tmp_path: Path) -> None:
    with serving(tmp_path / "log") as server:
        before = server.said()
        noise, zeros = os.urandom(3000), bytes(70_000)
        for data in (noise, b"GET " + noise + b"\r\n\r\n", zeros, b"GET " + zeros):
            with socket.create_connection(("127.0.0.1", server.port)) as wire, contextlib.suppress(ConnectionError):
                wire.sendall(data)
                wire.recv(1000)
        assert server.get("/is_alive").status_code == 200
        assert server.said() == before


@pytest.mark.idle
def test_it_is_alive_while_a_hundred_sessions_run(tmp_path: Path, family: Family) -> None:
    with serving(tmp_path / "log") as server:

        def work(number: int) -> None:
            client = Server(server.process, server.log)
            client.url = server.url
            name = f"s{number}"
            assert client.post("/create_session", session_type="bash", session=name).status_code == 200
            begun.release()
            command = {"command": "for i in {1..4}; do sleep 0.5; echo $i; done", "session": name}
            answers.append(client.post("/run_in_session", action_type="bash", **command).json().get("output"))
            client.client.close()

        begun, answers = threading.Semaphore(0), list[Any]()
        threads = [threading.Thread(target=work, args=(number,)) for number in range(100)]
        for thread in threads:
            thread.start()
        for _ in threads:
            assert begun.acquire(timeout=60)
        times = []
        while len(times) < 100 and any(thread.is_alive() for thread in threads):
            began = time.perf_counter()
            assert server.get("/is_alive").status_code == 200
            times.append(time.perf_counter() - began)
        for thread in threads:
            thread.join(60)
        assert answers == ["1\n2\n3\n4\n"] * 100
        times.sort()  # in a process that has a hundred other threads, on a machine with other work
        assert len(times) >= 20 and times[len(times) // 2] < 0.01, times


async def test_of_many_programs_one_is_started_in_a_turn_of_the_loop() -> None:
    """Or else a hundred that are started at once would keep everybody from the loop for their sum of milliseconds."""
    turn, started = 0, list[int]()

    class Runtime:
        async def execute(self, request: Any) -> Any:
            started.append(turn)
            return CommandResponse()

    async def count_turns() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    service = Service(SimpleNamespace(runtime=Runtime(), AUTH_TOKEN=""))  # type: ignore[arg-type]
    counting = asyncio.create_task(count_turns())
    await asyncio.gather(*(service.call("execute", Command(command="x")) for _ in range(20)))
    counting.cancel()
    assert len(started) == 20 == len(set(started))


# The end


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_everything_and_answers(tmp_path: Path, family: Family, number: signal.Signals) -> None:
    with serving(tmp_path / "log") as server:
        assert server.post("/create_session", session_type="bash").status_code == 200
        left = "nohup sleep 1001 >/dev/null 2>&1 & setsid sleep 1002 & (trap '' TERM HUP INT; sleep 1003) & sleep 1004"
        in_session = Background(lambda: server.post("/run_in_session", action_type="bash", command=left))
        executed = Background(lambda: _other(server).post("/execute", command="sleep 1005", shell=True))
        until(lambda: len([c for c in family.living().values() if "sleep 100" in c]) >= 5)
        idle = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(3)]
        idle[1].sendall(b"GET /is_al")
        idle[2].sendall(upgrade())
        assert server.terminate(number=number) == 0
        assert not family.left()
        for request in (in_session, executed):
            request.join(DEADLINE)
            assert request.answer.status_code == 511, request.answer
            assert request.answer.json()["swerexception"]["class_path"].endswith("RuntimeClosedError")
        for wire in idle:
            wire.close()
        assert "Traceback" not in server.said()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", server.port))


def _other(server: Server) -> Server:
    other = Server(server.process, server.log)
    other.url = server.url
    return other


def test_clients_that_do_not_read_cannot_keep_it(tmp_path: Path, family: Family) -> None:
    with serving(tmp_path / "log", "--graceful", "2") as server:
        body = json.dumps({"command": "head -c 50000000 /dev/zero | tr '\\0' x", "shell": True}).encode()
        with socket.create_connection(("127.0.0.1", server.port)) as wire:
            wire.sendall(
                f"POST /execute HTTP/1.1\r\nHost: x\r\nX-API-Key: {KEY}\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(body)}\r\n\r\n".encode()
                + body
            )
            assert wire.recv(10)  # and never again
            assert server.terminate() == 0


HANGING = """if True:
    import asyncio, os
    from swerex_c.runtime.local import LocalRuntime
    async def read_file(self, request):
        await asyncio.to_thread(os.read, os.pipe()[0], 1)
    LocalRuntime.read_file = read_file
    """
"""Makes a server whose `read_file` hangs in a thread."""


def hanging(server: Server) -> Background:
    threads = threads_of(server.process.pid)
    reading = Background(lambda: server.post("/read_file", path="x"))
    until(lambda: threads_of(server.process.pid) > threads)
    return reading


def test_a_thread_that_hangs_cannot_keep_it(tmp_path: Path) -> None:
    """But it is a failure."""
    command = [*REMOTE[:-1], HANGING + REMOTE[-1]]
    with serving(tmp_path / "log", "--graceful", "1.5", command=command) as server:
        reading = hanging(server)
        began = time.monotonic()
        assert server.terminate() == 1
        assert 1.0 < time.monotonic() - began
        reading.join(DEADLINE)
        assert isinstance(reading.answer, requests.ConnectionError)


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    command = [*REMOTE[:-1], HANGING + REMOTE[-1]]
    with serving(tmp_path / "log", "--graceful", "600", command=command) as server:
        hanging(server)
        server.process.terminate()
        until(lambda: not _alive(server), "the first signal is not noticed")
        with pytest.raises(subprocess.TimeoutExpired):
            server.process.wait(0.5)
        assert server.terminate() == -signal.SIGTERM


def test_the_servers_module_is_the_command_too(tmp_path: Path) -> None:
    module = [sys.executable, "-m", "swerex_c.server"]
    assert ended("--version", command=module).stdout == "1.4.0\n"
    with serving(tmp_path / "log", command=module) as server:
        assert server.get("/is_alive").status_code == 200
        assert server.post("/create_session", session_type="bash").status_code == 200
        assert server.terminate() == 0


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_both_event_loops_serve_the_same(tmp_path: Path, loop: str) -> None:
    if loop == "uvloop":
        pytest.importorskip("uvloop", reason="uvloop is not installed")
    path = tmp_path / "socket"
    places = ("--loop", loop, "--port", "0", "--host", "127.0.0.1", "--unix", str(path))
    with serving(tmp_path / "log", *places) as server:
        assert server.post("/execute", command="echo hi", shell=True).json()["stdout"] == "hi\n"
        hello = encode([HELLO, VERSION, bytes(16), False])
        for wire in (socket.create_connection(("127.0.0.1", server.port)), socket.socket(socket.AF_UNIX)):
            with wire:
                if wire.family == socket.AF_UNIX:
                    wire.connect(str(path))
                wire.settimeout(DEADLINE)
                wire.sendall(upgrade() + hello)
                said = b""
                while not said.partition(b"\r\n\r\n")[2]:
                    said += wire.recv(65536)
                assert new_decoder().feed(said.partition(b"\r\n\r\n")[2])[0][:2] == [HELLO, VERSION]
        assert server.terminate() == 0


def test_what_a_server_runs_out_of_comes_back(tmp_path: Path) -> None:
    """Descriptors: the connections beyond them wait or are cut off, and the server lives on."""
    few = ["bash", "-c", 'ulimit -n 64; exec "$@"', "bash", *REMOTE]
    with serving(tmp_path / "log", command=few) as server, contextlib.ExitStack() as stack:
        wires = [stack.enter_context(socket.create_connection(("127.0.0.1", server.port))) for _ in range(100)]
        for wire in wires:
            with contextlib.suppress(ConnectionError):
                wire.sendall(b"GET /")
        assert select.select(wires, [], [], DEADLINE)[0], "none was cut off"
        assert server.process.poll() is None
        stack.close()
        until(lambda: _alive(server))


def _alive(server: Server) -> bool:
    try:
        return server.get("/is_alive").status_code == 200
    except requests.ConnectionError:
        return False


def test_nohup_is_respected(tmp_path: Path) -> None:
    if shutil.which("nohup") is None:
        pytest.skip("the machine lacks nohup")
    with serving(tmp_path / "log", command=["nohup", *REMOTE]) as server:
        server.process.send_signal(signal.SIGHUP)
        assert server.get("/is_alive").status_code == 200


# Standard input and output


@contextlib.contextmanager
def over_stdio(log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with open(log, "wb") as file:
        process = subprocess.Popen(
            [*REMOTE, "--stdio", "--log-level", "debug"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file,
            bufsize=0, env=environment(SWEREX_AUTH_TOKEN=KEY),
        )  # fmt: skip
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            assert stream is not None
            with contextlib.suppress(OSError):
                stream.close()


def test_frames_over_standard_input_and_output(tmp_path: Path, family: Family) -> None:
    with over_stdio(tmp_path / "log") as process:
        client = Frames(process)
        client.request(1, "execute", command="echo out; echo err >&2; cat; env; ls -l /proc/$PPID/fd/[012]", shell=True)
        answer = client.receive(RESULT)[2]
        assert answer["exit_code"] == 0 and answer["stderr"] == "err\n"
        assert answer["stdout"].startswith("out\n") and KEY not in answer["stdout"]
        places = {line.split()[-3][-1]: line.split()[-1] for line in answer["stdout"].splitlines() if "/fd/" in line}
        assert places == {"0": "/dev/null", "1": str(tmp_path / "log"), "2": str(tmp_path / "log")}


def test_the_end_of_standard_input_is_the_end(tmp_path: Path, family: Family) -> None:
    with over_stdio(tmp_path / "log") as process:
        client = Frames(process)
        client.request(1, "create_session", session_type="bash")
        client.receive(RESULT)
        client.request(
            2, "run_in_session", action_type="bash", command="nohup setsid sleep 1001 >/dev/null 2>&1 & sleep 1002"
        )
        client.request(3, "execute", command="sleep 1003", shell=True)
        until(lambda: len([c for c in family.living().values() if "sleep 100" in c]) >= 3)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(DEADLINE) == 0
        assert not family.left()
        assert "Traceback" not in (tmp_path / "log").read_text()


def test_a_signal_ends_standard_input_and_output_too(tmp_path: Path, family: Family) -> None:
    with over_stdio(tmp_path / "log") as process:
        client = Frames(process)
        client.request(1, "execute", command="sleep 1001", shell=True)
        until(lambda: any("sleep 1001" in c for c in family.living().values()))
        process.terminate()
        assert client.receive(ERROR)[2]["class_path"].endswith("RuntimeClosedError")
        client.receive(GOODBYE)
        assert process.wait(DEADLINE) == 0
        assert not family.left()
