"""Concurrency: many calls, many sessions, many loops and threads, a forked parent, and machines that run out."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from swerex_c.exceptions import SessionExistsError
from tests.support.harness import in_thread
from tests.support.original import run_python
from tests.support.session import Gate, Session, Shell
from tests.support.wait import DEADLINE


def test_many_threads_on_one_session(sh: Shell) -> None:
    def work(name: int) -> list[str]:
        return [asyncio.run(sh.aio.run_in_session(sh.action(f"echo {name}-{i}"))).output for i in range(15)]

    with ThreadPoolExecutor(8) as pool:
        for name, outputs in enumerate(pool.map(work, range(8))):
            assert outputs == [f"{name}-{i}\n" for i in range(15)]


def test_a_loop_that_goes_away_in_the_middle(sh: Shell, gate: Gate) -> None:
    """A runner that is stopped cancels what it ran, which runs on; the session serves the next loop."""

    async def start_and_leave() -> None:
        task = asyncio.ensure_future(sh.go(f"{gate.pass_}; echo old"))
        await gate.is_reached()
        del task

    asyncio.run(start_and_leave())
    gate.open()
    sh.gives("echo new", "new\n")


def test_one_name_created_twice_at_once(sh: Shell) -> None:
    async def at_once() -> list[Any]:
        creates = (Session(sh.aio, "same").create() for _ in range(4))
        return await asyncio.gather(*creates, return_exceptions=True)

    assert sum(isinstance(result, SessionExistsError) for result in sh.wait(at_once())) == 3


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_fork_while_a_command_runs(sh: Shell, gate: Gate) -> None:
    async def run() -> Any:
        call = asyncio.ensure_future(sh.go(f"{gate.pass_}; echo parent"))
        await gate.is_reached()
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
        gate.open()
        return await call

    assert sh.wait(run()).output == "parent\n"


def test_parents_fds_are_not_the_childrens(shells: type[Shell], tmp_path: Path) -> None:
    """An fd that the parent holds open is not the shell's; nor is one session's terminal another's."""
    shells("first")
    handle = os.open(tmp_path / "secret", os.O_RDWR | os.O_CREAT)
    os.set_inheritable(handle, True)
    try:
        sh = shells("second")
        sh.gives("for f in /proc/self/fd/*; do echo \"${f##*/}\"; done | sort -n | head -4 | grep -cx '[012]'", "3\n")
        assert "secret" not in sh.out("ls -l /proc/$$/fd")
        assert "ptmx" not in sh.out("ls -l /proc/$$/fd")
    finally:
        os.close(handle)


def test_signals_in_the_parent(sh: Shell) -> None:
    """Handlers that run all the time (EINTR everywhere) lose nothing."""
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    me = threading.main_thread().ident
    assert me is not None

    def pester(over: threading.Event) -> None:
        while not over.wait(0.0005):
            signal.pthread_kill(me, signal.SIGUSR1)
            os.kill(os.getpid(), signal.SIGUSR1)

    try:
        with in_thread(pester):
            for i in range(20):
                sh.gives(f"echo {i}; (exit {i})", f"{i}\n", i)
            sh.gives("sleep 0.3; seq 30000 | tail -1", "30000\n")
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_sigchld_and_waitpid_of_the_parent_stay_the_parents(sh: Shell) -> None:
    """Own children of the caller are not reaped by us, and no handler of the caller is replaced."""
    seen = []
    before = signal.signal(signal.SIGCHLD, lambda *_: seen.append(1))
    try:
        child = subprocess.Popen(["sh", "-c", "exit 7"])
        sh.gives("/bin/true; (exit 2)", "", 2)
        assert child.wait(DEADLINE) == 7
        assert signal.getsignal(signal.SIGCHLD) is not signal.SIG_DFL
        assert seen
    finally:
        signal.signal(signal.SIGCHLD, before)


DAEMON = """\
import os
for number in (0, 1, 2):
    os.close(number)
import asyncio, sys
from swerex_c.runtime.local import LocalRuntime
async def main():
    async with LocalRuntime() as runtime:
        await runtime.create_session()
        seen = await runtime.run("echo out; echo err >&2; cat </dev/null")
        open(sys.argv[1], "w").write(seen.output)
asyncio.run(main())
"""


def test_standard_fds_of_the_parent_may_be_closed(tmp_path: Path) -> None:
    """A daemon without stdin, stdout and stderr gets fds 0, 1 and 2 for its terminals."""
    result = tmp_path / "result"
    run_python(DAEMON, str(result))
    assert result.read_text() == "out\nerr\n"
