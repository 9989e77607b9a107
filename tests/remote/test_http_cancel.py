"""Cancelled calls end at the server: over HTTP/JSON, over frames, and in a local runtime."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from swerex_c.exceptions import ConnectionLostError, SessionDoesNotExistError
from swerex_c.remote.client import base
from swerex_c.remote.client.http import _CANCEL_SECONDS, HttpClient
from swerex_c.remote.server.app import create_app
from swerex_c.remote.server.service import Service
from swerex_c.remote.wire import file_transfer
from swerex_c.runtime.abstract import CloseResponse, Command, CommandResponse
from swerex_c.runtime.local import LocalRuntime
from swerex_c.runtime.remote import RemoteRuntime
from swerex_c.utils.cancellation import this_call
from tests.support import frames_tools, raw_http, server_process
from tests.support.frames_tools import Proxy
from tests.support.processes import running
from tests.support.raw_http import ask
from tests.support.server_process import KEY, Server
from tests.support.targets import Session
from tests.support.wait import DEADLINE, cancel, settle, until_async

Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Return a function that runs a test in a loop of this kind."""
    factory = None
    if request.param == "uvloop":
        factory = pytest.importorskip("uvloop", reason="uvloop is not installed").new_event_loop

    def run(work: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(work)

    return run


@pytest.fixture
def sleep() -> str:
    """A long command that nobody else runs."""
    return f"sleep 4711.{uuid.uuid4().int}"


@contextlib.asynccontextmanager
async def session_of(url: str, wire: Any = "json") -> AsyncIterator[Session]:
    """Open a session over a wire, HTTP/JSON by default; a local one without an address."""
    runtime: Any = RemoteRuntime(host=url, auth_token=KEY, wire=wire) if url else LocalRuntime()
    session = Session(runtime)
    await session.create()
    try:
        yield session
    finally:
        await session.close()
        if url and wire == "msgpack":
            await runtime._frames.close()


def execute(session: Session, command: str) -> asyncio.Task[Any]:
    return asyncio.create_task(session.runtime.execute(Command(command=command, shell=True)))


async def test_a_call_cancelled_without_a_connection_ends_with_the_next(
    swerex_remote: server_process.Server, sleep: str
) -> None:
    """The client reconnects for the cancellation alone, without a further call."""
    async with Proxy(swerex_remote.port) as proxy, session_of(f"http://127.0.0.1:{proxy.port}", "msgpack") as session:
        task = execute(session, sleep)
        await until_async(lambda: running(sleep))
        proxy.to = 1  # which nobody serves
        before = proxy.connections
        proxy.cut()
        await until_async(lambda: proxy.connections > before)
        await cancel(task)
        proxy.to = swerex_remote.port
        await until_async(lambda: not running(sleep))


@pytest.mark.parametrize("awaited", [True, False])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("wire", ["json", "msgpack", "local"])
def test_a_command_cancelled_while_it_waits_never_begins(
    swerex_remote: server_process.Server, tmp_path: Path, run: Run, sleep: str, wire: str, stream: bool, awaited: bool
) -> None:
    ran = tmp_path / "ran"

    async def begin(session: Session, command: str) -> None:
        if not stream:
            await session.run(command)
            return
        async for _ in session.runtime.stream_in_session(session.action(command)):
            pass

    async def work() -> None:
        async with session_of("" if wire == "local" else swerex_remote.url, wire) as session:
            for turns in (0, 1, 5, 100, 1000):
                first = asyncio.create_task(begin(session, sleep))
                await until_async(lambda: running(sleep))
                second = asyncio.create_task(begin(session, f"echo x >> {ran}; sleep 60; echo a"))
                await settle(turns)
                for task in (first, second):
                    if awaited:
                        await cancel(task)
                    else:
                        task.cancel()
                await session.interrupt()
                await session.gives("echo hi", "hi\n")
                assert not ran.exists()
                assert all(await asyncio.gather(first, second, return_exceptions=True))

    run(work())


async def test_a_session_is_not_made(our_server: Server, tmp_path: Path, sleep: str) -> None:
    source = tmp_path / "source"
    source.write_text(f"touch {tmp_path}/begun; {sleep}\n")

    async with session_of(our_server.url) as session:
        other = Session(session.runtime)
        task = asyncio.create_task(other.create(startup_source=[str(source)]))
        await until_async((tmp_path / "begun").exists)
        await cancel(task)
        await until_async(lambda: not running(sleep))
        with pytest.raises(SessionDoesNotExistError):
            await other.close()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("wire", "says"), [("json", "no answer within"), ("msgpack", "did not respond to")])
async def test_a_call_that_times_out_ends_at_the_server(
    swerex_remote: Server, sleep: str, monkeypatch: pytest.MonkeyPatch, wire: Any, says: str, stream: bool
) -> None:
    async with session_of(swerex_remote.url, wire) as session:
        monkeypatch.setattr(base, "MARGIN", -59.5)
        with pytest.raises(ConnectionLostError, match=says):
            if stream:
                async for _ in session.runtime.stream_in_session(session.action(sleep, timeout=60)):
                    pass
            else:
                await session.runtime.execute(Command(command=sleep, shell=True, timeout=60))
        monkeypatch.undo()
        if stream:
            await session.interrupt()
        await until_async(lambda: not running(sleep))


@pytest.mark.parametrize("end", ["cut_up", "cut_down"])
async def test_a_cancellation_whose_connection_is_cut(our_server: Server, sleep: str, end: str) -> None:
    async with Proxy(our_server.port) as proxy:
        client = HttpClient(f"http://127.0.0.1:{proxy.port}", {"X-API-Key": KEY})
        assert await client.is_alive(30)
        task = asyncio.create_task(client.call("execute", Command(command=sleep, shell=True), CommandResponse))
        await until_async(lambda: running(sleep))
        setattr(proxy, end, 1)
        proxy.connections = 0
        await cancel(task)
        await until_async(lambda: not running(sleep))
        assert proxy.connections == 2


async def test_an_originals_server_is_told_nothing() -> None:
    """The client identifies the server by one `is_alive`."""
    asked: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = (await reader.readuntil(b"\r\n\r\n")).split()[1]
        asked.append(line)
        if line == b"/is_alive":
            body = b'{"is_alive": true}'
            writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        await reader.read()
        writer.close()

    async with raw_http.serving(answer) as host:
        runtime = RemoteRuntime(host=host, auth_token=KEY, wire="json")
        for i in range(3):
            task = asyncio.create_task(runtime.execute(Command(command="true")))
            await until_async(lambda i=i: asked.count(b"/execute") > i)
            await cancel(task)
        assert await runtime.is_alive()
    assert asked == [b"/execute", b"/is_alive", b"/execute", b"/execute", b"/is_alive"]


async def test_a_server_that_does_not_answer_delays_nobody() -> None:
    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.set()
        await reader.read()
        writer.close()

    came = asyncio.Event()
    async with raw_http.serving(say_nothing) as url:
        client = HttpClient(url)
        task = asyncio.create_task(client.call("execute", Command(command="true"), CommandResponse))
        await came.wait()
        begin = time.monotonic()
        await cancel(task)
        assert _CANCEL_SECONDS <= time.monotonic() - begin + 0.1
        assert len(client._cancelling) == 1  # the server is told when it answers
        with pytest.raises(ConnectionLostError, match="no answer within"):
            await client.is_alive(0.2)


class SlowToClose(LocalRuntime):
    """A runtime whose `close` waits for `goes`."""

    closes: asyncio.Event
    goes: asyncio.Event

    async def close(self) -> CloseResponse:
        self.closes.set()
        await self.goes.wait()
        return await super().close()


@pytest.mark.parametrize("wire", ["json", "msgpack"])
async def test_a_server_whose_closing_is_cancelled_serves_on(wire: Any, sleep: str) -> None:
    SlowToClose.closes, SlowToClose.goes = asyncio.Event(), asyncio.Event()
    async with frames_tools.serving(make=create_app) as served:
        served.place.runtime = before = SlowToClose()
        async with session_of(f"http://127.0.0.1:{served.port}", wire=wire) as session:
            program = execute(session, sleep)
            await until_async(lambda: running(sleep))
            closing = asyncio.create_task(session.runtime.close())
            await SlowToClose.closes.wait()
            await session.create()  # another client's would be closed as well
            await cancel(closing)
            SlowToClose.goes.set()
            await until_async(lambda: served.place.runtime is not before and not running(sleep))
            await asyncio.gather(program, return_exceptions=True)
            await session.gives("echo hi", "hi\n")


async def test_a_shutdown_waits_for_a_runtime_that_is_being_closed() -> None:
    SlowToClose.closes, SlowToClose.goes = asyncio.Event(), asyncio.Event()
    service = Service(SimpleNamespace(runtime=SlowToClose(), AUTH_TOKEN=KEY))
    with service.counted("close"):
        closing = asyncio.create_task(service.close())
        await SlowToClose.closes.wait()
        closing.cancel()
        service.holder.runtime = LocalRuntime()
        ending = asyncio.create_task(service.shutdown(DEADLINE))
        await settle(100)
        assert not closing.done() and not ending.done()
        SlowToClose.goes.set()
        await asyncio.wait([closing])
    await ending


# What the server is sent


def test_a_cancellation_may_come_before_its_request_or_after_the_answer(our_server: Server, tmp_path: Path) -> None:
    """A cancelled id does not run; one that was answered keeps its answer."""
    early, late = ({"X-Request-ID": uuid.uuid4().hex} for _ in range(2))
    command = {"command": f"echo run >> {tmp_path}/runs; echo hi", "shell": True}
    first = ask(our_server, "POST", "/execute", command, headers=late)
    for headers in (early, late, early, late):
        assert ask(our_server, "POST", "/cancel", headers=headers).status == 200
    assert ask(our_server, "POST", "/execute", command, headers=late).json() == first.json()
    for _ in range(2):
        answer = ask(our_server, "POST", "/execute", command, headers=early)
        assert answer.error["class_path"].endswith("ResultLostError")
    assert (tmp_path / "runs").read_text() == "run\n"
    nameless = ask(our_server, "POST", "/cancel")
    assert nameless.status == 422 and nameless.json()["detail"][0]["loc"] == ["header", "x-request-id"]


async def test_a_cancelled_download_writes_to_no_other_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its descriptor is not closed while a thread is about to write to it."""
    writing, go_on = threading.Event(), threading.Event()
    write_all, cancelled = file_transfer.write_all, []

    def slow(fd: int, pieces: Any) -> None:
        cancelled.append(this_call.cancelled)
        writing.set()
        go_on.wait(DEADLINE)
        write_all(fd, pieces)

    (tmp_path / "source").write_bytes(b"theirs" * 1000)
    (tmp_path / "mine").write_text("mine")
    with server_process.serving(tmp_path / "log") as server:
        client = HttpClient(server.url, {"X-API-Key": KEY})
        monkeypatch.setattr(file_transfer, "write_all", slow)
        download = asyncio.create_task(client.download(str(tmp_path / "source"), str(tmp_path / "target")))
        await asyncio.to_thread(writing.wait, DEADLINE)
        download.cancel()
        await until_async(cancelled[0].is_set)  # by the private loop
        await settle()  # so that it may close what it has open
        opened = [open(tmp_path / "mine", "r+b") for _ in range(10)]
        go_on.set()
        await asyncio.wait([download])
        await until_async(lambda: sorted(os.listdir(tmp_path)) == ["log", "mine", "source"])
        assert (tmp_path / "mine").read_text() == "mine"
        for file in opened:
            file.close()
