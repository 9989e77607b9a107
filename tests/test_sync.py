"""The form without `async`."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import swerex_c
from swerex_c import (
    BashAction,
    Command,
    CommandTimeoutError,
    LocalDeployment,
    LocalRuntime,
    NonZeroExitCodeError,
    ReadFileRequest,
    UploadRequest,
    WriteFileRequest,
)
from swerex_c.exceptions import RuntimeClosedError
from swerex_c.sync import SyncDeployment, SyncRuntime
from tests.support.original import our_environment
from tests.support.wait import DEADLINE

pytestmark = pytest.mark.usefixtures("family")


def test_a_session_commands_and_files(tmp_path: Path) -> None:
    with SyncRuntime(LocalRuntime()) as runtime:
        assert runtime.is_alive().is_alive
        runtime.create_session()
        assert runtime.run("cd /usr && x=42").output == ""
        assert runtime.run("echo $x in $PWD", timeout=DEADLINE).output == "42 in /usr\n"
        assert runtime.run("(exit 3)", check="silent").exit_code == 3
        with pytest.raises(NonZeroExitCodeError):
            runtime.run("(exit 3)")
        with pytest.raises(CommandTimeoutError):
            runtime.run("sleep 100", timeout=0.1)
        assert runtime.execute(Command(command=["echo", "hi"])).stdout == "hi\n"
        runtime.write_file(WriteFileRequest(path=str(tmp_path / "a"), content="text"))
        runtime.upload(UploadRequest(source_path=str(tmp_path / "a"), target_path=str(tmp_path / "b")))
        runtime.download(str(tmp_path / "b"), str(tmp_path / "c"))
        assert runtime.read_file(ReadFileRequest(path=str(tmp_path / "c"))).content == "text"
    with pytest.raises(RuntimeClosedError):
        runtime.create_session()
    assert not runtime.is_alive()


def test_a_stream() -> None:
    with SyncRuntime(LocalRuntime()) as runtime:
        runtime.create_session()
        *pieces, seen = runtime.stream_in_session(BashAction(command="echo one; echo two", timeout=DEADLINE))
        assert "".join(pieces) == "one\ntwo\n" == seen.output  # type: ignore[arg-type,union-attr]
        for piece in runtime.stream_in_session(BashAction(command="echo one; read x", timeout=DEADLINE)):
            assert piece == "one\n"
            break
        runtime.run_in_session(swerex_c.BashInterruptAction())
        assert runtime.run("echo on").output == "on\n"


async def test_a_deployment_where_a_loop_runs_already() -> None:
    """As in a notebook."""
    with SyncDeployment(LocalDeployment()) as deployment:
        deployment.runtime.create_session()
        assert deployment.runtime.run("echo hi").output == "hi\n"
        assert deployment.is_alive()
    assert not deployment.is_alive()


def test_from_several_threads() -> None:
    with SyncRuntime(LocalRuntime()) as runtime:

        def work(number: int) -> str:
            runtime.create_session(swerex_c.CreateBashSessionRequest(session=str(number)))
            return runtime.run(f"echo {number}", session=str(number)).output

        with ThreadPoolExecutor(8) as threads:
            assert list(threads.map(work, range(8))) == [f"{number}\n" for number in range(8)]


def test_an_interrupt_from_the_keyboard_cancels_the_call() -> None:
    code = """if True:
        from swerex_c import BashAction, LocalRuntime
        from swerex_c.sync import SyncRuntime
        with SyncRuntime(LocalRuntime()) as runtime:
            runtime.create_session()
            try:
                for piece in runtime.stream_in_session(BashAction(command="echo begun; sleep 1000")):
                    print(piece, end="", flush=True)
            except KeyboardInterrupt:
                print("interrupted")
    """
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=our_environment()) as it:
        assert it.stdout is not None and it.stdout.readline() == "begun\n"
        it.send_signal(signal.SIGINT)
        assert it.stdout.read() == "interrupted\n" and it.wait(DEADLINE) == 0


@pytest.mark.parametrize("late", [False, True])
def test_an_interrupt_while_the_call_is_made_cancels_it(monkeypatch: pytest.MonkeyPatch, late: bool) -> None:
    begin, calls = asyncio.BaseEventLoop.call_soon_threadsafe, []

    def interrupted(loop: Any, callback: Any, *args: Any, **more: Any) -> Any:
        calls.append(callback)
        if len(calls) > 1:
            return begin(loop, callback, *args, **more)
        if late:
            begin(loop, callback, *args, **more)
        raise KeyboardInterrupt

    with SyncRuntime(LocalRuntime()) as runtime:
        runtime.create_session()
        stream = runtime.stream_in_session(BashAction(command="sleep 1000"))
        monkeypatch.setattr(asyncio.BaseEventLoop, "call_soon_threadsafe", interrupted)
        with pytest.raises(KeyboardInterrupt):
            next(stream)
        monkeypatch.undo()
        assert len(calls) >= 3 and next(stream, None) is None
        assert runtime.is_alive()
