"""Blocking calls in threads, and client programs: a cancellation waits for the end of what was called."""

from __future__ import annotations

import asyncio
import os
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from swerex_c.sandbox.clients import run_command
from swerex_c.utils import background
from swerex_c.utils.threads import in_thread_to_its_end
from tests.support.processes import running
from tests.support.wait import cancel, settle, until_async


async def test_a_cancelled_call_kills_its_program(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    command = ["bash", "-c", f"echo $$ >{begun}; sleep 100 & sleep 100"]
    call = asyncio.ensure_future(background.run(run_command(command, environment=dict(os.environ), timeout=60)))
    await until_async(lambda: begun.exists() and begun.read_text())
    await cancel(call)
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
    await cancel(starting)
    goes_on.set()
    await until_async(lambda: not running(f"sleep 10{os.getpid()}"))


async def test_a_second_cancellation_does_not_leave_the_thread_behind() -> None:
    begun, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        may_end.wait(60)
        ended.set()

    task = asyncio.ensure_future(in_thread_to_its_end(work))
    await until_async(begun.is_set)
    for _ in range(2):
        task.cancel()
        await settle()
    assert not task.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()
