"""execute: one program, outside of any session, with its whole process tree under control."""

from __future__ import annotations

import asyncio
import os
import subprocess
import threading
import uuid
from pathlib import Path
from typing import Any

import pytest

from swerex_c import _core
from swerex_c.exceptions import CommandTimeoutError
from swerex_c.runtime.abstract import Command
from swerex_c.runtime.local import LocalRuntime
from tests.support.harness import write_script
from tests.support.original import run_python
from tests.support.processes import running
from tests.support.session import Shell
from tests.support.wait import DEADLINE, cancel, doubled, quicker_than, until, until_async


@pytest.fixture
def box(shells: Any) -> Any:
    """A runtime without a session."""
    return shells(create=False)


@pytest.fixture
def run(box: Shell) -> Any:
    """`run(command, **fields)`: the response."""

    def call(command: str | list[str], **fields: Any) -> Any:
        return box.wait(box.aio.execute(Command(command=command, **fields)))

    return call


PROTECTED = """if True:
    import asyncio, ctypes, os
    from swerex_c.runtime.abstract import Command
    from swerex_c.runtime.local import LocalRuntime

    async def main():
        runtime = LocalRuntime()
        await runtime.execute(Command(command="true", shell=True))
        os.chdir("/")
        if os.geteuid() == 0:
            os.setgroups([])
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
        ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE, as a server has it
        short = "echo $0 $# $(cat); ls /proc/self/fd | wc -w; exit 3"
        for command in (short, ": " + "x" * 300_000 + "; " + short):
            answer = await runtime.execute(Command(command=command, shell=True, timeout=60))
            print(answer.stdout.split(), answer.stderr, answer.exit_code)
        await runtime.close()

    asyncio.run(main())
"""


def test_a_long_text_for_the_shell_of_a_protected_process() -> None:
    """As an ordinary user's server runs it, whose files in /proc belong to root; the text leaves no trace."""
    done = run_python(PROTECTED)
    assert done.stdout == "['/bin/sh', '0', '4']  3\n" * 2, done


def test_stdin_is_at_its_end_whatever_the_callers_is(run: Any, tmp_path: Path) -> None:
    """The caller's own input is not read away."""
    pipe_out, pipe_in = os.pipe()
    saved = os.dup(0)
    try:
        os.dup2(pipe_out, 0)
        os.write(pipe_in, b"precious\n")
        assert run(["head", "-1"], timeout=DEADLINE).stdout == ""
    finally:
        os.dup2(saved, 0)
        for fd in (saved, pipe_out, pipe_in):
            os.close(fd)


@pytest.mark.parametrize(
    ("command", "fields"),
    [
        ("", {"shell": True}),
        ("\n", {"shell": True}),
        ("echo $0; case $- in *i*) echo interactive;; esac; pwd; echo $SWX_FROM_PARENT", {"shell": True}),
        ("bin/with space", {}),
        ("with space", {"env": {"PATH": "bin:/usr/bin:/bin"}}),
        (["./with space", "a b"], {"cwd": "bin"}),
        ("with space", {"env": {"PATH": "."}, "cwd": "bin"}),
    ],
)
def test_as_subprocess_runs_it(
    run: Any, command: Any, fields: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SWX_FROM_PARENT", "yes")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bin").mkdir()
    write_script(tmp_path / "bin" / "with space", 'echo "$#"')
    wanted = subprocess.run(command, stdout=subprocess.PIPE, text=True, **fields)
    answer = run(command, **fields)
    assert (answer.stdout, answer.exit_code) == (wanted.stdout, 0)


@pytest.mark.idle
def test_it_is_quick(run: Any) -> None:
    with quicker_than(1.5), pytest.raises(CommandTimeoutError):
        run(["sleep", "1000"], timeout=0.2)
    with quicker_than(3), pytest.raises(CommandTimeoutError):
        run(["bash", "-c", ESCAPES["forking all the time"].format(sleep="sleep 1000")], timeout=0.5)
    with quicker_than(20):
        run("head -c 100000000 /dev/zero | tr '\\0' x", shell=True)


def test_a_dropped_middle_is_told(shells: Any) -> None:
    box = shells(aio=LocalRuntime(output_limit=1024), create=False)
    seen = box.wait(box.aio.execute(Command(command="seq 1000; seq 1000 >&2", shell=True)))
    for text in (seen.stdout, seen.stderr):
        assert text.endswith("\n1000\n") and "\n[... 2869 bytes of output were dropped here ...]\n" in text


async def test_a_close_that_was_cancelled_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime, sleep = LocalRuntime(), f"sleep 89{uuid.uuid4().int % 10**6:06d}"
    await runtime.execute(Command(command=f"{sleep} >/dev/null 2>&1 &", shell=True))
    killing = threading.Event()
    with monkeypatch.context() as patch:
        patch.setattr(_core, "kill_marked", lambda marks: killing.set() or 1)  # it does not succeed
        closing = asyncio.ensure_future(runtime.close())
        await until_async(killing.is_set)
        await cancel(closing)
    await runtime.close()
    assert not running(sleep)


ESCAPES = {
    "double fork": "python3 -c 'import os, sys, time; p = os.fork(); p and time.sleep(60); os.setsid(); "
    "os.fork() and os._exit(0); "
    '[os.close(i) for i in range(3)]; os.chdir("/"); os.execvp("sleep", sys.argv[1:])\' {sleep}',
    "stopped": "{sleep} & kill -STOP $!; wait",
    "another limit": "setsid bash -c 'ulimit -R 1000000; {sleep} & {sleep}; true' & wait",
    "another limit, and no parent": "(setsid bash -c 'ulimit -R 1000000; {sleep} & {sleep}; true' &) ; {sleep}",
    "other limits": "setsid bash -c 'ulimit -R 9 -x 9; setsid bash -c \"{sleep} & {sleep}; true\"; true' & wait",
    "other limits, in the same session": "bash -mc 'ulimit -R 1000; ulimit -x 9; ({sleep} &) ; ({sleep} &)'; {sleep}",
    "forking all the time": "while :; do setsid sh -c '{sleep} & {sleep}' & sleep 0.02; done",
}


@pytest.mark.parametrize("name", ESCAPES)
def test_a_timeout_ends_the_whole_tree(box: Shell, run: Any, name: str) -> None:
    """A tree that has begun: if the time was too short for that, it is tried again with more."""
    seconds = f"87{uuid.uuid4().int % 10**6:06d}"
    script = ESCAPES[name].format(sleep=f"sleep {seconds}")

    async def has_begun(timeout: float) -> bool:
        # A list, so that no shell in between can be blamed.
        command = Command(command=["bash", "-c", script], timeout=timeout)
        task = asyncio.ensure_future(box.aio.execute(command))
        await until_async(lambda: len(running(f"sleep {seconds}")) > 1 or task.done())
        begun = not task.done()
        with pytest.raises(CommandTimeoutError):
            await task
        return begun

    assert any(box.wait(has_begun(timeout)) for timeout in doubled(0.5))
    until(lambda: not running(f"sleep {seconds}"))
    run(["true"])
    assert not running(f"sleep {seconds}")


def test_what_many_programs_left_is_still_known(box: Shell, run: Any) -> None:
    """Only the marks of those that have left something are kept."""
    seconds = f"85{uuid.uuid4().int % 10**6:06d}"

    async def many(count: int) -> None:
        for _ in range(count):
            await box.aio.execute(Command(command=["true"]))

    run(f"setsid sleep {seconds} &", shell=True)
    box.wait(many(600))
    assert len(box.aio._processes._marks) < 256
    assert len(running(f"sleep {seconds}")) == 1
    box.wait(box.aio.close())
    assert not running(f"sleep {seconds}")
