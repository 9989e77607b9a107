"""Connections that break at every stage: a command runs at most once, and the client gets its result."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from swerex_c.remote.client import calls as client_channel
from swerex_c.remote.client.calls import ClientChannel
from tests.support.frames_tools import Proxy, Served, bash, channel_to
from tests.support.wait import until_async

pytestmark = [pytest.mark.usefixtures("family", "reconnects_at_once"), pytest.mark.slow]


async def conversation(served: Served, tmp_path: Path, way: str, after: int | None, gently: bool) -> Proxy:
    """Run a command whose connection is cut after a number of bytes; it runs once and has its result."""
    ran = tmp_path / "ran"
    ran.unlink(missing_ok=True)
    async with Proxy(served.port) as proxy:
        if after is not None:
            setattr(proxy, f"cut_{way}", after)
        proxy.gently = gently
        async with channel_to(proxy.port) as channel:
            answer = await channel.call("run_in_session", bash(f"echo x >> {ran}; echo y"), 10)
            assert answer["output"].strip() == "y"
            assert ran.read_text() == "x\n"
        await until_async(lambda: proxy.up >= 10)
    return proxy


@pytest.mark.parametrize("gently", [False, True], ids=["reset", "closed"])
@pytest.mark.parametrize("way", ["up", "down"])
async def test_command(served: Served, tmp_path: Path, way: str, gently: bool) -> None:
    """The connection is cut after each byte of the conversation, in both directions."""
    whole = getattr(await conversation(served, tmp_path, way, None, gently), way)
    assert whole > 150
    for after in range(1, whole, 2 if gently else 1):
        await conversation(served, tmp_path, way, after, gently)
    assert served.running == 0


async def long_answer(channel: ClientChannel, source: Path, target: Path) -> None:
    answer = await channel.call("run_in_session", bash("head -c 3000000 /dev/zero | tr '\\0' 'x'"), 20)
    assert answer["output"].strip() == "x" * 3_000_000


async def long_request(channel: ClientChannel, source: Path, target: Path) -> None:
    await channel.call("write_file", {"path": str(target), "content": source.read_text("latin-1")}, 20)
    assert target.read_text() == source.read_text("latin-1")


async def stream(channel: ClientChannel, source: Path, target: Path) -> None:
    *pieces, answer = [item async for item in channel.stream("stream_in_session", bash("seq 20000"))]
    assert b"".join(pieces).decode().split() == [str(i) for i in range(1, 20001)]  # type: ignore[arg-type]
    assert answer["exit_code"] == 0  # type: ignore[index]


async def copy(channel: ClientChannel, source: Path, target: Path, way: str) -> None:
    await getattr(channel, way)(str(source), str(target))
    assert target.read_bytes() == source.read_bytes()


@pytest.mark.parametrize("way", ["up", "down"])
@pytest.mark.parametrize(
    ("transfer", "long_way", "size"),
    [
        (long_answer, "down", 3_000_000), (long_request, "up", 3_000_000), (stream, "down", 100_000),
        (partial(copy, way="upload"), "up", 3_000_000), (partial(copy, way="download"), "down", 3_000_000),
    ],
)  # fmt: skip
async def test_streams_continue_after_a_reconnect(
    served: Served, tmp_path: Path, transfer: Callable[..., Any], long_way: str, size: int, way: str
) -> None:
    """No byte is lost or duplicated, and no temporary file remains."""
    source, there = tmp_path / "source", tmp_path / "there"
    source.write_bytes(bytes(range(256)).replace(b"\r", b"\n") * 12_000)
    there.mkdir()
    sizes = [*range(1, 400, 17), *range(400, size, size // 13)] if way == long_way else range(1, 400, 9)
    for after in sizes:
        async with Proxy(served.port) as proxy:
            setattr(proxy, f"cut_{way}", after)
            async with channel_to(proxy.port) as channel:
                await transfer(channel, source, there / "target")
        (there / "target").unlink(missing_ok=True)
        await until_async(lambda: not list(there.iterdir()))


async def test_many_at_once(served: Served, tmp_path: Path) -> None:
    """A hundred calls and a stream have correct results while the connection is cut again and again."""
    ran = tmp_path / "ran"

    async def command(channel: ClientChannel, i: int) -> None:
        answer = await channel.call("execute", {"command": f"echo {i} >> {ran}; echo {i}", "shell": True}, 30)
        assert answer["stdout"] == f"{i}\n"

    async with Proxy(served.port) as proxy, channel_to(proxy.port) as channel:
        stop = False

        async def cutting() -> None:
            while not stop:
                await asyncio.sleep(0.02)
                proxy.cut()

        cutter = asyncio.create_task(cutting())
        got = b""
        calls = [asyncio.create_task(command(channel, i)) for i in range(100)]
        async for item in channel.stream("stream_in_session", bash("seq 30000; sleep 0.2; seq 30001 60000")):
            got += item if isinstance(item, bytes) else b""
        await asyncio.gather(*calls)
        stop = True
        await cutter
        assert got.decode().replace("\r", "").split() == [str(i) for i in range(1, 60001)]
        assert sorted(map(int, ran.read_text().split())) == list(range(100))
        assert proxy.connections > 2


@pytest.mark.parametrize("where", ["head", "later"])
async def test_stalled(served: Served, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, where: str) -> None:
    """A connection without traffic is replaced by another one."""
    monkeypatch.setattr(client_channel, "HEARTBEAT", 0.1)
    monkeypatch.setattr(client_channel, "_CONNECT_SECONDS", 0.3)
    ran = tmp_path / "ran"
    async with Proxy(served.port) as proxy, channel_to(proxy.port, seconds=10) as channel:
        if where == "later":
            await channel.call("is_alive", {})
        proxy.stalled = True
        call = asyncio.create_task(channel.call("run_in_session", bash(f"echo x >> {ran}; echo y"), 10))
        await until_async(lambda: proxy.connections > 1)
        proxy.stalled = False
        assert (await call)["output"].strip() == "y"
        assert ran.read_text() == "x\n"


async def test_long_command_on_a_quiet_line(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Heartbeats keep an otherwise idle connection open."""
    monkeypatch.setattr(client_channel, "HEARTBEAT", 0.05)
    async with Proxy(served.port) as proxy, channel_to(proxy.port) as channel:
        assert (await channel.call("run_in_session", bash("sleep 1; echo y")))["output"].strip() == "y"
        assert proxy.connections == 1
