"""Flow control of streams, and the end of calls whose client has vanished."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from swerex_c.remote.server import calls as server_channel
from swerex_c.remote.server.limits import Limits
from swerex_c.remote.wire.protocol import (
    ANSWER,
    CREDIT,
    DATA,
    DOWN,
    END,
    PIECE,
    PING,
    PONG,
    REQUEST,
    RESULT,
    UP,
    WINDOW,
)
from tests.support.frames_tools import Peer, Served, bash, channel_to, raw_client, raw_server, request, serving
from tests.support.processes import Family
from tests.support.wait import until_async

pytestmark = [pytest.mark.usefixtures("family"), pytest.mark.slow]


# Windows


async def test_server_sends_no_more_than_the_window(served: Served) -> None:
    """Without credit, a stream and a long response stop after the window; other calls of the client continue."""
    stream = bash("head -c 20000000 /dev/zero | tr '\\0' x")
    answer = {"command": "head -c 20000000 /dev/zero | tr '\\0' x", "shell": True}
    async with raw_client(served.port) as peer:
        peer.send(request(1, "stream_in_session", stream), request(2, "execute", answer))
        got = {(1, DOWN): 0, (2, ANSWER): 0}
        totals = {(1, DOWN): 20_000_000}
        with contextlib.suppress(TimeoutError):
            while (frame := await peer.frame(30 if min(got.values()) < WINDOW - 1 else 0.3)) is not None:
                if frame[0] == RESULT:
                    totals[2, ANSWER] = frame[3]
                else:
                    got[frame[1], frame[2]] += len(frame[4])
        assert all(WINDOW - 1 <= size < WINDOW + PIECE for size in got.values()), got
        peer.send(request(3))
        assert (await peer.answer(3))[0] == RESULT
        while got != totals:
            peer.send(*[[CREDIT, *lane, size] for lane, size in got.items()])
            frame = await peer.frame()
            if frame[0] == DATA:
                got[frame[1], frame[2]] += len(frame[4])
        assert 20_000_000 < totals[2, ANSWER] < 20_000_100
        assert (await peer.answer(1))[2] == 20_000_000


async def test_client_sends_no_more_than_the_window(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(bytes(20_000_000))
    got = 0
    stopped = asyncio.Event()

    async def script(peer: Peer) -> None:
        nonlocal got
        with contextlib.suppress(TimeoutError):
            while (frame := await peer.frame(30 if got < WINDOW else 0.3)) is not None:
                got += len(frame[4]) if frame[0] == DATA else 0
        stopped.set()
        peer.send([CREDIT, 1, UP, got])
        while (frame := await peer.frame()) is not None:
            if frame[0] == DATA:
                got += len(frame[4])
                peer.send([CREDIT, 1, UP, got])
            elif frame[0] == END:
                peer.send([RESULT, 1, 0, {}])
            elif frame[0] == PING:
                peer.send([PONG])

    async with raw_server(script) as port, channel_to(port) as channel:
        copying = asyncio.create_task(channel.upload(str(source), "/x"))
        await stopped.wait()
        assert WINDOW <= got < WINDOW + PIECE
        await asyncio.wait_for(copying, 30)
        assert got > 20_000_000


async def test_there_is_no_credit_for_what_is_not_read() -> None:
    async def script(peer: Peer) -> None:
        await peer.frames(1, REQUEST)
        peer.send(*[[DATA, 1, DOWN, at, bytes(PIECE)] for at in range(0, WINDOW // 2, PIECE)], [PING, 0])
        answer.set_result(await peer.frame())

    answer = asyncio.get_running_loop().create_future()
    async with raw_server(script) as port, channel_to(port) as channel:
        stream = channel.stream("stream_in_session", {})
        await anext(stream)
        assert await answer == [PONG]
        await stream.aclose()


# Giving up


async def test_vanished(family: Family, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """If a client does not return, calls that wait for it are cancelled after a time, and a command runs to its end."""
    monkeypatch.setattr(server_channel, "_SWEEP", 0.02)
    async with serving(Limits(result_seconds=0.3), session=True) as served:
        async with raw_client(served.port) as peer:
            peer.send(request(1, "stream_in_session", bash("head -c 50000000 /dev/zero | tr '\\0' x", timeout=60)))
            peer.send(request(2, "upload", {"target_path": str(tmp_path / "x")}))
            peer.send(request(3, "write_file", 100_000))
            peer.send(request(4, "execute", {"command": f"sleep 1; echo > {tmp_path}/done", "shell": True}))
            await until_async(lambda: served.running == 4)
        await until_async(lambda: served.running == 1)
        await until_async(lambda: not served.registry.channels)
        assert (tmp_path / "done").exists() and not (tmp_path / "x").exists()
        assert served.service.in_flight == 0
        async with channel_to(served.port) as channel:
            assert (await channel.call("run_in_session", bash("echo y")))["output"].strip() == "y"
