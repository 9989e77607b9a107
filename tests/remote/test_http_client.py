"""The client of HTTP/JSON: connections, retries, errors and files."""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest

from swerex_c.exceptions import (
    AuthenticationError,
    ConnectionLostError,
    InvalidInputError,
    ProtocolError,
    ServerLimitError,
    SwerexException,
)
from swerex_c.remote.client import base, http
from swerex_c.remote.client.http import HttpClient
from swerex_c.remote.wire import file_transfer
from swerex_c.runtime.abstract import Command, CommandResponse, ReadFileRequest, ReadFileResponse
from swerex_c.runtime.remote import RemoteRuntime
from swerex_c.utils import background
from swerex_c.utils.free_port import find_free_port
from tests.support.frames_tools import Proxy
from tests.support.raw_http import read_request, serving
from tests.support.server_process import KEY, Server
from tests.support.wait import DEADLINE, settle, until_async

HEADERS = {"X-API-Key": KEY}


@pytest.fixture
def client(our_server: Server) -> HttpClient:
    return HttpClient(our_server.url, HEADERS)


async def execute(client: HttpClient, command: str) -> CommandResponse:
    return await client.call("execute", Command(command=command, shell=True), CommandResponse)


# Connections


class Own(RemoteRuntime):
    """A subclass that does without our constructor and configuration, as there are some."""

    def __init__(self, **fields: Any):
        self._config: Any = SimpleNamespace(timeout=DEADLINE, **fields)
        self.logger = logging.getLogger("own")


@pytest.mark.parametrize("kind", [RemoteRuntime, Own])
@pytest.mark.parametrize("wire", ["auto", "json"])
async def test_the_key_and_the_address_may_change(our_server: Server, kind: Any, wire: str) -> None:
    runtime = kind(auth_token="wrong", host="http://127.0.0.1", port=our_server.port, wire=wire)
    with pytest.raises(AuthenticationError):
        await runtime.execute(Command(command="true"))
    runtime._config.auth_token = KEY
    assert (await runtime.execute(Command(command="true"))).exit_code == 0
    runtime._config.port = find_free_port()
    assert not await runtime.is_alive(timeout=0.1)


async def test_proxies_of_the_environment_are_for_other_machines(
    our_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bytes] = []

    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.extend((await reader.readuntil(b"\r\n\r\n")).splitlines())
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 30\r\n\r\n" + b'{"is_alive":true,"message":""}')
        await writer.drain()
        writer.close()

    async with serving(proxy) as served:
        url = served.replace("//", "//user:secret@")
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.setenv("http_proxy", url)
        far, near = HttpClient("http://far.invalid/prefix"), HttpClient(our_server.url, HEADERS)
        assert await far.is_alive(5)
        assert await near.is_alive(5)
        assert base.http_proxy(far.address) == url  # and then speaks no frames
        assert base.http_proxy(near.address) is None
    assert seen[0] == b"GET http://far.invalid/prefix/is_alive HTTP/1.1"
    assert b"Proxy-Authorization: Basic dXNlcjpzZWNyZXQ=" in seen


# Errors


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        (401, b'{"detail": "Invalid API Key"}', AuthenticationError),
        (403, b'{"detail": "Not authenticated"}', AuthenticationError),
        (413, b'{"detail": "large"}', ServerLimitError),
        (429, b'{"detail": "often"}', ServerLimitError),
        (422, b'{"detail": []}', InvalidInputError),
        (404, b'{"detail": "Not Found"}', ProtocolError),
        (500, b"Internal Server Error", ProtocolError),
        (502, b"<html>Bad gateway</html>", ProtocolError),
        (302, b"", ProtocolError),
        (204, b"", ProtocolError),
        (511, b"{}", ProtocolError),
        (511, b"[]", ProtocolError),
        (511, b'{"swerexception": 3}', ProtocolError),
        (511, b'{"swerexception": {"class_path": "os.system", "message": "x"}}', SwerexException),
        (511, b'{"swerexception": {"class_path": "builtins.ValueError", "message": "x"}}', ValueError),
        (511, b'{"swerexception": {"class_path": "builtins.TimeoutError", "message": "x"}}', TimeoutError),
        (200, b"not json", ProtocolError),
        (200, b"[]", ProtocolError),
        (200, b"null", ProtocolError),
        (200, b'{"exit_code": "text"}', ProtocolError),
        (200, b"[" * 100_000, ProtocolError),
    ],
)
async def test_every_answer_is_a_result_or_one_of_our_errors(
    tmp_path: Path, status: int, body: bytes, error: type[Exception]
) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await read_request(reader)
            writer.write(
                b"HTTP/1.1 %d X\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % (status, len(body)) + body
            )
            await writer.drain()
        writer.close()

    async with serving(handle) as url:
        client = HttpClient(url, HEADERS)
        with pytest.raises(error) as caught:
            await execute(client, "true")
        assert len(str(caught.value)) < 5000
        if status == 511:
            with pytest.raises(error):
                await client.download("/etc/x", str(tmp_path / "to"))
        else:
            with pytest.raises(error):
                await client.is_alive(5)


NO_ADDRESS = (InvalidInputError, ConnectionLostError)
NO_KEY = (InvalidInputError, AuthenticationError)


@pytest.mark.parametrize(
    ("url", "key", "error"),
    [
        *((url, KEY, ConnectionLostError) for url in ("http://127.0.0.1:1", "https://127.0.0.1:1", "http://[::1]:1")),
        ("http://no.such.host.invalid", KEY, ConnectionLostError),
        *((url, KEY, NO_ADDRESS) for url in ("", "nonsense", "http://", "http://a b", "ftp://x", "http://127.0.0.1:99999")),
        ("ours", "wrong", AuthenticationError),
        *(("ours", key, NO_KEY) for key in ("a\r\nX: y", "a\nb", "\udcff")),
    ],
)  # fmt: skip
async def test_errors_for_addresses_and_keys(our_server: Server, url: str, key: str, error: Any) -> None:
    client = HttpClient(our_server.url if url == "ours" else url, {"X-API-Key": key})
    match = {ConnectionLostError: "cannot be reached", AuthenticationError: "401"}.get(error)
    for answer in (execute(client, "true"), client.is_alive(5)):
        with pytest.raises(error, match=match):
            await answer


# Once


@contextlib.asynccontextmanager
async def through(proxy: Proxy) -> AsyncIterator[HttpClient]:
    """Give a client that has identified its server and has no open connection."""
    async with proxy:
        client = HttpClient(f"http://127.0.0.1:{proxy.port}", HEADERS)
        await client.is_alive(5)
        await background.run(http._close())
        proxy.connections = 0
        yield client


@pytest.mark.parametrize(("end", "after"), [("up", n) for n in (0, 1, 30, 300)] + [("down", n) for n in (1, 30, 150)])
async def test_a_cut_connection_runs_nothing_twice(our_server: Server, tmp_path: Path, end: str, after: int) -> None:
    proxy = Proxy(our_server.port)
    async with through(proxy) as client:
        setattr(proxy, f"cut_{end}", after)
        answer = await execute(client, f"echo run >> {tmp_path}/runs; echo done {'x' * 100}")
        assert answer.stdout.startswith("done")
        assert proxy.connections == 2
        assert (tmp_path / "runs").read_text() == "run\n"


async def test_an_originals_server_gets_nothing_twice(original_server: Server, tmp_path: Path) -> None:
    proxy = Proxy(original_server.port)
    (tmp_path / "file").write_text("text")
    async with through(proxy) as client:
        proxy.cut_down = 1
        with pytest.raises(ConnectionLostError, match="did not answer"):
            await execute(client, f"echo run >> {tmp_path}/runs")
        assert proxy.connections == 1 and (tmp_path / "runs").read_text() == "run\n"
        # What changes nothing is asked again.
        proxy.cut_down, proxy.connections, proxy.up = 1, 0, 0
        read = ReadFileRequest(path=str(tmp_path / "file"))
        assert (await client.call("read_file", read, ReadFileResponse)).content == "text"
        assert proxy.connections == 2
        # The server refuses what it got half of, and repeats a refusal to whom asks again by the same id.
        proxy.cut_up, proxy.gently, proxy.connections = proxy.up // 2 - 1, True, 0
        assert (await client.call("read_file", read, ReadFileResponse)).content == "text"
        assert proxy.connections == 2


async def test_an_unsent_request_is_sent_again(
    our_server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The server starts later than the request."""
    caplog.set_level(logging.DEBUG, "swerex_c.client")
    port = find_free_port()
    client = HttpClient(f"http://127.0.0.1:{port}", HEADERS)
    waiting = asyncio.create_task(execute(client, f"echo run >> {tmp_path}/runs"))
    await until_async(lambda: "trying again" in caplog.text)
    async with Proxy(our_server.port, port):
        assert (await waiting).exit_code == 0
        assert (tmp_path / "runs").read_text() == "run\n"


# Files


@pytest.mark.parametrize("error", [ValueError, TimeoutError, OSError, aiohttp.ClientError])
async def test_local_errors_of_a_copy_are_raised_unchanged(
    client: HttpClient, tmp_path: Path, error: type[Exception]
) -> None:
    """An error in the middle of a copy is raised as it is, not as the connection's."""
    (tmp_path / "f").write_bytes(b"x" * 2_000_000)
    odd = error("odd")

    def progress(done: int, of: int | None) -> None:
        raise odd

    for copy in (client.upload, client.download):
        with pytest.raises(error, match="odd") as caught:
            await copy(str(tmp_path / "f"), str(tmp_path / "g"), progress)
        assert caught.value is odd
    await until_async(lambda: os.listdir(tmp_path) == ["f"])  # the server notices that the upload has ended


async def test_a_connection_that_breaks_while_a_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reading, go_on, gone = threading.Event(), threading.Event(), asyncio.Event()

    class Slow(io.FileIO):
        def read(self, size: int | None = -1) -> bytes:
            if self.tell():  # the beginning is read before the request is made
                reading.set()
                go_on.wait(DEADLINE)
            return super().read(size)

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if b"/is_alive" in await reader.readuntil(b"\r\n\r\n"):
            writer.write(b"HTTP/1.1 200 OK\r\nX-Swerex-Server: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        else:
            await asyncio.to_thread(reading.wait, DEADLINE)
            gone.set()
        writer.close()

    monkeypatch.setattr(file_transfer, "open_regular", Slow)
    (tmp_path / "f").write_bytes(b"x" * 2_000_000)
    async with serving(hang_up) as url:
        client = HttpClient(url, HEADERS)
        uploading = asyncio.create_task(client.upload(str(tmp_path / "f"), "/x"))
        await gone.wait()
        await settle()  # so that the client may notice before the piece is read
        go_on.set()
        with pytest.raises(ConnectionLostError):
            await uploading


async def test_an_upload_to_a_server_that_goes_away(our_server: Server, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x" * 3_000_000)
    proxy = Proxy(our_server.port)
    async with through(proxy) as client:
        proxy.cut_up = 500_000
        with pytest.raises(ConnectionLostError):
            await client.upload(str(tmp_path / "f"), str(tmp_path / "g"))
        proxy.cut_down = 200_000
        with pytest.raises(ConnectionLostError):
            await client.download(str(tmp_path / "f"), str(tmp_path / "h"))
    await until_async(lambda: os.listdir(tmp_path) == ["f"])
