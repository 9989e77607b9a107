"""Event loops of callers: one for each call, several threads, and the cleanup when a loop ends."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from swerex_c.exceptions import RuntimeClosedError
from swerex_c.remote.client import calls
from swerex_c.remote.client.calls import ClientChannel
from swerex_c.remote.client.frames import OWN_AFTER
from swerex_c.runtime.abstract import BashAction, Command, CreateBashSessionRequest
from swerex_c.runtime.remote import RemoteRuntime
from tests.support.frames_tools import SESSION, bash, client, serving
from tests.support.harness import in_forked_child
from tests.support.processes import Family, running
from tests.support.server_process import KEY, Server, connections_to, open_files
from tests.support.server_process import serving as serving_process
from tests.support.wait import DEADLINE, settle, until, until_async


async def test_a_call_on_a_channel_that_was_closed_ends() -> None:
    """Generators that are closed with a loop may call after the channel of the loop."""
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
    """A loaded server may respond to the close before it responds to the calls that the close ended."""
    async with serving() as served:
        wire = served.client()
        channel = await wire.own_channel(long=True)
        call = asyncio.ensure_future(channel.call("execute", {"command": ["sleep", "4711.03"]}))
        await until_async(lambda: served.running == 1)
        await wire.close()
        with pytest.raises(RuntimeClosedError):
            await call
        await until_async(lambda: not running("sleep 4711.03") and not served.registry.channels)


def test_generators_may_call_when_their_loop_ends(swerex_remote: Server) -> None:
    runtime = RemoteRuntime(host=swerex_remote.url, auth_token=KEY)
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


async def test_a_runtime_that_is_dropped_leaves_no_connection() -> None:
    async with serving() as served:
        for _ in range(3):
            runtime = RemoteRuntime(host="http://127.0.0.1", port=served.port, auth_token=KEY)
            assert (await runtime.is_alive(timeout=DEADLINE)).is_alive
        del runtime
        await until_async(lambda: gc.collect() >= 0 and not served.registry.connections)


def test_many_loops_in_many_threads_over_one_programs_streams(over_stdio: RemoteRuntime) -> None:
    """Each call has its own result; its loop ends with it."""

    def ask_often(number: int) -> None:
        for i in range(40):
            text = f"{number} {i}"
            command = Command(command=["echo", text])
            answer = asyncio.run(asyncio.wait_for(over_stdio.execute(command), DEADLINE))
            assert answer.stdout == text + "\n"

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(ask_often, range(6)))
    asyncio.run(over_stdio.close())


def test_a_forked_child_does_not_use_its_parents_program(over_stdio: RemoteRuntime) -> None:
    runtime = over_stdio
    asyncio.run(runtime.is_alive(timeout=20))

    def be_refused() -> None:
        with pytest.raises(RuntimeClosedError, match="^The program `"):
            asyncio.run(runtime.execute(Command(command="true")))

    in_forked_child(be_refused)
    assert asyncio.run(runtime.execute(Command(command=["echo", "hi"]))).stdout == "hi\n"
    asyncio.run(runtime.close())


@pytest.mark.parametrize("wire", ["msgpack", "json"])
def test_calls_in_loops_of_their_own_share_a_connection(tmp_path: Path, wire: Any) -> None:
    """Over frames a loop that goes on to call gets one of its own."""

    async def call() -> int:
        """Return how many connections there are after a call."""
        await runtime.execute(Command(command=["true"]))
        return connections_to(server.port)

    async def many() -> list[int]:
        return [await call() for _ in range(20)]

    with serving_process(tmp_path / "log") as server:
        runtime = RemoteRuntime(host=server.url, auth_token=KEY, wire=wire)
        asyncio.run(call())
        asyncio.run(call())  # over HTTP the client knows from the first whom it talks to, and keeps its connections
        until(lambda: connections_to(server.port) <= 1)
        assert [asyncio.run(call()) for _ in range(20)] == [1] * 20
        assert asyncio.run(many()) == ([1] * 8 + [2] * 12 if wire == "msgpack" else [1] * 20)
        asyncio.run(runtime.close())


async def test_a_connection_without_calls_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "HEARTBEAT", 0.02)
    monkeypatch.setattr(calls, "_IDLE_BEATS", 3)
    async with serving() as served:
        wire = served.client()
        assert (await wire.is_alive(20)).is_alive
        await until_async(lambda: not served.registry.channels)
        assert (await wire.is_alive(20)).is_alive
        assert len(served.registry.channels) == 1
        await wire.close()


@pytest.mark.parametrize("streams", [False, True])
async def test_a_call_is_cancelled_when_the_server_knows(streams: bool, swerex_remote: Server, tmp_path: Path) -> None:
    """Otherwise a waiting command could begin when the one before it ends."""
    runtime = RemoteRuntime(host=swerex_remote.url, auth_token=KEY)
    await runtime.create_session(CreateBashSessionRequest())
    for number in range(OWN_AFTER + 1):
        await runtime.run_in_session(BashAction(command=f"x={number}"))
    first = BashAction(command=f"until [ -e {tmp_path}/gate ]; do sleep 0.01; done")
    runs = asyncio.ensure_future(runtime.run_in_session(first))
    await asyncio.sleep(0)
    last = BashAction(command="x=ran")

    async def read() -> None:
        async for _ in runtime.stream_in_session(last):
            pass

    waits = asyncio.ensure_future(read() if streams else runtime.run_in_session(last))
    await settle()
    os.kill(swerex_remote.process.pid, signal.SIGSTOP)
    waits.cancel()
    await settle()
    assert not waits.done()
    os.kill(swerex_remote.process.pid, signal.SIGCONT)
    with pytest.raises(asyncio.CancelledError):
        await waits
    (tmp_path / "gate").touch()
    await runs
    assert (await runtime.run_in_session(BashAction(command="echo $x"))).output == f"{OWN_AFTER}\n"
    await runtime.close()


@pytest.mark.slow
def test_a_loop_that_ends_in_the_middle(family: Family, tmp_path: Path) -> None:
    """`asyncio.run` over a call, a stream, a copy: the command ends, and nothing is left at either end."""
    there, target, pieces = tmp_path / "there", tmp_path / "to" / "target", list[Any]()
    with open(there, "wb") as file:
        file.truncate(1 << 30)

    async def read(channel: ClientChannel) -> None:
        await channel.call("create_session", SESSION)
        async for piece in channel.stream("stream_in_session", bash("head -c 50000000 /dev/zero | tr '\\0' x")):
            pieces.append(piece)
            await asyncio.sleep(5)

    async def start(what: str) -> None:
        channel = await wire.own_channel(long=True)
        if what == "call":
            asyncio.ensure_future(channel.call("execute", {"command": "sleep 4711.04", "shell": True}))
            await until_async(lambda: running("sleep 4711.04"))
        elif what == "stream":
            asyncio.ensure_future(read(channel))
            await until_async(lambda: pieces)
        else:
            asyncio.ensure_future(getattr(channel, what)(str(there), str(target)))
            await until_async(lambda: target.parent.exists() and os.listdir(target.parent))

    with serving_process(tmp_path / "log") as server:
        wire = client(server.port)
        asyncio.run(start("call"))
        files, threads = open_files(os.getpid()), threading.active_count()
        for what in ("call", "stream", "upload", "download"):
            asyncio.run(start(what))
            until(lambda: not running("sleep 4711.04") and not connections_to(server.port))
            until(lambda: not target.parent.exists() or not os.listdir(target.parent))
            until(lambda: threading.active_count() <= threads)
        until(lambda: gc.collect() >= 0 and open_files(os.getpid()) <= files)
        assert server.post("/run_in_session", action_type="bash", command="echo y").json()["output"].strip() == "y"
