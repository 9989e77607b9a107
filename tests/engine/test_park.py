"""Sessions that nobody uses for a second keep two descriptors, and nobody notices."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from swerex_c.exceptions import ResourceError
from swerex_c.runtime.abstract import BashObservation, CloseBashSessionRequest, CreateBashSessionRequest
from swerex_c.runtime.local import LocalRuntime
from tests.support.harness import few_descriptors
from tests.support.session import Gate
from tests.support.wait import until, until_async

pytestmark = pytest.mark.xdist_group("rest")  # they share the second that they wait

NAMES = ("used", "short", "closed", "threads")

AT_REST = ["master", "pidfd"]
AT_WORK = ["master", "pidfd", "slave", "syscall"]


class Shell:
    """One session's shell, and what this process has open for its sake."""

    def __init__(self, runtime: LocalRuntime, name: str, pid: int = 0):
        self.runtime = runtime
        self.name = name
        self.pid: int = pid or runtime.sessions[name].core.facts()["pid"]  # type: ignore[attr-defined]
        self.terminal = os.readlink(f"/proc/{self.pid}/fd/0")

    def held(self) -> list[str]:
        return sorted(filter(None, map(self._kind, os.listdir("/proc/self/fd"))))

    def _kind(self, number: str) -> str:
        with contextlib.suppress(FileNotFoundError):
            link = os.readlink(f"/proc/self/fd/{number}")
            with open(f"/proc/self/fdinfo/{number}", encoding="ascii") as file:
                info = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
            if link == self.terminal:
                return "slave"
            if link == f"/proc/{self.pid}/syscall":
                return "syscall"
            if link.endswith("ptmx") and f"/dev/pts/{info['tty-index']}" == self.terminal:
                return "master"
            if link == "anon_inode:[pidfd]" and info["Pid"] == str(self.pid):
                return "pidfd"
        return ""

    def await_rest(self) -> None:
        until(lambda: self.held() == AT_REST)

    def run(self, command: str) -> BashObservation:
        return asyncio.run(self.go(command))

    async def go(self, command: str) -> BashObservation:
        return await self.runtime.run(command, check="silent", session=self.name)


@pytest.fixture(scope="module")
def shells() -> Iterator[SimpleNamespace]:
    """Each test has one of its own, and all of them have been left alone for a second at once."""
    runtime = LocalRuntime()

    async def begin() -> None:
        for name in NAMES:
            await runtime.create_session(CreateBashSessionRequest(session=name))
        for name in NAMES:
            await runtime.run("x=5; (exit 3)", check="ignore", session=name)

    asyncio.run(begin())
    found = {name: Shell(runtime, name) for name in NAMES}
    for shell in found.values():
        shell.await_rest()
    yield SimpleNamespace(**found)
    asyncio.run(runtime.close())


def cpu_in(seconds: float) -> float:
    start = time.process_time()
    time.sleep(seconds)
    return time.process_time() - start


def test_a_command_behind_a_rest(shells: SimpleNamespace, gate: Gate) -> None:
    """It is right, the next one too, and then the session rests again."""
    shell = shells.used
    answer = shell.run("echo $? $x\ncat <<E\nmore\nE")
    assert (answer.output, answer.exit_code) == ("3 5\nmore\n", 0)

    async def held_by_a_command() -> list[str]:
        running = asyncio.ensure_future(shell.go(gate.pass_))
        await gate.is_reached()
        held = shell.held()
        gate.open()
        await running
        return held

    assert asyncio.run(held_by_a_command()) == AT_WORK
    assert shell.run("echo " + "y" * 9000).output == "y" * 9000 + "\n"
    shell.await_rest()
    assert shell.run("echo again").output == "again\n"


def test_no_descriptors_are_left(shells: SimpleNamespace) -> None:
    """That is a typed error that says what was missing; the session has not changed, and closing works all the same."""
    loop = asyncio.new_event_loop()  # which needs some of its own
    try:
        loop.run_until_complete(shells.used.go("true"))  # so does the first wait
        for shell in vars(shells).values():
            shell.await_rest()  # one that begins to rest meanwhile would give two back
        with few_descriptors():
            for _ in range(2):
                with pytest.raises(ResourceError, match=r"'x=6'.*Too many open files") as caught:
                    loop.run_until_complete(shells.short.go("x=6"))
                assert caught.value.errno == errno.EMFILE
            close = CloseBashSessionRequest(session="closed")
            loop.run_until_complete(shells.closed.runtime.close_session(close))
        assert not os.path.exists(f"/proc/{shells.closed.pid}")
    finally:
        loop.close()
    assert shells.short.held() == AT_REST
    assert shells.short.run("echo $? $x").output == "3 5\n"


@pytest.mark.idle
async def test_the_terminal_of_a_killed_shell_keeps_nobody_busy(gate: Gate) -> None:
    """Not while nobody has it open, and not when something is written there later."""
    runtime = LocalRuntime()
    await runtime.create_session(CreateBashSessionRequest())
    core = runtime.sessions["default"].core  # type: ignore[attr-defined]
    left = f"trap '' HUP; ({gate.pass_}; echo late; exec sleep 1000) & disown; kill -9 $$"
    await runtime.run(left, check="ignore")
    assert cpu_in(0.2) < 0.1
    gate.open()
    await until_async(lambda: core.facts()["late"] >= len("late\n"))
    assert cpu_in(0.2) < 0.1
    await runtime.close()


def test_threads_that_wait_by_themselves(shells: SimpleNamespace) -> None:
    """Calls from two threads wake it once, and each gets its own answer."""

    def work(number: int) -> list[str]:
        return [shells.threads.run(f"echo {number}").output for _ in range(2)]

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(work, range(2))) == [["0\n", "0\n"], ["1\n", "1\n"]]


@pytest.mark.slow
async def test_a_shell_of_the_pool() -> None:
    """It rests too while it waits, and becomes a session as ever."""
    runtime = LocalRuntime(warm_sessions=1)
    assert await runtime.wait_until_warm()
    assert runtime.warm is not None
    pid = runtime.warm._shells[0].core.facts()["pid"]
    shell = Shell(runtime, "default", pid)
    await until_async(lambda: shell.held() == AT_REST)
    await runtime.create_session(CreateBashSessionRequest())
    assert runtime.sessions["default"].core.facts()["pid"] == pid, "it was that one"  # type: ignore[attr-defined]
    assert (await shell.go("echo $?")).output == "0\n"
    shell.await_rest()
    assert (await shell.go("echo hi")).output == "hi\n"
    await runtime.close()


@pytest.mark.idle
@pytest.mark.slow
async def test_many_at_rest_take_no_time() -> None:
    """No thread of this process runs at all."""
    runtime = LocalRuntime()
    names = [f"s{i}" for i in range(100)]
    for name in names:
        await runtime.create_session(CreateBashSessionRequest(session=name))
    for name in names:
        Shell(runtime, name).await_rest()
    assert cpu_in(1.0) < 0.01
    answers = await asyncio.gather(*(runtime.run(f"echo {name}", session=name) for name in names))
    assert [answer.output for answer in answers] == [f"{name}\n" for name in names]
    await runtime.close()
