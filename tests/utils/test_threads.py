"""Blocking calls in threads: a cancellation interrupts what they wait for, and waits for their end."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from swerex_c.sandbox.clients import CompletedCommand, run_command
from swerex_c.utils import background
from swerex_c.utils.cancellation import Cancellation, check_cancelled
from swerex_c.utils.threads import in_cancellable_thread
from tests.support.processes import running
from tests.support.wait import settle, until, until_async


def program(text: str, **how: Any) -> Callable[[], CompletedCommand]:
    def call() -> CompletedCommand:
        work = run_command(["bash", "-c", text], environment=dict(os.environ), timeout=60, **how)
        return background.run_blocking(work)

    return call


async def cancelled(work: Callable[[], object], begun: Callable[[], bool]) -> Cancellation:
    """Cancel a call once it has begun, and wait for its end."""
    cancellation = Cancellation()
    task = asyncio.ensure_future(in_cancellable_thread(cancellation, work))
    await until_async(begun)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    return cancellation


def test_lines_are_told_as_they_come() -> None:
    lines: list[str] = []
    completed = program("echo one; echo two >&2; printf 'th'; printf 'ree\\n'; exit 3", tell=lines.append)()
    assert lines == ["one", "three"]
    assert (completed.code, completed.stdout, completed.stderr) == (3, b"one\nthree\n", b"two\n")


def test_a_line_ends_the_run() -> None:
    lines: list[str] = []
    completed = program("echo one; echo ready now; sleep 100", until=b"ready", tell=lines.append)()
    assert (completed.code, completed.stdout, lines) == (0, b"one\nready now\n", ["one"])


async def test_a_cancelled_call_kills_its_program(tmp_path: Any) -> None:
    begun = tmp_path / "begun"
    cancellation = await cancelled(program(f"echo $$ >{begun}; sleep 100 & sleep 100"), begun.exists)
    assert cancellation.requested
    pid = int(begun.read_text())
    await until_async(lambda: not os.path.exists(f"/proc/{pid}"))


async def test_a_program_whose_start_is_cancelled_ends_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on, begun = threading.Event(), tmp_path / "begun"

    class Popen(subprocess.Popen[bytes]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            assert goes_on.wait(60)

    monkeypatch.setattr(subprocess, "Popen", Popen)
    command = ["bash", "-c", f"sleep 10{os.getpid()} & touch {begun}; sleep 10{os.getpid()}"]
    starting = asyncio.ensure_future(run_command(command, environment=dict(os.environ)))
    await until_async(begun.exists)
    assert running(f"sleep 10{os.getpid()}")
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    goes_on.set()
    await until_async(lambda: not running(f"sleep 10{os.getpid()}"))


async def test_a_cancelled_call_begins_no_further_step() -> None:
    begun, ended = threading.Event(), threading.Event()

    def steps() -> None:
        begun.set()
        until(check_cancelled)

    def work() -> None:
        try:
            steps()
        except concurrent.futures.CancelledError:
            with pytest.raises(concurrent.futures.CancelledError):
                program("echo")()
            with pytest.raises(concurrent.futures.CancelledError):
                background.run_blocking(asyncio.sleep(0))
            ended.set()

    await cancelled(work, begun.is_set)
    assert ended.is_set()


async def test_a_second_cancellation_does_not_leave_the_thread_behind() -> None:
    begun, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        may_end.wait(60)
        ended.set()

    task = asyncio.ensure_future(in_cancellable_thread(Cancellation(), work))
    await until_async(begun.is_set)
    for _ in range(2):
        task.cancel()
        await settle()
    assert not task.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()
