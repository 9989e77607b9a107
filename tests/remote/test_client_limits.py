"""Clients whose server is gone, changes, or sends too much."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import itertools
import logging
from pathlib import Path

import pytest

from swerex_c.deployment.remote import RemoteDeployment
from swerex_c.exceptions import DeploymentNotStartedError, ResourceError
from swerex_c.remote.client.http import HttpClient
from swerex_c.runtime.abstract import BashAction, CreateBashSessionRequest, ReadFileRequest, ReadFileResponse
from swerex_c.runtime.remote import RemoteRuntime
from tests.support import raw_http
from tests.support.frames_tools import Proxy
from tests.support.server_process import KEY, Server, serving
from tests.support.wait import DEADLINE

LIMIT = 100_000


async def test_a_deployment_stops_when_its_server_is_gone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("test-bounds")
    with serving(tmp_path / "log") as server:
        deployment = RemoteDeployment(auth_token=KEY, host=server.url, timeout=10, logger=logger)
        await deployment.start()
        await deployment.runtime.create_session(CreateBashSessionRequest())
        shared = deployment.runtime._frames._shared
        assert shared is not None
        shared._reconnect_seconds = 0.2
    with caplog.at_level(logging.WARNING):
        await deployment.stop()
    assert "Cannot close the server's sessions" in caplog.text
    with pytest.raises(DeploymentNotStartedError):
        _ = deployment.runtime
    await deployment.stop()


async def test_a_deployment_stops_when_its_key_is_refused(swerex_remote: Server) -> None:
    deployment = RemoteDeployment(auth_token="another", host="http://127.0.0.1", port=swerex_remote.port, timeout=10)
    await deployment.start()
    await deployment.stop()


async def not_found(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.closing(writer), contextlib.suppress(OSError, asyncio.IncompleteReadError):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()


@pytest.mark.parametrize("has_frames", [False, True])
async def test_frames_are_given_up_when_http_is_answered(
    our_server: Server, swerex_remote: Server, has_frames: bool
) -> None:
    """Frames are used if they become available before the first answer over HTTP, and not after it."""
    async with raw_http.serving(not_found) as nowhere, Proxy(int(nowhere.rpartition(":")[2])) as proxy:
        runtime = RemoteRuntime(auth_token=KEY, host="http://127.0.0.1", port=proxy.port, timeout=DEADLINE)
        assert not (await runtime.is_alive()).is_alive
        for server in (swerex_remote if has_frames else our_server, swerex_remote):
            proxy.to = server.port
            assert all(answer.is_alive for answer in await asyncio.gather(*(runtime.is_alive() for _ in range(20))))
        shared = runtime._frames._shared
        assert shared is not None and bool(shared.instance_id) == has_frames


@pytest.mark.parametrize("wire", ["msgpack", "json"])
async def test_an_answer_that_is_too_long(swerex_remote: Server, tmp_path: Path, wire: str) -> None:
    """The response is dropped, and the runtime remains usable."""
    (tmp_path / "short").write_text("x" * (LIMIT * 9 // 10))
    (tmp_path / "long").write_text("x" * LIMIT * 50)
    runtime = RemoteRuntime(auth_token=KEY, host=swerex_remote.url, timeout=10, wire=wire, answer_limit=LIMIT)
    for _ in range(3):
        with pytest.raises(ResourceError, match=f"read_file is longer than the {LIMIT} bytes"):
            await runtime.read_file(ReadFileRequest(path=str(tmp_path / "long")))
        answer = await runtime.read_file(ReadFileRequest(path=str(tmp_path / "short")))
        assert len(answer.content) == LIMIT * 9 // 10


async def test_a_stream_may_be_longer_than_an_answer(swerex_remote: Server) -> None:
    """The error comes after the whole stream, in place of the observation."""
    runtime = RemoteRuntime(auth_token=KEY, host=swerex_remote.url, timeout=10, wire="msgpack", answer_limit=LIMIT)
    await runtime.create_session(CreateBashSessionRequest(session="long stream"))
    action = BashAction(command=f"head -c {3 * LIMIT} /dev/zero | tr '\\0' x", session="long stream", timeout=30)
    got = 0
    with pytest.raises(ResourceError, match="stream_in_session is longer"):
        async for item in runtime.stream_in_session(action):
            assert isinstance(item, str)
            got += len(item)
    assert got == 3 * LIMIT
    assert (await runtime.run_in_session(BashAction(command="echo on", session="long stream"))).output == "on\n"


PIECE = b"10000\r\n%s\r\n" % bytes(65536)
PACKED = gzip.compress(b"x" * LIMIT * 20)
LONG = {
    "length": (b"Content-Length: %d" % (LIMIT * 20), [b"x" * LIMIT * 20]),
    "endless": (b"Transfer-Encoding: chunked", itertools.repeat(PIECE)),
    "gzip": (b"Content-Encoding: gzip\r\nContent-Length: %d" % len(PACKED), [PACKED]),
}


@pytest.mark.parametrize("kind", LONG)
async def test_an_http_answer_that_is_too_long(kind: str) -> None:
    """The limit holds with and without Content-Length, and for the length after decompression."""
    header, pieces = LONG[kind]
    ended = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(OSError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\n" + header + b"\r\n\r\n")
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
        ended.set()

    async with raw_http.serving(answer) as url:
        client = HttpClient(url, answer_limit=LIMIT)
        with pytest.raises(ResourceError, match="is longer than"):
            await asyncio.wait_for(client.call("read_file", ReadFileRequest(path="x"), ReadFileResponse), DEADLINE)
        await asyncio.wait_for(ended.wait(), DEADLINE)
