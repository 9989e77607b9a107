"""How much is under way, what it costs the others, and what is left when it is given up."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from swerex_c.exceptions import ProtocolError
from swerex_c.remote.client.calls import ClientChannel
from swerex_c.remote.client.frames import Address, WireClient
from swerex_c.remote.server import calls as server_channel
from swerex_c.remote.server.limits import Limits
from swerex_c.remote.wire.protocol import ANSWER, CREDIT, DATA, DOWN, END, PIECE, PING, PONG, RESULT, UP, WINDOW
from swerex_c.remote.wire.streams import Receiver, Sender
from tests.support.frames_tools import (
    SESSION,
    Peer,
    Proxy,
    Served,
    bash,
    channel_to,
    client,
    memory_of,
    open_files,
    raw_client,
    raw_server,
    request,
    serving,
)
from tests.support.processes import Family
from tests.support.server_process import KEY as PROCESS_KEY
from tests.support.server_process import open_files as open_files_of
from tests.support.server_process import serving as server_process
from tests.support.wait import until, until_async

pytestmark = [pytest.mark.usefixtures("family"), pytest.mark.slow]


@pytest.fixture
async def served(family: Family) -> AsyncIterator[Served]:
    async with serving(session=True) as server:
        yield server


INTERRUPT = {"action_type": "bash_interrupt", "session": "default", "timeout": 5}


def running(words: str) -> bool:
    """Whether a process with these words in its command is there."""
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if words.encode() in Path(entry.path, "cmdline").read_bytes().replace(b"\0", b" "):
                    return True
    return False


async def read(channel: ClientChannel, command: str, pause: float = 0.0, **more: Any) -> tuple[int, Any]:
    """The bytes of a stream, and its answer."""
    size, answer = 0, None
    async for item in channel.stream("stream_in_session", bash(command, **more)):
        if isinstance(item, bytes):
            size += len(item)
            if pause:
                await asyncio.sleep(pause)
        else:
            answer = item
    return size, answer


# Windows


class Line:
    """A sink that keeps what is sent, or takes nothing for a while."""

    def __init__(self) -> None:
        self.paused = False
        self.pieces: list[tuple[int, bytes]] = []
        self.frames: list[Any] = []
        self.waiting: list[Callable[[], None]] = []

    def send(self, frame: Any) -> None:
        self.frames.append(frame)

    def send_piece(self, exchange: int, lane: int, offset: int, piece: memoryview) -> None:
        self.pieces.append((offset, bytes(piece)))

    def wait_for_room(self, pump: Callable[[], None]) -> None:
        self.waiting.append(pump)

    @property
    def bytes(self) -> bytes:
        """What came, if it came in order."""
        at = self.pieces[0][0] if self.pieces else 0
        for offset, piece in self.pieces:
            assert offset == at
            at += len(piece)
        return b"".join(piece for _, piece in self.pieces)


def test_sender_keeps_to_its_window() -> None:
    data = bytes(range(256)) * (WINDOW // 256 * 2)
    sender, line = Sender(1, UP), Line()
    sender.attach(line)
    sender.write(data)
    sender.finish()
    assert WINDOW <= len(line.bytes) < WINDOW + PIECE
    assert line.frames == []
    for credit in range(0, len(data), 100_003):
        sender.credit(min(credit, len(line.bytes)))
        assert len(line.bytes) < sender._done + WINDOW + PIECE
    sender.credit(len(data))
    assert line.bytes == data
    assert line.frames == [[END, 1, UP, len(data)]]
    assert sender.held == 0


@pytest.mark.parametrize("credit_comes_first", [False, True])
@pytest.mark.parametrize("written", [7, PIECE, 3 * PIECE + 5])
async def test_another_connection_goes_on_after_the_last_credit(written: int, credit_comes_first: bool) -> None:
    """The receiver drops what it has, whether the credit that was lost comes before the first piece or not."""
    data = os.urandom(written)
    for taken in range(0, written + 1, max(1, written // 7)):
        sender, first, second = Sender(1, UP), Line(), Line()
        receiver = Receiver(1, UP)
        pieces = receiver.pieces()
        sender.attach(first)
        for start in range(0, written, 100_000):
            sender.write(data[start : start + 100_000])
        sender.finish()
        got = b""
        for offset, piece in first.pieces:
            if offset + len(piece) <= taken:
                receiver.data(offset, piece)
                got += await anext(pieces)
        sender.credit(taken // 2)
        sender.detach()
        second.paused = True
        sender.attach(second)
        assert not second.pieces
        if credit_comes_first:
            sender.credit(len(got))
        second.paused = False
        for pump in second.waiting:
            pump()
        assert second.frames == [[END, 1, UP, written]]
        for offset, piece in second.pieces:
            receiver.data(offset, piece)
            while receiver._waiting:
                got += await anext(pieces)
        receiver.end(written)
        assert got == data
        sender.credit(written)
        assert sender.held == 0
        for wrong in (written + 1, 1.0, None):
            with pytest.raises(ProtocolError):
                sender.credit(wrong)  # type: ignore[arg-type]


def test_many_small_pieces_take_no_longer_each() -> None:
    sender, line = Sender(1, DOWN), Line()
    sender.attach(line)
    begin = time.process_time()
    for _ in range(100_000):
        sender.write(b"x\n")
    assert time.process_time() - begin < 8  # 0.2 on an idle machine
    assert len(line.pieces) == 100_000


async def test_receiver_wants_no_more_than_its_window() -> None:
    receiver, line = Receiver(1, DOWN), Line()
    pieces = receiver.pieces()
    receiver.attach(line)
    piece = bytes(PIECE)
    at = 0
    while at <= WINDOW:
        receiver.data(at, piece)
        at += PIECE
    with pytest.raises(ProtocolError):
        receiver.data(at, piece)
    while receiver._waiting:
        await anext(pieces)
    assert line.frames and all(frame[0] == CREDIT for frame in line.frames)
    receiver.data(at, piece)


async def test_server_sends_no_more_than_the_window(served: Served) -> None:
    """Without credit a stream, and a long answer, stop after the window; other calls of the client go on."""
    stream = bash("head -c 20000000 /dev/zero | tr '\\0' x")
    answer = {"command": "head -c 20000000 /dev/zero | tr '\\0' x", "shell": True}
    async with raw_client(served.port) as peer:
        peer.send(request(1, "stream_in_session", stream), request(2, "execute", answer))
        got: dict[tuple[int, int], int] = {(1, DOWN): 0, (2, ANSWER): 0}
        with contextlib.suppress(TimeoutError):
            while (frame := await peer.frame(30 if min(got.values()) < WINDOW - 1 else 0.3)) is not None:
                assert frame[0] == DATA
                got[frame[1], frame[2]] += len(frame[4])
        assert all(WINDOW - 1 <= size < WINDOW + PIECE for size in got.values()), got
        peer.send(request(3))
        assert (await peer.answer(3))[0] == RESULT
        open_ones = {1, 2}
        while open_ones:
            peer.send(*[[CREDIT, *lane, size] for lane, size in got.items()])
            frame = await peer.frame()
            if frame[0] == DATA:
                lane = (frame[1], frame[2])
                got[lane] = got.get(lane, 0) + len(frame[4])
            elif frame[0] == RESULT:
                open_ones.discard(frame[1])
        assert got[1, DOWN] == 20_000_000 < got[2, ANSWER] < 20_000_100


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
                peer.send([RESULT, 1, {}])
            elif frame[0] == PING:
                peer.send([PONG])

    async with raw_server(script) as port, channel_to(port) as channel:
        copying = asyncio.create_task(channel.upload(str(source), "/x"))
        await stopped.wait()
        assert WINDOW <= got < WINDOW + PIECE
        await asyncio.wait_for(copying, 30)
        assert got > 20_000_000


async def test_slow_reader(served: Served) -> None:
    """Somebody who takes his time gets everything, and the answer after it."""
    async with channel_to(served.port) as channel:
        size, answer = await read(channel, "seq 1000000", pause=0.001)
        assert size >= 6_888_896
        assert answer["exit_code"] == 0


async def test_slow_line(served: Served) -> None:
    """Answers do not overtake the ends of their streams when the line is full."""
    async with Proxy(served.port) as proxy, channel_to(proxy.port) as channel:
        for i in range(6):
            await channel.call("create_session", {**SESSION, "session": f"s{i}"})
        proxy.rate = 40e6
        command = "head -c 2000000 /dev/zero | tr '\\0' x; echo"
        streams = [read(channel, command, session=f"s{i}") for i in range(6)]
        long = {"command": command, "shell": True}
        answers = await asyncio.gather(*streams, *[channel.call("execute", long) for _ in range(3)])
        for size, answer in answers[:6]:
            assert size in (2_000_001, 2_000_002) and answer["exit_code"] == 0
        assert all(answer["stdout"] == "x" * 2_000_000 + "\n" for answer in answers[6:])


@pytest.mark.idle
async def test_streams_stall_nobody(served: Served) -> None:
    """Beside many streams that are read slowly, or not at all, small calls are answered at once."""
    async with channel_to(served.port) as channel, channel_to(served.port) as other:
        streams = []
        for i in range(8):
            await channel.call("create_session", {**SESSION, "session": f"s{i}"})
            action = bash("while :; do head -c 1000000 /dev/zero | tr '\\0' x; done", session=f"s{i}", timeout=60)
            streams.append(channel.stream("stream_in_session", action))
        readers = [asyncio.ensure_future(anext(stream)) for stream in streams]
        await asyncio.gather(*readers)
        slowest = 0.0
        for one in (channel, other):
            for _ in range(50):
                begin = time.perf_counter()
                await one.call("is_alive", {})
                slowest = max(slowest, time.perf_counter() - begin)
                await asyncio.sleep(0.005)
        assert slowest < 0.25
        for stream in streams:
            await stream.aclose()
        await until_async(lambda: served.running == 0)


async def test_memory_of_a_long_stream(family: Family, tmp_path: Path) -> None:
    """200 MB through a stream with a slow reader: nothing but what the session itself keeps of it, for its answer.
    200 MB up and down: next to nothing."""
    with server_process(tmp_path / "log") as server:
        wire = WireClient(Address(port=server.port, headers={"X-API-Key": PROCESS_KEY}))
        channel = await wire.own_channel(long=True)
        await channel.call("create_session", SESSION)
        await read(channel, "seq 1000")
        here, there = memory_of(os.getpid()), memory_of(server.process.pid)
        most = most_there = 0
        size = 0
        async for item in channel.stream(
            "stream_in_session", bash("head -c 200000000 /dev/zero | tr '\\0' x", timeout=150)
        ):
            if isinstance(item, bytes):
                if size // 10_000_000 != (size + len(item)) // 10_000_000:
                    await asyncio.sleep(0.02)
                    most = max(most, memory_of(os.getpid()) - here)
                    most_there = max(most_there, memory_of(server.process.pid) - there)
                size += len(item)
        assert size == 200_000_000
        assert most < 60_000_000
        assert most_there < 650_000_000  # the output, and while the answer is made its bytes, its text and the message
        await channel.call("is_alive", {})

        source = tmp_path / "source"
        with open(source, "wb") as file:
            file.truncate(200_000_000)
        here, there = memory_of(os.getpid()), memory_of(server.process.pid)
        for copy in (channel.upload, channel.download):
            copying = asyncio.create_task(copy(str(source), str(tmp_path / copy.__name__)))
            while not copying.done():
                most = max(most, memory_of(server.process.pid) - there, memory_of(os.getpid()) - here)
                await asyncio.sleep(0.01)
            await copying
            assert (tmp_path / copy.__name__).stat().st_size == 200_000_000
            (tmp_path / copy.__name__).unlink()
        assert most < 60_000_000
        await wire.close()


# Giving up


async def test_cancelled_calls(served: Served) -> None:
    """A call that nobody waits for ends at the server; so does its process. What a session runs goes on there, as it
    does where there is no server, until it is interrupted."""
    async with channel_to(served.port) as channel:
        payload: dict[str, Any] = {"command": "sleep 4711.01", "shell": True}
        for wait in (0.0, 0.1):
            call = asyncio.create_task(channel.call("execute", payload))
            await asyncio.sleep(wait)
            if wait:
                await until_async(lambda: running("sleep 4711.01"))
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            await until_async(lambda: served.running == 0 and not running("sleep 4711.01"))
        call = asyncio.create_task(channel.call("run_in_session", bash("sleep 4711.01", timeout=60)))
        await until_async(lambda: running("sleep 4711.01"))
        call.cancel()
        await until_async(lambda: served.running == 0)
        await channel.call("run_in_session", INTERRUPT)
        await until_async(lambda: not running("sleep 4711.01"))
        assert (await channel.call("run_in_session", bash("echo y")))["output"].strip() == "y"
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(channel.call("execute", {"command": "sleep 4711.01", "shell": True}), 0.2)
        await until_async(lambda: served.running == 0 and not running("sleep 4711.01"))
        assert not channel._calls
        await channel.call("is_alive", {})
    await until_async(lambda: not served.registry.channels)


async def test_cancelled_streams(served: Served) -> None:
    """By leaving the loop, by closing, by cancelling who reads; while it waits for credit, too."""
    async with channel_to(served.port) as channel:
        for command in ("echo y; sleep 4711.02", "head -c 50000000 /dev/zero | tr '\\0' x; sleep 4711.02"):
            stream = channel.stream("stream_in_session", bash(command, timeout=60))
            await anext(stream)
            await asyncio.sleep(0.2)
            await stream.aclose()
            await until_async(lambda: served.running == 0 and running("sleep 4711.02"))
            await channel.call("run_in_session", INTERRUPT)

            reader = asyncio.create_task(read(channel, command, timeout=60))
            await until_async(lambda: served.running == 1)
            await asyncio.sleep(0.1)
            reader.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reader
            await until_async(lambda: served.running == 0 and running("sleep 4711.02"))
            await channel.call("run_in_session", INTERRUPT)
            await until_async(lambda: not running("sleep 4711.02"))
            assert (await channel.call("run_in_session", bash("echo y")))["output"].strip() == "y"
        assert not channel._calls


async def test_cancelled_before_its_answer_was_taken(served: Served) -> None:
    """The rest of a long answer that nobody wants is dropped."""
    async with Proxy(served.port) as proxy, channel_to(proxy.port) as channel:
        await channel.call("is_alive", {})
        proxy.stalled = True
        payload = {"command": "head -c 30000000 /dev/zero | tr '\\0' x", "shell": True}
        proxy.stalled = False
        call = asyncio.create_task(channel.call("execute", payload))
        await until_async(lambda: any(c.answer is not None for c in channel._calls.values()))
        call.cancel()
        await until_async(lambda: served.calls == 0)


async def test_said_good_bye(served: Served) -> None:
    """A client that closes in the middle of everything leaves nothing running."""
    async with channel_to(served.port) as channel:
        calls = [asyncio.create_task(channel.call("execute", {"command": "sleep 4711.03", "shell": True}))]
        calls.append(asyncio.create_task(read(channel, "head -c 50000000 /dev/zero | tr '\\0' x", pause=10)))  # type: ignore[arg-type]
        await until_async(lambda: served.running == 2 and running("sleep 4711.03"))
        await asyncio.sleep(0.2)
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    await until_async(lambda: not running("sleep 4711.03"))
    assert not served.registry.channels and not served.registry.connections
    await until_async(lambda: served.service.in_flight == 0)


async def test_vanished(family: Family, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of a client that never comes again, what waits for it ends after a time; a command runs to its end."""
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


# Loops


@contextlib.contextmanager
def in_a_thread(limits: Limits | None = None) -> Iterator[Served]:
    """A server whose loop is in another thread."""
    ready = threading.Event()
    found: list[Any] = []

    def run() -> None:
        async def main() -> None:
            async with serving(limits, session=True) as served:
                end = asyncio.Event()
                found.extend([served, end, asyncio.get_running_loop()])
                ready.set()
                await end.wait()

        asyncio.run(main())

    thread = threading.Thread(target=run)
    thread.start()
    assert ready.wait(20)
    served, end, loop = found
    try:
        yield served
    finally:
        loop.call_soon_threadsafe(end.set)
        thread.join(20)


def test_loop_that_ends_in_the_middle(family: Family, tmp_path: Path) -> None:
    """`asyncio.run` over a call, a stream, an upload: the command ends, and nothing is left at either end."""
    source = tmp_path / "source"
    with open(source, "wb") as file:
        file.truncate(1 << 30)
    with in_a_thread() as served:
        wire = client(served.port)

        async def start(what: str) -> None:
            channel = await wire.own_channel(long=True)
            if what == "call":
                asyncio.ensure_future(channel.call("execute", {"command": "sleep 4711.04", "shell": True}))
            elif what == "stream":
                asyncio.ensure_future(read(channel, "head -c 50000000 /dev/zero | tr '\\0' x", pause=5))
            else:
                asyncio.ensure_future(getattr(channel, what)(str(source), str(tmp_path / "to" / "target")))
            await until_async(lambda: served.running == 1)
            await asyncio.sleep(0.1)

        asyncio.run(start("call"))
        until(lambda: served.running == 0)
        files, threads = open_files(), threading.active_count()
        for what in ("call", "stream", "upload", "download"):
            asyncio.run(start(what))
            until(lambda: not served.registry.connections and served.service.in_flight == 0)
            until(lambda: not running("sleep 4711.04"))
            until(lambda: threading.active_count() <= threads)
            assert not (tmp_path / "to").exists() or not os.listdir(tmp_path / "to")
        gc.collect()
        until(lambda: open_files() <= files)
        until(lambda: not served.registry.channels)

        async def after() -> Any:
            return await (await wire.own_channel(long=True)).call("run_in_session", bash("echo y"))

        assert asyncio.run(after())["output"].strip() == "y"


@pytest.mark.parametrize("runs", [200, pytest.param(5000, marks=[pytest.mark.idle])])
def test_many_loops(family: Family, tmp_path: Path, runs: int) -> None:
    """A loop for each call: no descriptor, thread, channel or connection is left at either end."""
    with server_process(tmp_path / "log") as server:
        wire = WireClient(Address(port=server.port, headers={"X-API-Key": PROCESS_KEY}))

        async def one() -> None:
            await wire.run(lambda channel: channel.call("is_alive", {}))

        for _ in range(5):
            asyncio.run(one())
        files, theirs, threads = open_files(), open_files_of(server.process.pid), threading.active_count()
        memory = memory_of(server.process.pid)
        for _ in range(runs):
            asyncio.run(one())
        gc.collect()
        assert open_files() <= files
        assert threading.active_count() <= threads
        until(lambda: open_files_of(server.process.pid) <= theirs)
        assert memory_of(server.process.pid) - memory < 10_000_000
        assert not wire._own


def test_loops_in_threads(family: Family) -> None:
    """One client, used by the loops of many threads at once, each loop for some calls."""
    with in_a_thread() as served:
        wire = client(served.port)
        errors: list[BaseException] = []

        def work(i: int) -> None:
            async def some() -> None:
                payload = {"command": f"echo {i}", "shell": True}
                calls = [wire.run(lambda channel: channel.call("execute", payload)) for _ in range(5)]
                for answer in await asyncio.gather(*calls):
                    assert answer["stdout"] == f"{i}\n"

            try:
                for _ in range(5):
                    asyncio.run(some())
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert not errors
        assert len(served.registry.channels) == 1


async def test_nothing_left(served: Served) -> None:
    """After all kinds of calls, and the client's end: no task, no timer, no channel."""
    before = len(asyncio.all_tasks())
    async with channel_to(served.port) as channel:
        await asyncio.gather(*[channel.call("is_alive", {}) for _ in range(500)])
        await channel.call("execute", {"command": "head -c 9000000 /dev/zero | tr '\\0' x", "shell": True})
        await read(channel, "seq 100000")
        await channel.call("is_alive", {})
        assert served.calls == 0
        assert not channel._calls
    await until_async(lambda: not served.registry.connections)
    assert not served.registry.channels and served.service.in_flight == 0
    await until_async(lambda: len(asyncio.all_tasks()) <= before)


async def test_a_stream_that_is_left_early_leaves_no_error(served: Served) -> None:
    """Nothing is told of an exception that nobody caught, which `serving` checks, and the session goes on."""
    async with channel_to(served.port) as channel:
        stream = channel.stream("stream_in_session", bash("printf a; sleep 60"))
        async for _ in stream:
            break
        await stream.aclose()  # type: ignore[attr-defined]
        del stream
        gc.collect()
        await until_async(lambda: not served.running)
        await channel.call("run_in_session", INTERRUPT)
        assert (await channel.call("run_in_session", bash("echo b")))["output"].strip() == "b"
