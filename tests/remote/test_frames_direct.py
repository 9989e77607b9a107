"""Short calls wait for their answers by themselves, without the event loop: what that must not change."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from remote.server_process import KEY, serving
from swerex_c.exceptions import ConnectionLostError
from swerex_c.remote import client_channel
from swerex_c.remote.client_channel import Channel
from swerex_c.remote.wire_client import Address, WireClient
from traps.harness import PACE

LONG = 20.0
"""Seconds that a call may wait by itself in these tests, so that on a slow machine it does, too."""

SHELL = {"action_type": "bash", "session": "default", "timeout": 30.0, "check": "silent"}


@pytest.fixture
async def channel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncIterator[Channel]:
    """A channel to a server in a process of its own, with a session."""
    monkeypatch.setattr(client_channel, "_DIRECT", {"is_alive": LONG, "run_in_session": LONG})
    with serving(tmp_path / "log") as server:
        wire = WireClient(Address("127.0.0.1", server.port, headers={"X-API-Key": KEY}), 5.0)
        channel = await wire.channel()
        await channel.call("create_session", {"session": "default", "session_type": "bash"})
        yield channel
        await wire.close()


async def test_answered_here(channel: Channel, monkeypatch: pytest.MonkeyPatch) -> None:
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
    really = client_channel.ClientLink.wait

    def wait(link: client_channel.ClientLink, seconds: float) -> None:
        nonlocal waited
        waited += 1
        really(link, seconds)

    monkeypatch.setattr(client_channel.ClientLink, "wait", wait)
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


async def test_many_at_once(channel: Channel) -> None:
    """Who is not alone does not wait by itself, and each gets its own answer."""

    async def one(number: int) -> None:
        for _ in range(10):
            answer = await channel.call("run_in_session", {**SHELL, "command": f"echo {number}"}, 60)
            assert answer["output"].strip() == str(number)
            assert (await channel.call("is_alive", {}, 60))["is_alive"] is True

    await asyncio.gather(*map(one, range(20)))
    assert not channel._calls


async def test_time_is_up(channel: Channel, monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes longer than a call waits by itself is waited for by the loop, up to its own deadline."""
    for habit in channel._habits.values():
        habit.seconds = 0.001
    begin = time.monotonic()
    answer = await channel.call("run_in_session", {**SHELL, "command": "sleep 0.2; echo x"}, 60)
    assert answer["output"].strip() == "x"
    assert channel._habits["run_in_session"].skip == 1
    late = asyncio.create_task(channel.call("run_in_session", {**SHELL, "command": "sleep 20"}, 15))
    with pytest.raises(ConnectionLostError, match=r"no answer to run_in_session within 0\.3 seconds"):
        await channel.call("run_in_session", {**SHELL, "command": "sleep 10"}, 0.3)
    assert time.monotonic() - begin < 5 * PACE
    assert (await channel.call("is_alive", {}, 30))["is_alive"] is True
    assert not late.done()
    late.cancel()
    await asyncio.gather(late, return_exceptions=True)
    assert not channel._calls


async def test_a_server_that_ends(channel: Channel) -> None:
    """A connection that breaks meanwhile is noticed while the call waits."""
    begin = time.monotonic()
    with pytest.raises(ConnectionLostError):
        await channel.call("run_in_session", {**SHELL, "command": "sleep 0.2; kill -9 $PPID"}, 60, patient=False)
    assert time.monotonic() - begin < LONG
    assert not channel._calls
