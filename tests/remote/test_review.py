"""Holes that were found by reading the remote layer with bad intentions."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from swerex_c.exceptions import ResultLostError, ServerLimitError
from swerex_c.remote import dial, logs
from swerex_c.remote.json_client import JsonClient
from swerex_c.remote.limits import Limits
from swerex_c.remote.once import Once
from swerex_c.remote.transfer import from_wire
from swerex_c.runtime.remote import RemoteRuntime

from . import server_process
from .conftest import Server, environment
from .frames_tools import (
    raw_client,
    request,
    serving,
)
from .raw import ask

STDIO = [sys.executable, "-c", "from swerex_c.remote.serve_cli import main; main()", "--stdio"]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[server_process.Server]:
    """A server that speaks frames and JSON."""
    with server_process.serving(tmp_path_factory.mktemp("both") / "log") as server:
        yield server


@pytest.fixture
def over_stdio(monkeypatch: pytest.MonkeyPatch) -> RemoteRuntime:
    monkeypatch.setenv("PYTHONPATH", environment()["PYTHONPATH"])
    return RemoteRuntime(command=STDIO, auth_token="")


# Event loops


# Once


@pytest.mark.parametrize("limits", [Limits(results=2), Limits(result_bytes=10)])
async def test_an_id_whose_result_is_gone_is_not_carried_out_again(limits: Limits) -> None:
    once: Once[bytes] = Once(limits, len)
    calls: list[str] = []

    def start(key: str) -> Any:
        async def work() -> bytes:
            calls.append(key)
            return b"result"

        return work

    for key in "abcd":
        await once.run(key, "x", start(key))
    with pytest.raises(ResultLostError):
        await once.run("a", "x", start("a"))
    assert calls == list("abcd")


def test_ids_that_differ_only_at_their_end(our_server: Server, tmp_path: Path) -> None:
    command = {"command": f"echo x >> {tmp_path}/ran", "shell": True}
    for i in range(2):
        answer = ask(our_server, "POST", "/execute", command, headers={"X-Request-ID": "i" * 300 + str(i)})
        assert answer.status == 200
    assert (tmp_path / "ran").read_text() == "x\nx\n"


async def test_requests_that_never_become_whole_are_limited() -> None:
    async with serving(Limits(requests=8)) as served, raw_client(served.port) as peer:
        for number in range(1, 21):
            peer.send(request(number, "execute", {"command": ""}, 1, [[["command"], 100]]))
        assert (await peer.answer(20))[2]["class_path"].endswith(ServerLimitError.__name__)
        assert served.running <= 9


# Time


async def test_an_address_that_swallows_connections_is_not_the_only_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as served:
        with socket.socket() as full, socket.socket() as first, socket.socket() as second:
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            for one in (first, second):
                one.setblocking(False)
                one.connect_ex(full.getsockname())
            addresses = [(socket.AF_INET, full.getsockname()), (socket.AF_INET, ("127.0.0.1", served.port))]

            async def resolve(*_: object) -> list[tuple[int, Any]]:
                return addresses

            monkeypatch.setattr(dial, "_resolve", resolve)
            wire = served.client()
            assert (await wire.is_alive(9)).is_alive
            await wire.close()


def test_a_servers_text_of_an_error_costs_little() -> None:
    begin = time.perf_counter()
    for text in (": '' -> '" * 890, ": '" * 2700 + "\n", ": \"'" * 2000, " -> '" * 1600, ": 'a' -> 'b'" * 600 + "\n"):
        from_wire({"class_path": "builtins.OSError", "message": f"[Errno 2] No{text}x"})
    assert time.perf_counter() - begin < 1


# Odd peers


def test_what_strangers_send_makes_no_lines_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logs.LOGGER.name):
        logs.request_done("GET /\n2026 INFO forged\x1b[2J", 0.1, "404", "1.2.3.4:5", "an\nid", True)
    assert "\n" not in caplog.messages[0] and "\x1b" not in caplog.messages[0]
    assert caplog.records[0].request_id == "an\\nid"  # type: ignore[attr-defined]


@pytest.mark.parametrize("error", [ValueError, TimeoutError, UnicodeError])
async def test_a_download_raises_what_the_server_raised(error: type[Exception], tmp_path: Path) -> None:
    body = json.dumps({"swerexception": {"class_path": f"builtins.{error.__name__}", "message": "odd"}}).encode()

    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 511 X\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(connection, "127.0.0.1", 0)
    json_client = JsonClient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    try:
        with pytest.raises(error, match="odd") as caught:
            await json_client.download("/etc/x", str(tmp_path / "to"))
        assert type(caught.value) is error
    finally:
        await json_client.close()
        server.close()


async def test_a_proxy_for_the_world_is_none_for_this_machine(
    our_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    assert not dial.behind_proxy(our_server.url)
    assert dial.behind_proxy("http://example.org:8000")


def test_who_has_not_the_key_cannot_stay(both: server_process.Server) -> None:
    """However long the body is that it announces."""
    head = b"POST /execute HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n"
    with socket.create_connection(("127.0.0.1", both.port), 10) as stranger:
        stranger.sendall(head)
        stranger.settimeout(0.25)
        answer = b""
        end = time.monotonic() + 15
        with contextlib.suppress(ConnectionError):
            while time.monotonic() < end:
                stranger.sendall(b"x")
                with contextlib.suppress(TimeoutError):
                    if not (data := stranger.recv(1000)):
                        break
                    answer += data
        assert time.monotonic() < end
        assert answer.startswith(b"HTTP/1.1 403 ")
