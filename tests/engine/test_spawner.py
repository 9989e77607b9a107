"""Programs and shells that are started beside others do not hold the event loop up."""

from __future__ import annotations

import asyncio
import os
import threading
from functools import partial

import pytest

from swerex_c import _core
from swerex_c.engine import spawner
from swerex_c.engine.completions import current_completions
from swerex_c.exceptions import RuntimeClosedError
from swerex_c.runtime.abstract import BashAction, CloseBashSessionRequest, Command, CreateBashSessionRequest
from swerex_c.runtime.local import LocalRuntime
from tests.support.slow_start import Slow
from tests.support.wait import DEADLINE, settle, until_async


async def test_programs_that_start_at_once_leave_the_loop_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = LocalRuntime()
    slow = Slow(_core.Process)
    monkeypatch.setattr(_core, "Process", slow)
    with spawner.used():
        done = asyncio.gather(*(runtime.execute(Command(command=["echo", str(i)])) for i in range(4)))
        await slow.begun()
        slow.go_on.set()
        await done
    assert [answer.stdout for answer in await done] == [f"{i}\n" for i in range(4)]
    assert threading.get_ident() not in slow.threads
    await runtime.close()


async def test_who_is_alone_starts_here(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = LocalRuntime()
    slow = Slow(_core.Process, waits=False)
    monkeypatch.setattr(_core, "Process", slow)
    for _ in range(2):
        assert (await runtime.execute(Command(command=["true"]))).exit_code == 0
    assert slow.threads == [threading.get_ident()] * 2
    await runtime.close()


async def test_a_program_beside_a_session_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = LocalRuntime()
    await runtime.create_session(CreateBashSessionRequest(startup_timeout=DEADLINE))
    waits = asyncio.ensure_future(runtime.run_in_session(BashAction(command="read line; echo end", timeout=DEADLINE)))
    await until_async(lambda: current_completions().pending)
    slow = Slow(_core.Process)
    monkeypatch.setattr(_core, "Process", slow)
    done = asyncio.ensure_future(runtime.execute(Command(command=["true"])))
    await slow.begun()
    slow.go_on.set()
    assert (await done).exit_code == 0
    waits.cancel()
    assert threading.get_ident() not in slow.threads
    await runtime.close()


async def test_shells_that_start_at_once_leave_the_loop_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = LocalRuntime()
    slow = Slow(_core.Session)
    monkeypatch.setattr(_core, "Session", slow)
    with spawner.used():
        done = asyncio.gather(
            *(runtime.create_session(CreateBashSessionRequest(session=f"s{i}", startup_timeout=60)) for i in range(4))
        )
        await slow.begun()
        slow.go_on.set()
        await done
    assert threading.get_ident() not in slow.threads
    for i in range(4):
        assert (await runtime.run_in_session(BashAction(command=f"echo {i}", session=f"s{i}"))).output == f"{i}\n"
        await runtime.close_session(CloseBashSessionRequest(session=f"s{i}"))
    await runtime.close()


async def test_a_caller_that_gives_up_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether its start was under way or still waited for its turn."""
    runtime = LocalRuntime()
    slow = Slow(_core.Process)
    monkeypatch.setattr(_core, "Process", slow)
    with spawner.used():
        calls = [asyncio.ensure_future(runtime.execute(Command(command=["sleep", "1000"]))) for _ in range(3)]
        await slow.begun()
        for call in calls:
            call.cancel()
        await settle()
        slow.go_on.set()
        assert all(isinstance(e, asyncio.CancelledError) for e in await asyncio.gather(*calls, return_exceptions=True))
    assert len(slow.threads) == 1, "those that waited were not started"
    assert len(runtime._processes) == 0
    assert not current_completions().programs
    await runtime.close()


async def test_a_shell_whose_caller_gives_up_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime, first = LocalRuntime(), LocalRuntime()
    await first.create_session(CreateBashSessionRequest(startup_timeout=60))  # opens what the loop and the core keep
    slow = Slow(_core.Session)
    monkeypatch.setattr(_core, "Session", slow)
    before = len(os.listdir("/proc/self/fd"))
    with spawner.used():
        made = asyncio.ensure_future(runtime.create_session(CreateBashSessionRequest(startup_timeout=DEADLINE)))
        await slow.begun()
        made.cancel()
        slow.go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await made
    assert not runtime.sessions
    await runtime.close()
    await until_async(lambda: len(os.listdir("/proc/self/fd")) <= before)
    await first.close()


async def test_a_runtime_that_is_closed_meanwhile_ends_what_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = LocalRuntime()
    slow = Slow(_core.Process)
    monkeypatch.setattr(_core, "Process", slow)
    with spawner.used():
        call = asyncio.ensure_future(runtime.execute(Command(command=["sleep", "1000"])))
        await slow.begun()
        closing = asyncio.ensure_future(runtime.close())
        await settle()
        slow.go_on.set()
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
