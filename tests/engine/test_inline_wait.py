"""How the calling thread waits by itself for commands that are short."""

from __future__ import annotations

import asyncio
import ctypes
from typing import Any

import pytest

from swerex_c.engine.completions import current_completions
from swerex_c.runtime.abstract import BashAction, CreateBashSessionRequest
from swerex_c.runtime.local import LocalRuntime

PR_GET_TIMERSLACK = 30


async def test_a_caller_that_may_be_late_leaves_no_trace_of_it() -> None:
    """After some short commands the calling thread waits with a timer that may be late: not where the loop has one."""
    prctl = ctypes.CDLL(None).prctl
    slack = prctl(PR_GET_TIMERSLACK)
    waits: list[int] = []

    class Watched:
        def __init__(self, core: Any) -> None:
            self.core = core

        def __getattr__(self, name: str) -> Any:
            return getattr(self.core, name)

        def run(self, *arguments: Any) -> Any:
            waits.append(arguments[9])
            return self.core.run(*arguments)

    runtime = LocalRuntime()
    await runtime.create_session(CreateBashSessionRequest(startup_timeout=60))
    session: Any = runtime.sessions["default"]
    session._core = Watched(session._core)
    session._inline_wait_microseconds = 60_000_000  # all of them are short ones
    for _ in range(10):
        assert (await runtime.run_in_session(BashAction(command="true"))).exit_code == 0
    assert waits == [0] * 8 + [4000] * 2
    later = asyncio.get_running_loop().call_later(0.005, int)
    await runtime.run_in_session(BashAction(command="true"))
    later.cancel()
    assert waits[10:] == [0]
    session._inline_wait_microseconds = 1  # and this one is not
    await runtime.run_in_session(BashAction(command="sleep 0.01"))
    session._inline_waits_to_skip = 0
    await runtime.run_in_session(BashAction(command="true"))
    assert waits[12:] == [0]
    assert prctl(PR_GET_TIMERSLACK) == slack
    await runtime.close()


async def has_time(timer: float) -> bool:
    asyncio.get_running_loop().call_later(timer, int)
    return not current_completions().ready and current_completions().has_time(0.01)


def test_a_loop_that_shows_its_work() -> None:
    assert asyncio.run(has_time(60))
    assert not asyncio.run(has_time(0.005))


def test_a_loop_that_does_not_show_its_work_counts_as_busy() -> None:
    uvloop = pytest.importorskip("uvloop", reason="uvloop is not installed")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert not runner.run(has_time(60))
