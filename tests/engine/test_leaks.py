"""Leaks: after a thousand sessions and ten thousand commands everything is as it was."""

from __future__ import annotations

import asyncio
import gc
import os
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from swerex_c.exceptions import BashIncorrectSyntaxError, CommandTimeoutError
from swerex_c.runtime.abstract import Command, CreateBashSessionRequest
from tests.support.processes import Family, command_lines, file_of_descriptor, memory_of
from tests.support.session import Session, Shell, make_runtime

pytestmark = [pytest.mark.usefixtures("family"), pytest.mark.idle, pytest.mark.timeout(620)]


@pytest.fixture(autouse=True)
def _temporary(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Temporary files of these tests are apart from those of others."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))


class Footprint:
    """What this process holds at one moment."""

    def __init__(self) -> None:
        gc.collect()
        self.fds = sorted(filter(None, map(file_of_descriptor, os.listdir("/proc/self/fd"))))
        self.threads = len(os.listdir("/proc/self/task"))
        self.processes = set(command_lines())
        self.memory = memory_of()
        self.temporary = sorted(os.listdir(tempfile.gettempdir()))


def assert_same(before: Footprint, after: Footprint, megabytes: int) -> None:
    assert len(after.fds) <= len(before.fds), set(after.fds) - set(before.fds)
    assert after.threads <= before.threads
    assert after.processes <= before.processes
    assert after.temporary == before.temporary
    assert after.memory - before.memory < megabytes << 20


async def lives(count: int) -> None:
    """Create sessions, use them in every way, and close them."""
    runtime = make_runtime()
    gate = asyncio.Semaphore(20)

    async def one(i: int) -> None:
        async with gate:
            session = Session(runtime)
            await session.create()
            await session.gives(f"echo {i}", f"{i}\n")
            if i % 5 == 1:
                with pytest.raises(CommandTimeoutError):
                    await session.run("echo x; sleep 50", timeout=0.01)
                await session.interrupt()
            if i % 5 == 2:
                await session.run("sleep 60 & setsid sleep 60 &")
            if i % 5 == 3:
                await session.run("exit 3")
            if i % 5 == 4:
                with pytest.raises(BashIncorrectSyntaxError):
                    await session.run("(a")
                await session.run("cat <<'E'\na\nE", expect=["nothing", "n.ver"])
            await session.close()

    await asyncio.gather(*(one(i) for i in range(count)))
    await runtime.close()


async def crowd(count: int) -> None:
    """Run sessions that are all alive together."""
    runtime = make_runtime()
    sessions = [Session(runtime, patience=120) for _ in range(count)]
    await asyncio.gather(*(session.create() for session in sessions))
    await asyncio.gather(*(session.gives(f"echo {i}", f"{i}\n") for i, session in enumerate(sessions)))
    await runtime.close()


async def programs(count: int) -> None:
    runtime = make_runtime()
    for start in range(0, count, 16):
        batch = [runtime.execute(Command(command=["echo", str(i)])) for i in range(start, start + 16)]
        assert [r.stdout for r in await asyncio.gather(*batch)] == [f"{i}\n" for i in range(start, start + 16)]
    for _ in range(10):
        with pytest.raises(CommandTimeoutError):
            await runtime.execute(Command(command="setsid sleep 60 & sleep 60", shell=True, timeout=0.05))
        with pytest.raises(FileNotFoundError):
            await runtime.execute(Command(command=["no-such-program-xyz"]))
    await runtime.close()


async def forgotten(count: int) -> None:
    """Drop runtimes without a close, which ends their shells."""
    for _ in range(count):
        await make_runtime().create_session(CreateBashSessionRequest())
    gc.collect()


@pytest.mark.parametrize(
    ("work", "few", "many", "megabytes"),
    [(lives, 60, 1000, 8), (crowd, 50, 1000, 40), (programs, 64, 1024, 6), (forgotten, 5, 50, 4)],
)
def test_nothing_is_left(
    family: Family, work: Callable[[int], Coroutine[Any, Any, None]], few: int, many: int, megabytes: int
) -> None:
    asyncio.run(work(few))
    before = Footprint()
    asyncio.run(work(many))
    assert not family.left()
    assert_same(before, Footprint(), megabytes)


def test_ten_thousand_commands(shells: type[Shell]) -> None:
    sh = shells()
    kinds = [("echo a\necho b", "a\nb\n", 0), ("(exit 3)", "", 3), ("echo one; echo two", "one\ntwo\n", 0)]
    kinds += [("printf %02000d 1", "1".rjust(2000, "0"), 0), *[(f"echo {i}", f"{i}\n", 0) for i in range(6)]]

    async def commands(count: int) -> None:
        for i in range(count):
            command, output, code = kinds[i % len(kinds)]
            seen = await sh.go(command, expect=["nothing"] if "two" in command else [])
            assert (seen.output, seen.exit_code) == (output, code)

    sh.wait(commands(1000))
    before = Footprint()
    pid = sh.out("echo $$").strip()
    of_shell = memory_of(pid)
    sh.wait(commands(10_000))
    assert_same(before, Footprint(), 4)
    assert memory_of(pid) - of_shell < 4 << 20
    assert int(sh.out("ls /proc/$$/fd | wc -l")) <= 5


def test_large_outputs_are_given_back(shells: type[Shell]) -> None:
    sh = shells()
    command = "head -c 20000000 /dev/zero | tr '\\0' x"
    for _ in range(2):
        sh.run(command, 30)
    before = Footprint()
    for _ in range(10):
        sh.run(command, 30)
    assert_same(before, Footprint(), 30)
