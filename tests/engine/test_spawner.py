"""Programs and shells that are started beside others do not hold the event loop up."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

import pytest

from swerex_c import _core
from swerex_c.engine import spawner
from swerex_c.engine.completions import current_completions
from swerex_c.exceptions import RuntimeClosedError
from swerex_c.runtime.abstract import Command, CreateBashSessionRequest
from swerex_c.runtime.local import LocalRuntime
from tests.support.slow_start import Slow
from tests.support.wait import DEADLINE, settle, until_async

Replace = Callable[..., Slow]


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Replace:
    """Replace a class of the core by one whose start is slow: `slow("Process")`."""

    def replace(name: str, waits: bool = True) -> Slow:
        stand_in = Slow(getattr(_core, name), waits)
        monkeypatch.setattr(_core, name, stand_in)
        return stand_in

    return replace


@pytest.fixture
async def runtime() -> AsyncIterator[LocalRuntime]:
    async with LocalRuntime() as runtime:
        yield runtime


async def program(runtime: LocalRuntime, number: int) -> str:
    return (await runtime.execute(Command(command=["echo", str(number)]))).stdout


async def shell(runtime: LocalRuntime, number: int) -> str:
    name = f"s{number}"
    await runtime.create_session(CreateBashSessionRequest(session=name, startup_timeout=DEADLINE))
    return (await runtime.run(f"echo {number}", session=name)).output


@pytest.mark.parametrize(("kind", "use"), [("Process", program), ("Session", shell)])
async def test_what_starts_at_once_leaves_the_loop_alone(
    runtime: LocalRuntime, slow: Replace, kind: str, use: Callable[[LocalRuntime, int], Awaitable[str]]
) -> None:
    starts = slow(kind)
    with spawner.used():
        done = asyncio.gather(*(use(runtime, number) for number in range(4)))
        await starts.begun()
        starts.go_on.set()
        assert await done == [f"{number}\n" for number in range(4)]
    assert threading.get_ident() not in starts.threads


async def test_a_program_that_starts_alone_starts_here(runtime: LocalRuntime, slow: Replace) -> None:
    starts = slow("Process", waits=False)
    for _ in range(2):
        assert (await runtime.execute(Command(command=["true"]))).exit_code == 0
    assert starts.threads == [threading.get_ident()] * 2


async def test_a_program_beside_a_session_that_waits(runtime: LocalRuntime, slow: Replace) -> None:
    await runtime.create_session(CreateBashSessionRequest(startup_timeout=DEADLINE))
    waits = asyncio.ensure_future(runtime.run("read line; echo end"))
    await until_async(lambda: current_completions().pending)
    starts = slow("Process")
    done = asyncio.ensure_future(runtime.execute(Command(command=["true"])))
    await starts.begun()
    starts.go_on.set()
    assert (await done).exit_code == 0
    waits.cancel()
    assert threading.get_ident() not in starts.threads


async def test_a_caller_that_gives_up_leaves_nothing(runtime: LocalRuntime, slow: Replace) -> None:
    """Whether its start was under way or still waited for its turn."""
    starts = slow("Process")
    with spawner.used():
        calls = [asyncio.ensure_future(runtime.execute(Command(command=["sleep", "1000"]))) for _ in range(3)]
        await starts.begun()
        for call in calls:
            call.cancel()
        await settle()
        starts.go_on.set()
        assert all(isinstance(e, asyncio.CancelledError) for e in await asyncio.gather(*calls, return_exceptions=True))
    assert len(starts.threads) == 1, "those that waited were not started"
    assert not runtime._processes._running
    assert not current_completions().programs


async def test_a_shell_whose_caller_gives_up_is_ended(runtime: LocalRuntime, slow: Replace) -> None:
    await runtime.create_session(CreateBashSessionRequest(startup_timeout=60))  # opens what the loop and the core keep
    starts = slow("Session")
    before = len(os.listdir("/proc/self/fd"))
    request = CreateBashSessionRequest(session="given up", startup_timeout=DEADLINE)
    with spawner.used():
        made = asyncio.ensure_future(runtime.create_session(request))
        await starts.begun()
        made.cancel()
        starts.go_on.set()
        while not made.done():  # further cancellations do not cut the shell's end short
            await asyncio.sleep(0)
            made.cancel()
        with pytest.raises(asyncio.CancelledError):
            await made
    assert list(runtime.sessions) == ["default"]
    assert asyncio.all_tasks() == {asyncio.current_task()}
    await until_async(lambda: len(os.listdir("/proc/self/fd")) <= before)


async def test_a_runtime_that_is_closed_meanwhile_ends_what_starts(runtime: LocalRuntime, slow: Replace) -> None:
    starts = slow("Process")
    with spawner.used():
        call = asyncio.ensure_future(runtime.execute(Command(command=["sleep", "1000"])))
        await starts.begun()
        closing = asyncio.ensure_future(runtime.close())
        await settle()
        starts.go_on.set()
        await asyncio.wait_for(closing, DEADLINE)
        with pytest.raises(RuntimeClosedError):
            await asyncio.wait_for(call, DEADLINE)


async def test_errors_of_a_start_and_its_thread() -> None:
    """They come as they are; the thread is gone when there is nothing to start."""
    before = threading.active_count()

    def fail() -> None:
        raise FileNotFoundError(2, "No such file or directory", "nothing")

    with spawner.used(), spawner.used():
        with pytest.raises(FileNotFoundError, match="nothing"):
            await spawner.start(fail)
        assert await spawner.start(threading.get_ident) != threading.get_ident()
        assert await asyncio.gather(*(spawner.start(partial(int, i)) for i in range(100))) == list(range(100))
    await until_async(lambda: threading.active_count() <= before)
