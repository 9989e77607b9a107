"""Errors for servers that cannot be reached or respond wrongly."""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import math
import re
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from swerex_c.exceptions import AuthenticationError, ConnectionLostError, InvalidInputError, ProtocolError
from swerex_c.remote.wire.protocol import DATA, DOWN, RESULT
from swerex_c.runtime.abstract import BashAction, ReadFileRequest
from swerex_c.runtime.remote import RemoteRuntime
from swerex_c.utils.free_port import find_free_port
from tests.support import raw_http
from tests.support.frames_tools import keep_answering, raw_server, serving
from tests.support.server_process import KEY, REMOTE, Server
from tests.support.wait import DEADLINE


@contextlib.asynccontextmanager
async def runtime(**kwargs: Any) -> AsyncIterator[RemoteRuntime]:
    made = RemoteRuntime(**{"auth_token": KEY, **kwargs})
    try:
        yield made
    finally:
        with contextlib.suppress(Exception):
            await made.close()


async def test_the_cause_is_told_however_often_it_was_tried() -> None:
    """Later attempts are so far apart that an `is_alive` times out between two of them."""
    async with runtime(host="http://127.0.0.1", port=find_free_port()) as made:
        with pytest.raises(TimeoutError) as caught:
            await made.wait_until_alive(timeout=2.0)
    message = str(caught.value)
    assert message.count("cannot be reached: ") == 1 and "Connect call failed" in message


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (None, "https://"),  # a server that hangs up
        ("false", "the program ended without a response"),
        # It does not end before it is heard: then its end would be what is told.
        ("echo Hi; cat >/dev/null", r"sh -c echo Hi.* did not answer as `swerex-remote --stdio` does"),
    ],
)
async def test_a_peer_that_is_no_server_is_named(command: str | None, says: str) -> None:
    async with raw_http.serving(lambda _, writer: writer.close()) as url:
        where: dict[str, Any] = {"command": ["sh", "-c", command]} if command else {"host": url}
        async with runtime(**where) as made:
            answer = await made.is_alive(timeout=DEADLINE)
    assert not answer.is_alive and re.search(says, answer.message)


@pytest.mark.parametrize("wire", ["msgpack", "json"])
@pytest.mark.parametrize("key", ["another", ""])
async def test_a_key_that_is_refused_is_not_waited_for(our_server: Server, wire: str, key: str) -> None:
    made = RemoteRuntime(host=our_server.url, auth_token=key, wire=wire)
    with pytest.raises(TimeoutError, match=r"did not start within 600.*refuses the key(.|\n)*40[13]") as caught:
        await made.wait_until_alive(timeout=600.0)
    assert isinstance(caught.value, AuthenticationError)
    with pytest.raises(AuthenticationError):
        await made.close()


@pytest.mark.parametrize(
    ("key", "error"),
    [(KEY, ConnectionLostError), ("two\r\nlines: x", InvalidInputError), ("\ud800", InvalidInputError)],
)
async def test_closing_an_unreached_server_is_not_retried(key: str, error: type[Exception]) -> None:
    made = RemoteRuntime(host="http://127.0.0.1", port=find_free_port(), auth_token=key, reconnect_timeout=math.inf)
    with pytest.raises(error):
        await asyncio.wait_for(made.close(), DEADLINE)


@pytest.mark.parametrize("where", [
    {"host": "http://[::1"}, {"host": "http://[::1", "port": 1}, {"host": "http://..", "port": 1}, {"command": ["\0"]},
])  # fmt: skip
async def test_an_address_that_is_none_is_named(where: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match=r"'http://\[::1' is not the address of a server: |(:1|\\x00) cannot"):
        await RemoteRuntime(**where, auth_token=KEY).read_file(ReadFileRequest(path="x"))


@pytest.mark.parametrize("wire", ["auto", "json"])
async def test_a_timeout_may_be_infinite(our_server: Server, wire: str) -> None:
    made = RemoteRuntime(host=our_server.url, auth_token=KEY, wire=wire)
    assert await made.is_alive(timeout=math.inf)
    await made.close()


@pytest.mark.parametrize("frames", [True, False])
async def test_an_ordinary_error_prints_no_traceback(our_server: Server, frames: bool) -> None:
    printed = io.StringIO()
    logger = logging.Logger("test", logging.DEBUG)
    logger.addHandler(logging.StreamHandler(printed))
    where: dict[str, Any] = {"command": [*REMOTE, "--stdio"]} if frames else {"host": our_server.url}
    async with runtime(logger=logger, **where) as made:
        with pytest.raises(FileNotFoundError) as caught:
            await made.read_file(ReadFileRequest(path="/no/such/file"))
    assert "Traceback" not in printed.getvalue()
    assert "Traceback" in caught.value.remote_traceback  # type: ignore[attr-defined]


@contextlib.asynccontextmanager
async def answered(respond: Callable[[list[Any]], list[Any]]) -> AsyncIterator[RemoteRuntime]:
    """A runtime whose server answers each request with these frames."""
    async with raw_server(lambda peer: keep_answering(peer, respond)) as port:
        yield RemoteRuntime(host="127.0.0.1", port=port, auth_token="")


async def test_an_address_that_swallows_connections_is_not_the_only_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as served:
        with socket.socket() as full, socket.socket() as first, socket.socket() as second:
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            for one in (first, second):
                one.setblocking(False)
                one.connect_ex(full.getsockname())
            found = [
                (socket.AF_INET, socket.SOCK_STREAM, 0, "", address)
                for address in (full.getsockname(), ("127.0.0.1", served.port))
            ]
            monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **more: found)
            wire = served.client()
            assert (await wire.is_alive(9)).is_alive
            await wire.close()


async def test_is_alive_does_not_raise_because_of_an_odd_answer() -> None:
    async with answered(lambda frame: [[RESULT, frame[1], 0, {"x": 1}]]) as runtime:
        answer = await runtime.is_alive(timeout=5)
        assert not answer.is_alive and "cannot be read" in answer.message


async def test_a_stream_that_is_no_text_is_told_as_what_it_is() -> None:
    async with answered(lambda frame: [[DATA, frame[1], DOWN, 0, b"a\xff"]]) as runtime:
        with pytest.raises(ProtocolError):
            async for _ in runtime.stream_in_session(BashAction(command="x", timeout=5)):
                pass
