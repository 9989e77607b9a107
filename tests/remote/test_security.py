"""Holes that were found by reading the remote layer with bad intentions."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from swerex_c.exceptions import (
    ConnectionLostError,
    ProtocolError,
    RuntimeClosedError,
    ServerLimitError,
)
from swerex_c.remote.client import base, calls, connect
from swerex_c.remote.client.frames import WireClient
from swerex_c.remote.server.limits import Limits
from swerex_c.remote.wire.protocol import DATA, DOWN, ERROR, RESULT
from swerex_c.runtime.abstract import BashAction, BashInterruptAction, Command, CreateBashSessionRequest
from swerex_c.runtime.remote import RemoteRuntime
from tests.support import server_process
from tests.support.frames_tools import channel_to, keep_answering, open_files, raw_client, raw_server, request, serving
from tests.support.http_servers import Server, environment
from tests.support.server_process import KEY
from tests.support.wait import until_async

STDIO = [sys.executable, "-c", "from swerex_c.cli.serve import main; main()", "--stdio"]


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


async def test_a_call_on_a_channel_that_was_closed_ends() -> None:
    """Its loop ends, and what is cleaned up last calls once more."""
    async with serving() as served:
        wire = served.client()
        channel = await wire.own_channel(long=True)
        await channel.call("is_alive", {})
        channel.close()
        async with asyncio.timeout(20):
            with pytest.raises(RuntimeClosedError):
                await channel.call("is_alive", {})
            assert (await wire.is_alive(5)).is_alive  # over another one
        await wire.close()


async def test_a_call_that_is_open_when_the_runtime_is_closed_says_so() -> None:
    """A server under load may answer the close before what it has ended by it."""
    async with serving() as served:
        wire = served.client()
        call = asyncio.ensure_future(wire.run(lambda it: it.call("execute", {"command": "sleep 30", "shell": True})))
        await until_async(lambda: served.running == 1)
        await wire.close()
        with pytest.raises(RuntimeClosedError):
            await call


def test_generators_may_call_when_their_loop_ends(both: server_process.Server) -> None:
    runtime = RemoteRuntime(host=both.url, auth_token=KEY)
    done: list[str] = []

    async def holder() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            async with asyncio.timeout(10):
                done.append((await runtime.execute(Command(command=["echo", "hi"]))).stdout)

    async def main() -> None:
        holders = [holder() for _ in range(4)]
        for one in holders:
            await anext(one)
        await runtime.is_alive()
        main.kept = holders  # type: ignore[attr-defined]

    asyncio.run(main())
    assert done == ["hi\n"] * 4


async def test_a_runtime_that_is_dropped_leaves_no_connection(both: server_process.Server) -> None:
    async def use() -> None:
        runtime = RemoteRuntime(host=both.url, auth_token=KEY)
        await runtime.is_alive()

    await use()
    await asyncio.sleep(1)
    gc.collect()
    before = open_files()
    for _ in range(10):
        await use()

    def none_is_left() -> bool:
        gc.collect()
        return open_files() <= before + 1

    await until_async(none_is_left)


def test_threads_that_begin_at_once_share_one_client(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    before = WireClient.__init__

    def slow(self: WireClient, *args: Any, **more: Any) -> None:
        time.sleep(0.05)
        made.append(self)
        before(self, *args, **more)

    monkeypatch.setattr(WireClient, "__init__", slow)
    runtime = RemoteRuntime(command=["cat"], auth_token="")
    found: list[object] = []
    threads = [threading.Thread(target=lambda: found.append(runtime._wire)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1 and set(map(id, found)) == {id(made[0])}


@pytest.mark.parametrize("_", range(2))
def test_many_loops_in_many_threads_over_one_programs_streams(over_stdio: RemoteRuntime, _: int) -> None:
    """Every call has its own result, though its loop ends with it."""
    runtime = over_stdio
    wrong: list[Any] = []

    def ask_often(number: int) -> None:
        for i in range(40):
            text = f"{number} {i}"
            try:
                answer = asyncio.run(asyncio.wait_for(runtime.execute(Command(command=["echo", text])), 30))
            except BaseException as error:
                wrong.append(error)
                return
            if answer.stdout != text + "\n":
                wrong.append(answer)

    threads = [threading.Thread(target=ask_often, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads)
    assert not wrong, wrong[:3]
    asyncio.run(runtime.close())


def test_a_forked_child_does_not_use_its_parents_program(over_stdio: RemoteRuntime) -> None:
    runtime = over_stdio
    asyncio.run(runtime.is_alive(timeout=20))
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            asyncio.run(runtime.execute(Command(command="true")))
        except BaseException as error:
            os.write(writing, repr(error).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading) as said:
        assert "RuntimeClosedError('The program `" in said.read()
    os.waitpid(child, 0)
    assert asyncio.run(runtime.execute(Command(command=["echo", "hi"]))).stdout == "hi\n"
    asyncio.run(runtime.close())


def test_calls_in_loops_of_their_own_share_a_connection(both: server_process.Server) -> None:
    runtime = RemoteRuntime(host=both.url, auth_token=KEY)

    async def call() -> int:
        """Return how many sockets this process has after a call."""
        await runtime.execute(Command(command=["true"]))
        return sum(path.resolve().name.startswith("socket:") for path in Path("/proc/self/fd").iterdir())

    async def many() -> list[int]:
        return [await call() for _ in range(20)]

    counts = [asyncio.run(call()) for _ in range(20)]
    assert counts == counts[:1] * 20
    assert asyncio.run(many()) == counts[:1] * 8 + [counts[0] + 1] * 12
    asyncio.run(runtime.close())


async def test_a_connection_without_calls_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "HEARTBEAT", 0.02)
    monkeypatch.setattr(calls, "_IDLE_SECONDS", 0.1)
    async with serving() as served:
        wire = served.client()
        assert (await wire.is_alive(20)).is_alive
        await until_async(lambda: not served.registry.channels)
        assert (await wire.is_alive(20)).is_alive
        assert len(served.registry.channels) == 1
        await wire.close()


async def test_an_interrupt_on_a_new_connection_does_not_overtake_a_cancellation(both: server_process.Server) -> None:
    runtime = RemoteRuntime(host=both.url, auth_token=KEY)
    await runtime.create_session(CreateBashSessionRequest())
    for number in range(2, 8):
        await runtime.run_in_session(BashAction(command=f"x={number}"))
    call = asyncio.ensure_future(runtime.run_in_session(BashAction(command="sleep 60")))
    await asyncio.sleep(0)
    call.cancel()
    await asyncio.wait([call])
    for _ in range(2):
        await runtime.run_in_session(BashInterruptAction())
        assert (await runtime.run_in_session(BashAction(command="echo $x", timeout=10))).output == "7\n"
    await runtime.close()


# Once


async def test_what_was_given_up_while_there_was_no_connection_ends() -> None:
    async with serving() as served:
        async with channel_to(served.port) as channel:
            running = asyncio.create_task(channel.call("execute", {"command": ["sleep", "30"]}))
            await until_async(lambda: served.running == 1)
            assert channel._connection is not None
            channel._connection.abort()
            running.cancel()
            await asyncio.wait([running])
            assert running.cancelled()
            await channel.call("is_alive", {})
            await until_async(lambda: served.running == 0)


async def test_requests_that_never_become_whole_are_limited() -> None:
    async with serving(Limits(requests=8)) as served, raw_client(served.port) as peer:
        for number in range(1, 21):
            peer.send(request(number, "execute", 100))
        assert (await peer.answer(20))[2]["class_path"].endswith(ServerLimitError.__name__)
        assert served.running <= 9


async def test_who_takes_no_answers_gets_no_more(tmp_path: Path) -> None:
    (tmp_path / "long").write_text("x" * (1 << 20))
    async with serving(Limits(result_bytes=4 << 20)) as served, raw_client(served.port) as peer:
        kinds = []
        for number in range(1, 21):  # it reads what comes, and never gives credit
            peer.send(request(number, "read_file", {"path": str(tmp_path / "long")}))
            kinds.append((await peer.answer(number))[0])
        assert kinds[0] == RESULT and kinds[-1] == ERROR
        assert served.registry.service.requests.kept_bytes < 6 << 20
        peer.send(request(21))
        assert (await peer.answer(21))[0] == RESULT


# Time


async def test_a_stream_waits_as_long_as_what_it_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "MARGIN", 0.3)
    async with raw_server(lambda peer: keep_answering(peer, lambda frame: [])) as port:
        runtime = RemoteRuntime(host="127.0.0.1", port=port, auth_token="")
        with pytest.raises(ConnectionLostError):
            async with asyncio.timeout(20):
                async for _ in runtime.stream_in_session(BashAction(command="x", timeout=0.2)):
                    pass
        assert runtime._wire is not None
        await runtime._wire.close()


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


# Odd peers


async def test_is_alive_does_not_raise_because_of_an_odd_answer() -> None:
    async with raw_server(lambda peer: keep_answering(peer, lambda frame: [[RESULT, frame[1], {"x": 1}]])) as port:
        runtime = RemoteRuntime(host="127.0.0.1", port=port, auth_token="")
        answer = await runtime.is_alive(timeout=5)
        assert not answer.is_alive and "cannot be read" in answer.message
        assert runtime._wire is not None
        await runtime._wire.close()


async def test_a_proxy_for_the_world_is_none_for_this_machine(
    our_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    assert not connect.behind_proxy(our_server.url)
    assert connect.behind_proxy("http://example.org:8000")


@pytest.mark.slow
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


async def test_a_stream_that_is_no_text_is_told_as_what_it_is() -> None:
    def respond(frame: list[Any]) -> list[Any]:
        return [[DATA, frame[1], DOWN, 0, b"a\xff"]]

    async with raw_server(lambda peer: keep_answering(peer, respond)) as port:
        runtime = RemoteRuntime(host="127.0.0.1", port=port, auth_token="")
        with pytest.raises(ProtocolError):
            async for _ in runtime.stream_in_session(BashAction(command="x", timeout=5)):
                pass
        assert runtime._wire is not None
        await runtime._wire.close()


@pytest.fixture(scope="module")
def with_metrics(tmp_path_factory: pytest.TempPathFactory) -> Iterator[server_process.Server]:
    pytest.importorskip("prometheus_client", reason="the package prometheus-client is not installed")
    with server_process.serving(tmp_path_factory.mktemp("metrics") / "log", "--metrics") as server:
        yield server


_WEBSOCKET = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: eA==\r\nSec-WebSocket-Version: 13\r\n"
_FRAMES = "Connection: Upgrade\r\nUpgrade: SWEREX-FRAMES\r\n"


@pytest.mark.parametrize("verb", ["GET", "HEAD", "OPTIONS", "POST", "TRACE"])
@pytest.mark.parametrize(
    "more",
    [
        "",
        "X-API-Key: \r\n",
        "X-API-Key: wrong\r\n",
        f"X-API-Key : {KEY}\r\n",
        f"{_FRAMES}X-API-Key : {KEY}\r\n",
        f"X-API-Key: {KEY}\r\nX-API-Key: wrong\r\n",
        f"X-API-Key: {KEY}x\r\n",
        _WEBSOCKET,
        _FRAMES,
    ],
)
def test_no_way_leads_past_the_key(with_metrics: server_process.Server, verb: str, more: str) -> None:
    for path in (
        "/",
        "/metrics",
        "//metrics",
        "/%6detrics",
        "/docs",
        "/openapi.json",
        "/wire",
        "/x/wire",
        "http://h/",
        "*",
    ):
        with socket.create_connection(("127.0.0.1", with_metrics.port), 10) as stranger:
            stranger.sendall(f"{verb} {path} HTTP/1.1\r\nHost: x\r\n{more}Content-Length: 0\r\n\r\n".encode())
            answer = stranger.recv(1000)
        assert answer.split(b" ")[1] in (b"400", b"401", b"403"), (path, answer)
