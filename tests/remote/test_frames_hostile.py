"""Invalid frames in both directions: a typed error for the peer, and no effect on others."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from swerex_c.exceptions import ProtocolError, SwerexException
from swerex_c.remote.client import calls as client_channel
from swerex_c.remote.client.base import NotFrames
from swerex_c.remote.client.calls import ClientChannel
from swerex_c.remote.server import calls as server_channel
from swerex_c.remote.server.limits import Limits
from swerex_c.remote.wire import protocol
from swerex_c.remote.wire.protocol import (
    ANSWER,
    CANCEL,
    CREDIT,
    DATA,
    DOWN,
    END,
    ERROR,
    GOODBYE,
    PING,
    PONG,
    REQUEST,
    RESULT,
    UP,
)
from tests.support.frames_tools import (
    SWITCHING,
    Peer,
    Served,
    channel_to,
    client,
    encode,
    keep_answering,
    raw_client,
    raw_server,
    request,
    serving,
)
from tests.support.processes import Family, memory_of
from tests.support.server_process import serving as server_process
from tests.support.wait import until_async

pytestmark = [pytest.mark.usefixtures("family", "reconnects_at_once")]

BIG = [-1, -(1 << 63), (1 << 63) - 1, (1 << 64) - 1]
ODD: list[Any] = [None, True, 1.5, float("nan"), "x", b"x", "x" * 5000, [], [[]], {}, {"a": []}]


# Clients


def arities() -> list[tuple[str, list[Any]]]:
    """Return each kind of frame with too few and too many members, and each member of a wrong type."""
    good: dict[int, list[Any]] = {
        REQUEST: request(2),
        CANCEL: [CANCEL, 1],
        RESULT: [RESULT, 1, 0, {}],
        ERROR: [ERROR, 1, 0, {}],
        DATA: [DATA, 1, UP, 0, b"x"],
        END: [END, 1, UP, 0],
        CREDIT: [CREDIT, 1, DOWN, 0],
        PING: [PING, 0],
        PONG: [PONG],
        GOODBYE: [GOODBYE, ""],
        10: [10],
        -1: [-1],
    }
    found: list[tuple[str, list[Any]]] = []
    for kind, frame in good.items():
        found += [(f"{kind} short", frame[:size]) for size in range(1, len(frame))]
        found.append((f"{kind} long", [*frame, *frame]))
        for at in range(len(frame)):
            found += [(f"{kind} at {at} {odd!r}", [*frame[:at], odd, *frame[at + 1 :]]) for odd in [*ODD, *BIG]]
    return found


async def test_wrong_frames(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every kind of frame, with every member odd, while an upload is open and while nothing is."""
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr(server_channel, "_SWEEP", 0.05)
    async with serving(Limits(result_seconds=0.1)) as served:
        for open_before in (False, True):
            for i, (_, frame) in enumerate(arities()):
                async with raw_client(served.port, name=struct.pack(">QQ", i, open_before)) as peer:
                    if open_before:
                        peer.send(request(1, "upload", {"target_path": "/nonexistent/x"}))
                    peer.send(frame)
                    peer.send([PING, 0])
                    while (answer := await peer.frame()) is not None and answer != [PONG]:
                        pass
                    peer.send([GOODBYE, ""])
        await until_async(lambda: not served.registry.connections and not served.registry.channels)
        assert served.service.in_flight == 0
        assert not any(record.exc_info or len(record.getMessage()) > 1000 for record in caplog.records)
        async with channel_to(served.port) as channel:
            await channel.call("is_alive", {})


@pytest.mark.parametrize(
    "frames",
    [
        [5], [-1], ["x"], [b"\x01\x05\x06\x07\x08"], [{}], [{"a": 1}], [None], [[]], [[[]]], [1.5],
        [[RESULT, 1, 0, {}]],
        [request(1, "execute", -1)],
        [request(1, "execute", 10), [DATA, 1, UP, 5, b"x"]],
        [request(1, "upload", {"target_path": "/x"}), [DATA, 1, UP, 1, b"x"]],
        [request(1, "upload", {"target_path": "/x"}), [END, 1, UP, 7]],
        [request(1, "upload", {"target_path": "/x"}), [END, 1, UP, 0], [DATA, 1, UP, 0, b"x"]],
        [request(1, "upload", {"target_path": "/x"}), [DATA, 1, UP, 0, "text"]],
        [request(1, "upload", {"target_path": "/x"}), [DATA, 1, UP, 0, []]],
        [request(0)], [request(-5)], [request("1")], [request(1.0)], [request(1, 5)], [request(1, None)],
        [request(1, floor="x")],
        [b"\xff\xff\xff\xff"], [struct.pack(">I", protocol.MAX_FRAME + 1) + b"\x90"], [b"\x00\x00\x00\x00"],
        [b"\x00\x00\x00\x01\xc1"], [b"\x00\x00\x00\x05\xdd\xff\xff\xff\xff"], [b"\x00\x00\x00\x02\x90\x90"],
        [b"\x00\x00\x01\x00" + b"\x91" * 256], [b"\x00\x00\x00\x02\xa1\xff"],
        [b"\x00\x00\x00\x03\xd4\x01\x02"], [random.Random(1).randbytes(5000)], [b"GET / HTTP/1.1\r\n\r\n"],
    ],
    ids=lambda frames: repr(frames)[:60],
)  # fmt: skip
async def test_refused(served: Served, frames: list[Any]) -> None:
    """Frames after which there is no going on: the connection ends. So it does for garbage and what is too long."""
    async with raw_client(served.port) as bad:
        bad.send(*frames)
        bad.send(request(100))
        while (frame := await bad.frame()) is not None:
            assert frame[:2] != [RESULT, 100]
    async with raw_client(served.port, name=bytes(16)) as good:
        good.send(request(1))
        assert (await good.answer(1))[0] == RESULT


async def test_after_goodbye(served: Served) -> None:
    """Frames that follow a GOODBYE are ignored."""
    async with raw_client(served.port) as peer:
        peer.send([GOODBYE, "done"], request(1), [DATA, 1, UP, 0, b"x"])
        await peer.ended()
    await until_async(lambda: not served.registry.connections)
    assert not served.registry.channels


async def test_credit_beyond(served: Served) -> None:
    """Credit for what was never sent ends the connection; credit twice or backwards is nothing."""
    command = {"command": "seq 100000", "action_type": "bash", "timeout": 10, "check": "silent"}
    async with raw_client(served.port) as peer:
        peer.send(request(2, "stream_in_session", command))
        first = await peer.frames(2, DATA)
        size = len(first[4])
        peer.send(*[[CREDIT, 2, DOWN, offset] for offset in (0, size, 5, -7, size)])
        assert (await peer.answer(2))[0] == RESULT
        peer.send(request(3, "stream_in_session", command))
        await peer.frames(3, DATA)
        peer.send([CREDIT, 3, DOWN, 1 << 40])
        await peer.ended()


async def test_requests_with_bad_payloads(served: Served) -> None:
    """They are answered with errors of ours; the connection stays."""
    payloads: list[Any] = [None, "x", [], {}, {"command": 5}, {"command": []}, {"command": ["\0"]}, b"", {"x": {}}]
    methods = ["execute", "run_in_session", "read_file", "upload", "download", "stream_in_session", "nothing", "", "_x"]
    async with channel_to(served.port) as channel, raw_client(served.port) as peer:
        number = 0
        for method in [*methods, "__class__", "close_session", "create_session", "write_file", "\0" * 1000]:
            for payload in payloads:
                number += 1
                peer.send(request(number, method, payload))
                answer = await peer.answer(number)
                assert answer[0] == ERROR, (method, payload)
                assert "swerex" in answer[-1]["class_path"], (method, payload, answer)
        peer.send(request(number + 1, "x" * 60_000, {}))
        assert len((await peer.answer(number + 1))[-1]["message"]) < 1000
        await channel.call("is_alive", {})


# Servers


def long(data: bytes, size: Any) -> Callable[[list[Any]], list[Any]]:
    """Return an answer that comes as a stream."""
    return lambda asked: [[DATA, asked[1], ANSWER, 0, data], [RESULT, asked[1], 0, size]]


def one(*frame: Any) -> Callable[[list[Any]], list[Any]]:
    """Return an answer whose second member is the request's number."""
    return lambda asked: [[frame[0], asked[1], *frame[1:]]]


ANSWERS: dict[str, Callable[[list[Any]], list[Any]]] = {
    "too long": long(encode({}) + b"x", 5),
    "negative size": long(b"abc", -3),
    "no size": one(RESULT, 0, 0),
    "no payload": long(b"\xff\xfe\xfd", 3),
    "a number": long(encode(5), len(encode(5))),
    "an error that is none": lambda asked: [[DATA, asked[1], ANSWER, 0, b"abc"], [ERROR, asked[1], 0, 3]],
    "a text": lambda asked: [[DATA, asked[1], ANSWER, 0, "abc"]],
    "a member too many": one(RESULT, 0, {}, 5),
    "result is a list": one(RESULT, 0, []),
    "result is nothing": one(RESULT, 0, None),
    "result is missing": one(RESULT, 0),
    "result as bytes": lambda asked: [b"\x00\x00\x00\x05\xc4\x03\x03\x01\x07"],
    "gap": lambda asked: [[DATA, asked[1], ANSWER, 5, b"x"]],
    "negative place": lambda asked: [[DATA, asked[1], ANSWER, -5, b"x"]],
    "unhashable number": lambda asked: [[RESULT, [], 0, {}]],
    "a second head": lambda asked: [SWITCHING],
    "a request": lambda asked: [request(1)],
    "unknown kind": lambda asked: [[99, 1]],
    "no kind": lambda asked: [[]],
    "no list": lambda asked: [5],
    "garbage": lambda asked: [random.Random(5).randbytes(1000)],
    "a frame too long": lambda asked: [b"\xff\xff\xff\xff"],
    "nested": lambda asked: [b"\x00\x00\x01\x00" + b"\x91" * 256],
}


@pytest.mark.parametrize("what", ANSWERS)
async def test_wrong_answers(what: str) -> None:
    """The call, and those beside it, end with ProtocolError, and at once."""
    async with raw_server(lambda peer: keep_answering(peer, ANSWERS[what])) as port, channel_to(port, 30) as channel:
        calls = [channel.call("is_alive", {}), channel.call("is_alive", {"x": "y" * 100_000})]
        answers = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 30)
        assert isinstance(answers[0], ProtocolError), answers
        assert isinstance(answers[1], ProtocolError), answers


async def test_answers_to_others() -> None:
    """Answers and bytes for calls that there are not are not looked at; the call's own counts."""

    def respond(asked: list[Any]) -> list[Any]:
        others = [[RESULT, n, 0, 5] for n in (0, 99, -1, 1 << 63, "x", None)]
        others += [[DATA, 99, lane, 7, "x"] for lane in (UP, DOWN, ANSWER, "x")]
        others += [[CREDIT, 99, 0, 1 << 60], [PING, 0], [PONG], [ERROR, 99, 0, None]]
        return [*others, [RESULT, asked[1], 0, {"is_alive": True}]]

    async with raw_server(lambda peer: keep_answering(peer, respond)) as port, channel_to(port) as channel:
        for _ in range(3):
            assert await channel.call("is_alive", {}, 5) == {"is_alive": True}


PARTS: dict[str, Callable[[list[Any]], list[Any]]] = {
    "nothing": lambda asked: [],
    "a part": long(b"abc", 5),
    "a part of something huge": long(b"abc", 1 << 63),
    "its size": one(RESULT, 0, 5),
    "bytes that nobody asked for": lambda asked: [[DATA, asked[1], DOWN, 0, b"abcde"], [RESULT, asked[1], 0, 5]],
}


@pytest.mark.parametrize("what", PARTS)
async def test_no_answer(what: str) -> None:
    """A server that says nothing more: the call ends in its time."""
    async with raw_server(lambda peer: keep_answering(peer, PARTS[what])) as port, channel_to(port) as channel:
        with pytest.raises(SwerexException, match="0.2 seconds"):
            await asyncio.wait_for(channel.call("is_alive", {}, 0.2), 30)
        assert not channel._calls


STREAMS: dict[str, list[list[Any]]] = {
    "gap": [[DATA, 1, DOWN, 1, b"x"]],
    "partly twice": [[DATA, 1, DOWN, 0, b"x"], [DATA, 1, DOWN, 0, b"xy"]],
    "before its beginning": [[DATA, 1, DOWN, -1, b"x"]],
    "text": [[DATA, 1, DOWN, 0, "x"]],
    "list": [[DATA, 1, DOWN, 0, []]],
    "an end": [[DATA, 1, DOWN, 0, b"x"], [END, 1, DOWN, 1]],
    "longer than announced": [[RESULT, 1, 1, {}], [DATA, 1, DOWN, 0, b"xy"]],
    "too fast": [[DATA, 1, DOWN, i * 250_000, bytes(250_000)] for i in range(40)],
    "longer than announced at its end": [[DATA, 1, DOWN, 0, b"x"], [RESULT, 1, 0, {}]],
    "no answer at the end": [[RESULT, 1, 0, []]],
}


@pytest.mark.parametrize("what", STREAMS)
async def test_wrong_streams(what: str) -> None:
    async def read(channel: ClientChannel) -> None:
        async for _ in channel.stream("stream_in_session", {}):
            await asyncio.sleep(0.02)

    def respond(asked: list[Any]) -> list[Any]:
        return STREAMS[what]

    async with raw_server(lambda peer: keep_answering(peer, respond)) as port, channel_to(port, 0.2) as channel:
        with pytest.raises(ProtocolError):
            await asyncio.wait_for(read(channel), 30)


HEADS: dict[str, bytes] = {
    "nothing": b"",
    "ssh": b"SSH-2.0-OpenSSH_9.2\r\n",
    "garbage": bytes(range(256)) * 4,
    "garbage after 101": SWITCHING + bytes(range(200, 250)) * 10,
    "text after 101": SWITCHING + b"hello, world",
    "another protocol": SWITCHING.replace(b"swerex-frames/1", b"websocket"),
    "status of 5000 digits": b"HTTP/1.1 " + b"1" * 5000 + b" x\r\n\r\n",
    "no status": b"HTTP/1.1\r\n\r\n",
    "empty head": b"\r\n\r\n",
    "endless head": b"HTTP/1.1 101 Switching Protocols\r\n" + b"X: y\r\n" * 20_000,
    "endless line": b"HTTP/1.1 101 " + b"x" * 200_000,
    "not found": b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n",
    "refused": b"HTTP/1.1 401 Unauthorized\r\n\r\n",
    "busy": b"HTTP/1.1 503 Busy\r\n\r\n",
    "limit": b"HTTP/1.1 511 Limit\r\n\r\n",
    "another version": SWITCHING.replace(b"swerex-frames/1", b"swerex-frames/2"),
    "no server": SWITCHING.replace(b"X-Swerex-Server", b"X-Server"),
    "no channel": SWITCHING.replace(b"X-Swerex-Channel", b"X-Channel"),
    "good-bye first": SWITCHING + encode([GOODBYE, "full"]),
    "good-bye of nothing": SWITCHING + encode([GOODBYE, None]),
}


@pytest.mark.parametrize("what", HEADS)
@pytest.mark.parametrize("after", ["close", "stay"])
async def test_wrong_beginnings(what: str, after: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call ends with an error of ours, or with `NotFrames`, upon which a runtime tries HTTP; none hangs."""
    monkeypatch.setattr(client_channel, "_CONNECT_SECONDS", 0.2)
    connections = 0

    async def script(peer: Peer) -> None:
        nonlocal connections
        connections += 1
        await peer.reader.readuntil(b"\r\n\r\n")
        peer.writer.write(HEADS[what])
        if after == "stay":
            await peer.reader.read()

    async with raw_server(script, upgrades=False) as port, channel_to(port, 0.3) as channel:
        with pytest.raises((SwerexException, NotFrames)):
            await asyncio.wait_for(channel.call("is_alive", {}), 30)
        with pytest.raises((SwerexException, NotFrames)):
            await asyncio.wait_for(channel.call("is_alive", {}, patient=False), 30)
        assert connections < 100


# Too much of it


@pytest.mark.idle
@pytest.mark.slow
async def test_floods(family: Family, tmp_path: Path) -> None:
    """100,000 requests in one breath, from a client that reads its answers and from one that does not: others are
    answered at once meanwhile, and the server's memory stays within bounds."""
    with server_process(tmp_path / "log") as server:
        wire = client(server.port)
        channel = await wire.own_channel(long=True)
        await channel.call("is_alive", {})
        before = memory_of(server.process.pid)
        flood = b"".join(encode(request(number)) for number in range(1, 100_001))
        for reads in (True, False):
            async with raw_client(server.port, os.urandom(16)) as peer:
                slowest = 0.0
                answers = 0

                async def read(peer: Peer = peer) -> None:
                    nonlocal answers
                    while answers < 100_000:  # in small pieces, since the other client is in this loop, too
                        frames = peer.decoder.feed(await peer.reader.read(1 << 14))
                        answers += sum(frame[0] in (RESULT, ERROR) for frame in frames)

                began = time.perf_counter()
                peer.writer.write(flood)
                reader = asyncio.create_task(read() if reads else asyncio.sleep(1.5))
                while not reader.done():
                    begin = time.perf_counter()
                    await channel.call("is_alive", {})
                    slowest = max(slowest, time.perf_counter() - begin)
                    await asyncio.sleep(0.01)
                await reader
                assert answers == (100_000 if reads else 0)
                assert slowest < max(1.0, (time.perf_counter() - began) / 3)  # 0.006 on an idle machine
            assert memory_of(server.process.pid) - before < 60_000_000
        await channel.call("is_alive", {})
        await wire.close()
        assert "Traceback" not in server.said()
