"""What a client does when the other end is gone, is odd for a while, or says more than it should."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import itertools
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from swerex_c.deployment.remote import RemoteDeployment
from swerex_c.exceptions import DeploymentNotStartedError, ResourceError
from swerex_c.remote.client.http import JsonClient
from swerex_c.runtime.abstract import BashAction, CreateBashSessionRequest, ReadFileRequest, ReadFileResponse
from swerex_c.runtime.remote import RemoteRuntime
from tests.support import raw_http
from tests.support.server_process import KEY, Server, serving
from tests.support.wait import DEADLINE

LIMIT = 100_000


async def test_a_deployment_stops_when_its_server_is_gone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("test-bounds")
    with serving(tmp_path / "log") as server:
        deployment = RemoteDeployment(auth_token=KEY, host=server.url, timeout=10, logger=logger)
        await deployment.start()
        await deployment.runtime.create_session(CreateBashSessionRequest())
        assert deployment.runtime._wire_client is not None
        deployment.runtime._wire_client._shared._reconnect_seconds = 0.2
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


NOT_FOUND = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"


@contextlib.asynccontextmanager
async def front(server: Server) -> AsyncIterator[tuple[Any, RemoteRuntime]]:
    """What stands before a server, passes everything on, and can have nothing there itself; and a runtime to that."""
    before = SimpleNamespace(url="", has_frames=True, has_http=True, wishes=0)  # how often it was asked for frames

    async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while data := await source.read(1 << 16):
            target.write(data)
            await target.drain()
        target.close()

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(OSError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            wish = b"/wire HTTP" in head
            before.wishes += wish
            if not (before.has_frames if wish else before.has_http):
                writer.write(NOT_FOUND)
                await writer.drain()
                return
            there, back = await asyncio.open_connection("127.0.0.1", server.port)
            with contextlib.closing(back):
                back.write(head)
                await asyncio.gather(copy(reader, back), copy(there, writer))

    async with raw_http.serving(pass_on) as before.url:
        yield before, RemoteRuntime(auth_token=KEY, host=before.url, timeout=10)


async def test_frames_are_given_up_when_http_is_answered(swerex_remote: Server) -> None:
    async with front(swerex_remote) as (before, runtime):
        before.has_frames = before.has_http = False
        assert not (await runtime.is_alive()).is_alive
        before.has_http = True
        assert all(answer.is_alive for answer in await asyncio.gather(*(runtime.is_alive() for _ in range(20))))
        wishes = before.wishes
        assert (await runtime.is_alive()).is_alive
        assert before.wishes == wishes, "they are not asked for with each request"


async def test_frames_that_were_not_there_at_first_are_used(swerex_remote: Server) -> None:
    async with front(swerex_remote) as (before, runtime):
        before.has_frames = before.has_http = False
        assert not (await runtime.is_alive()).is_alive
        before.has_frames = True
        assert (await runtime.is_alive()).is_alive
        assert runtime._wire_client is not None
        assert runtime._wire_client._shared.instance_id


async def test_json_that_was_asked_for_stays(swerex_remote: Server) -> None:
    async with front(swerex_remote) as (before, _):
        runtime = RemoteRuntime(auth_token=KEY, host=before.url, timeout=10, wire="json")
        assert (await runtime.is_alive()).is_alive
        assert before.wishes == 0


@pytest.mark.parametrize("wire", ["msgpack", "json"])
async def test_an_answer_that_is_too_long(swerex_remote: Server, tmp_path: Path, wire: str) -> None:
    """Nothing of it is given, and the runtime goes on."""
    (tmp_path / "short").write_text("x" * (LIMIT * 9 // 10))
    (tmp_path / "long").write_text("x" * LIMIT * 50)
    runtime = RemoteRuntime(auth_token=KEY, host=swerex_remote.url, timeout=10, wire=wire, answer_limit=LIMIT)
    for _ in range(3):
        with pytest.raises(ResourceError, match=f"read_file is longer than the {LIMIT} bytes"):
            await runtime.read_file(ReadFileRequest(path=str(tmp_path / "long")))
        answer = await runtime.read_file(ReadFileRequest(path=str(tmp_path / "short")))
        assert len(answer.content) == LIMIT * 9 // 10


async def test_a_stream_may_be_longer_than_an_answer(swerex_remote: Server) -> None:
    """It is only at its end that there is no answer: what came, came."""
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
    """Whether it says so or not; of what is compressed it is the length after that counts."""
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
        client = JsonClient(url, answer_limit=LIMIT)
        with pytest.raises(ResourceError, match="is longer than"):
            await asyncio.wait_for(client.call("read_file", ReadFileRequest(path="x"), ReadFileResponse), DEADLINE)
        await asyncio.wait_for(ended.wait(), DEADLINE)
