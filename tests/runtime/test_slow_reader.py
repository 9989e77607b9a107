"""A reader of a stream that is slow, stops, or goes away: it gets every byte, in bounded memory; none waits for it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from swerex_c.exceptions import CommandTimeoutError, RuntimeClosedError
from swerex_c.runtime.abstract import BashObservation
from swerex_c.runtime.local import LocalRuntime
from swerex_c.runtime.remote import RemoteRuntime
from tests.support.frames_tools import serving
from tests.support.processes import command_lines, running, written_when_stuck
from tests.support.server_process import KEY
from tests.support.session import Session
from tests.support.wait import DEADLINE, settle, until, until_async

LIMIT = 1 << 20
NUMBERS = 400_000
COUNT = f"seq {NUMBERS}; (exit 4)"
"""2.7 MB."""
ENDLESS = "while :; do head -c 100000 /dev/zero | tr '\\0' x; done"


@pytest.fixture
async def session() -> AsyncIterator[Session]:
    """One of a runtime that keeps so little of an output that a reader is soon too far behind."""
    async with LocalRuntime(output_limit=LIMIT) as runtime:
        session = Session(runtime)
        await session.create()
        yield session


def writer_waits() -> bool:
    """Whether a program of the session is in the middle of a write to the terminal, which is full."""
    for pid in command_lines():
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/syscall").read_text().startswith("1 0x1 "):
                return True
    return False


async def read(stream: AsyncIterator[Any], slow: bool = False) -> tuple[str, BashObservation]:
    """All of a stream; a slow reader goes on only when the program that writes waits for that."""
    pieces: list[str] = []
    async for item in stream:
        if isinstance(item, str):
            if slow and not pieces:
                await until_async(writer_waits)
            if slow:
                await settle()
            pieces.append(item)
        else:
            return "".join(pieces), item
    raise AssertionError("a stream without an answer")


def expected(numbers: int) -> str:
    return "".join(f"{i}\n" for i in range(1, numbers + 1))


def stream_of(session: Session, command: str, **more: Any) -> AsyncIterator[Any]:
    return session.runtime.stream_in_session(session.action(command, **more))


async def works(session: Session) -> None:
    await session.gives("echo works; (exit 3)", "works\n", 3)


async def begin(session: Session, command: str = ENDLESS, **more: Any) -> AsyncIterator[Any]:
    """A stream that somebody has begun to read, and does not go on with: by now its program waits for that."""
    stream = stream_of(session, command, **more)
    assert isinstance(await anext(stream), str)
    await until_async(writer_waits)
    return stream


@contextlib.asynccontextmanager
async def behind_a_server(output_limit: int) -> AsyncIterator[RemoteRuntime]:
    async with serving() as server:
        server.place.runtime = LocalRuntime(output_limit=output_limit)
        async with RemoteRuntime(host="http://127.0.0.1", port=server.port, auth_token=KEY) as runtime:
            yield runtime


@pytest.mark.parametrize(
    ("make", "limit", "numbers"),
    [
        (LocalRuntime, LIMIT, NUMBERS),
        pytest.param(LocalRuntime, 1024, NUMBERS, marks=pytest.mark.slow),
        (behind_a_server, LIMIT, 1_000_000),  # none of those on the way keeps so much
    ],
)
async def test_every_byte_comes(make: Callable[..., Any], limit: int, numbers: int) -> None:
    """The limit is for the answer."""
    async with make(output_limit=limit) as runtime:
        session = Session(runtime)
        await session.create()
        stream = stream_of(session, f"seq {numbers}; (exit 4)")
        first = await anext(stream)
        (writer,) = running(f"seq {numbers}")
        assert await asyncio.to_thread(written_when_stuck, writer) < 0.8 * len(expected(numbers))
        rest, last = await read(stream, slow=True)
        text = first + rest
        assert text == expected(numbers)
        assert last.exit_code == 4
        dropped = f"\n[... {len(text) - limit} bytes of output were dropped here ...]\n"
        assert dropped in last.output and len(last.output) == limit + len(dropped)
        assert last.output_dropped == len(text) - limit
        assert last.output.startswith("1\n2\n") and last.output.endswith(f"\n{numbers}\n")
        await works(session)


@pytest.mark.slow
async def test_a_loop_that_stands_still(session: Session) -> None:
    text = ""
    async for piece in stream_of(session, COUNT):
        if isinstance(piece, str):
            if not text:
                until(writer_waits)  # the core goes on without this thread
            text += piece
    assert text == expected(NUMBERS)


def grown() -> int:
    """Bytes by which this process's memory has at most grown since the last call."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    Path("/proc/self/clear_refs").write_text("5")
    return int(status["VmHWM"].split()[0]) * 1024


@pytest.mark.slow
@pytest.mark.idle
async def test_memory_is_bounded(session: Session) -> None:
    command = "head -c 40000000 /dev/zero | tr '\\0' x"
    await read(stream_of(session, "seq 200000"))
    gc.collect()
    grown()
    before = grown()
    size = 0
    async for item in stream_of(session, command):
        if isinstance(item, str):
            if size // 10_000_000 != (size + len(item)) // 10_000_000 or not size:
                await asyncio.sleep(0.05)
            size += len(item)
    assert size == 40_000_000
    assert grown() - before < 8_000_000


async def test_its_timeout_holds(session: Session) -> None:
    stream = await begin(session, timeout=1.5)
    with pytest.raises(CommandTimeoutError, match="was not sent"):  # later than the timeout of the other
        await session.run("echo x", timeout=1.6)
    size = 0
    with pytest.raises(CommandTimeoutError) as caught:
        async for item in stream:
            assert not item.strip("x")
            size += len(item)
    assert LIMIT // 4 < size < LIMIT
    assert caught.value.output.endswith("x" * 1000)
    await session.interrupt()
    await works(session)


@pytest.mark.parametrize(
    ("command", "limits", "code"),
    [
        (ENDLESS, {"timeout": DEADLINE, "n_retry": 3}, 130),
        pytest.param("(trap '' INT HUP; yes)", {"timeout": 0.05, "n_retry": 2}, 137, marks=pytest.mark.slow),
    ],
    ids=["", "what ignores it is killed"],
)
async def test_an_interrupt_comes_through(session: Session, command: str, limits: dict[str, Any], code: int) -> None:
    stream = await begin(session, command)
    await session.interrupt(**limits)
    _, last = await read(stream)
    assert last.exit_code == code
    await works(session)


async def test_close(session: Session) -> None:
    stream = await begin(session)
    await session.close()
    with pytest.raises(RuntimeClosedError):
        await read(stream)
    await session.create()
    await works(session)


@pytest.mark.parametrize("how", ["closed", "forgotten"])
async def test_a_reader_that_goes_away(session: Session, how: str) -> None:
    """What it has left behind runs to its end, and the next command comes after that."""
    stream: Any = await begin(session, COUNT)
    if how == "closed":
        await stream.aclose()
    del stream
    gc.collect()
    await works(session)


@pytest.mark.slow
@pytest.mark.parametrize("pattern", ["399999", r"(3)9{5}\s"])
async def test_a_pattern_behind_it(session: Session, pattern: str) -> None:
    """A slow reader gets what comes before it."""
    stream = stream_of(session, COUNT + "; sleep 1000", expect=[pattern], check="ignore")
    text, last = await read(stream, slow=True)
    assert text.startswith(expected(NUMBERS - 2)) and len(text) <= len(expected(NUMBERS - 1))
    assert last.expect_string == pattern
    await session.interrupt()
    await works(session)


@pytest.mark.idle
@pytest.mark.slow
async def test_silence_of_what_waits_is_none(session: Session) -> None:
    stream = stream_of(session, COUNT, no_output_timeout=0.2)
    text = await anext(stream)
    assert isinstance(text, str)
    await asyncio.sleep(0.6)
    rest, last = await read(stream)
    assert text + rest == expected(NUMBERS) and last.exit_code == 4


@pytest.mark.idle
@pytest.mark.slow
async def test_short_commands_of_others(session: Session) -> None:
    """The calling thread, which waits by itself for a short command, does not turn for a terminal that is not read."""
    stream = await begin(session)
    before = time.process_time()
    with pytest.raises(Exception, match="was not sent"):
        await session.run("true", timeout=0.3)
    assert time.process_time() - before < 0.1
    await stream.aclose()  # type: ignore[attr-defined]
