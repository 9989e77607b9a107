"""`is_alive` waits for its answer without the event loop: what that must not change."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from swerex_c.exceptions import ConnectionLostError
from swerex_c.remote.client import calls
from swerex_c.remote.client.calls import ClientChannel
from swerex_c.remote.client.frames import Address, WireClient
from tests.support.server_process import KEY, Server, serving

LONG = 20.0
"""Seconds that a call may wait by itself in these tests, so that on a slow machine it does, too."""

SHELL = {"action_type": "bash", "session": "default", "timeout": 30.0, "check": "silent"}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Server]:
    monkeypatch.setattr(calls, "_INLINE_WAIT_SECONDS", LONG)
    with serving(tmp_path / "log") as server:
        yield server


@pytest.fixture
async def channel(server: Server) -> AsyncIterator[ClientChannel]:
    """A channel to the server, with a session."""
    wire = WireClient(Address("127.0.0.1", server.port, headers={"X-API-Key": KEY}), 5.0)
    channel = await wire.channel()
    assert isinstance(channel, ClientChannel)
    await channel.call("create_session", {"session": "default", "session_type": "bash"})
    yield channel
    await wire.close()


@pytest.fixture
def stopped(server: Server, channel: ClientChannel) -> Iterator[int]:
    """The server's process, which answers nothing until it is continued."""
    os.kill(server.process.pid, signal.SIGSTOP)
    yield server.process.pid
    os.kill(server.process.pid, signal.SIGCONT)


async def test_answered_here(channel: ClientChannel, monkeypatch: pytest.MonkeyPatch) -> None:
    """No turn of the loop is needed, and yet whoever else uses the loop has its turns."""
    turns = 0
    ended = False

    async def other() -> None:
        nonlocal turns
        while not ended:
            await asyncio.sleep(0.001)
            turns += 1

    task = asyncio.create_task(other())
    await asyncio.sleep(0.01)
    waited = 0
    really = calls.ClientConnection.wait

    def wait(connection: calls.ClientConnection, seconds: float) -> None:
        nonlocal waited
        waited += 1
        really(connection, seconds)

    monkeypatch.setattr(calls.ClientConnection, "wait", wait)
    before = turns
    for number in range(200):
        assert (await channel.call("is_alive", {}, 30))["is_alive"] is True
        answer = await channel.call("run_in_session", {**SHELL, "command": f"echo {number}"}, 60)
        assert (answer["output"].strip(), answer["exit_code"]) == (str(number), 0)
    ended = True
    await task
    assert waited > 100
    assert turns - before >= 10
    assert not channel._calls


async def test_many_at_once(channel: ClientChannel) -> None:
    """Who is not alone does not wait by itself, and each gets its own answer."""

    async def one(number: int) -> None:
        for _ in range(10):
            answer = await channel.call("run_in_session", {**SHELL, "command": f"echo {number}"}, 60)
            assert answer["output"].strip() == str(number)
            assert (await channel.call("is_alive", {}, 60))["is_alive"] is True

    await asyncio.gather(*map(one, range(20)))
    assert not channel._calls


async def test_time_is_up(channel: ClientChannel, monkeypatch: pytest.MonkeyPatch, stopped: int) -> None:
    """What takes longer than a call waits by itself is waited for by the loop, up to its own deadline."""
    monkeypatch.setattr(calls, "_INLINE_WAIT_SECONDS", 0.001)
    with pytest.raises(ConnectionLostError, match=r"did not respond to is_alive within 0\.3 seconds"):
        await channel.call("is_alive", {}, 0.3)
    late = asyncio.create_task(channel.call("is_alive", {}, 60))
    await asyncio.sleep(0.1)
    assert not late.done()
    os.kill(stopped, signal.SIGCONT)
    assert (await late)["is_alive"] is True
    assert (await channel.call("is_alive", {}, 30))["is_alive"] is True
    assert not channel._calls


async def test_a_server_that_ends(channel: ClientChannel, stopped: int) -> None:
    """A connection that breaks meanwhile is noticed while the call waits."""
    killer = threading.Timer(0.2, os.kill, (stopped, signal.SIGKILL))
    killer.start()
    with pytest.raises(ConnectionLostError):
        await channel.call("is_alive", {}, 60, patient=False)
    killer.join()
    assert not channel._calls
