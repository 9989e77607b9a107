"""A command that waits for input is told from one that works, when its time is over."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator

import pytest

from swerex_c.engine.foreground import _family, reader_of_terminal
from swerex_c.exceptions import CommandTimeoutError
from swerex_c.runtime.abstract import BashAction, BashInterruptAction
from swerex_c.runtime.local import BashSession, LocalRuntime
from tests.support.processes import Family
from tests.support.wait import until_async

ADVICE = " (it waits for input: use is_interactive_command)"


@pytest.fixture
async def session(family: Family) -> AsyncIterator[BashSession]:
    async with LocalRuntime() as runtime:
        await runtime.create_session()
        one = runtime.sessions["default"]
        assert isinstance(one, BashSession)
        if not one.core.facts()["kernel_proof"]:
            pytest.skip("the kernel does not show the system calls of processes here")
        yield one


async def until_shown(session: BashSession, reads: bool) -> bool:
    """Wait until the foreground reads the terminal; or if it never will, until what it has started sleeps."""

    def rests() -> bool:
        if reads:
            return not session.core.facts()["idle"] and reader_of_terminal(session.pid) is not None
        return all(state(pid) in ("S", "T") for pid in list(_family(session.pid))[1:] or [0])

    await until_async(rests)
    return reads


def state(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0].decode()
    except OSError:
        return ""


@pytest.mark.parametrize(
    "command",
    [
        "cat", "cat </dev/tty", "cat | sort", "read x", "( read x; echo )", "select x in a b; do :; done", "bash",
        "bash -c 'cat; true'", f"PYTHON_BASIC_REPL=1 {sys.executable} -q",
        f"{sys.executable} -c 'import select; select.select([0], [], [])'",
        f"{sys.executable} -c 'import select; p = select.poll(); p.register(0, select.POLLIN); p.poll()'",
    ],
)  # fmt: skip
async def test_what_waits_for_input(session: BashSession, command: str) -> None:
    running = asyncio.ensure_future(session.run(BashAction(command=command, check="silent")))
    assert await until_shown(session, True)
    await until_async(lambda: session._awaits_input(command))
    await session.interrupt(BashInterruptAction())
    await asyncio.wait([running])
    assert (await session.run(BashAction(command="echo $?"))).output
    assert not session._awaits_input(command)


@pytest.mark.parametrize(
    "command",
    [
        "sleep 100", "sleep 100 </dev/tty", "cat < <(sleep 100)", "read x < <(sleep 100)", "sleep 100 | cat",
        "sleep 100 & wait", "cat & sleep 100",
        f"{sys.executable} -c 'import select; select.select([0], [], [], 100)' </dev/null; sleep 100",
    ],
)  # fmt: skip
async def test_what_waits_for_something_else(session: BashSession, command: str) -> None:
    running = asyncio.ensure_future(session.run(BashAction(command=command, check="silent")))
    assert not await until_shown(session, False)
    assert not session._awaits_input(command)
    await session.interrupt(BashInterruptAction())
    await asyncio.wait([running])


async def test_the_error_says_it(session: BashSession) -> None:
    for fields in ({"timeout": 2.0}, {"no_output_timeout": 2.0}):
        with pytest.raises(CommandTimeoutError) as caught:
            await session.run(BashAction(command="read x", **fields))
        assert str(caught.value).endswith(f"while running command 'read x'{ADVICE}")
        await session.interrupt(BashInterruptAction())
    with pytest.raises(CommandTimeoutError) as caught:
        await session.run(BashAction(command="sleep 100", timeout=0.5))
    assert str(caught.value) == "timeout after 0.5 seconds while running command 'sleep 100'"


async def test_nothing_is_told_where_nothing_is_known(session: BashSession) -> None:
    assert reader_of_terminal(os.getppid()) is None or os.isatty(0)
    assert reader_of_terminal(1 << 30) is None
    session._is_local = False  # behind a client, which reads the terminal all the time
    running = asyncio.ensure_future(session.run(BashAction(command="cat", check="silent")))
    assert await until_shown(session, True)
    assert not session._awaits_input("cat")
    await session.interrupt(BashInterruptAction())
    await asyncio.wait([running])
