"""What a program has started is ended with it, however the program ends and wherever its children went."""

from __future__ import annotations

import asyncio
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import swerex_c
from swerex_c.runtime.abstract import CloseBashSessionRequest, CreateBashSessionRequest
from swerex_c.runtime.local import LocalRuntime
from tests.support import needs
from tests.support.cli import results
from tests.support.processes import ran, running

# Each child writes a line into the FIFO and keeps it open: its end is the end of them all.
PROGRAM = """
import asyncio, os, resource, signal, sys, time
from swerex_c.runtime.abstract import Command, CreateBashSessionRequest
from swerex_c.runtime.local import LocalRuntime

fifo, end = sys.argv[1:]
stay = f"exec >{fifo} 2>&1 </dev/null; echo; trap '' HUP INT TERM; sleep 1000; :"

async def main():
    runtime = LocalRuntime()
    await runtime.create_session(CreateBashSessionRequest(startup_timeout=60))
    for how in ("nohup sh -c", "setsid -f sh -c", "setsid -f env -i sh -c", "sh -c"):
        await runtime.run(f'{how} "{stay}" >/dev/null 2>&1 &', timeout=60)
    await runtime.execute(Command(command=f'setsid -f sh -c "{stay}"; sh -c "{stay}" >/dev/null 2>&1 &', shell=True))
    if end not in ("exit", "fork"):  # by itself it ends its foreground
        asyncio.ensure_future(runtime.execute(Command(command=["sh", "-c", stay])))
    await asyncio.to_thread(input)
    if end == "no descriptors":
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        try:
            while True:
                os.open("/dev/null", os.O_RDONLY)
        except OSError:
            os.kill(os.getpid(), signal.SIGKILL)
    if end == "SIGKILL":
        await asyncio.sleep(1000)
    if end == "_exit":
        os._exit(0)

async def child():
    runtime = LocalRuntime()
    await runtime.create_session(CreateBashSessionRequest(startup_timeout=60))
    print((await runtime.run("echo forked", timeout=60)).output, end="", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    print((await runtime.run("echo lives", timeout=60)).output, end="", flush=True)
    await runtime.close()

asyncio.run(main())
if end == "fork":
    if os.fork():
        time.sleep(1000)
    asyncio.run(child())
"""
CHILDREN = {"exit": 6, "fork": 6}


@pytest.fixture
def fifo(tmp_path: Path) -> str:
    os.mkfifo(tmp_path / "fifo")
    return str(tmp_path / "fifo")


@contextmanager
def started(fifo: str, end: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Run the program; yields it, and the FIFO, when all its children run."""
    command = [sys.executable, "-c", PROGRAM, fifo, end]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        try:
            source = os.open(fifo, os.O_RDONLY)
            read_lines(source, CHILDREN.get(end, 7))
            yield program, source
            os.close(source)
        finally:
            program.kill()


def go_on(program: subprocess.Popen[str]) -> None:
    assert program.stdin is not None
    program.stdin.write("\n")
    program.stdin.flush()


def read_lines(source: int, count: int) -> None:
    """Wait until so many children have said that they run."""
    while count:
        said = os.read(source, 1)
        assert said
        count -= said == b"\n"


def await_end_of_file(source: int) -> None:
    while os.read(source, 4096):
        pass


def supervisor_of(program: int) -> int:
    """Return the process that has a pidfd of the program as its standard input, and nothing else open."""
    found = []
    for pid in running("swerex-c-supervisor "):
        with suppress(FileNotFoundError):  # another test's has just ended
            lines = Path(f"/proc/{pid}/fdinfo/0").read_text().splitlines()
            found += [pid for line in lines if line.split() == ["Pid:", str(program)]]
    (one,) = found
    return one


@pytest.mark.parametrize("end", ["SIGKILL", "_exit", "exit", "no descriptors"])
def test_nothing_is_left_of_a_program_that_is_gone(fifo: str, end: str) -> None:
    with started(fifo, end) as (program, source):
        supervisor = os.pidfd_open(supervisor_of(program.pid))
        go_on(program)
        if end == "SIGKILL":
            program.kill()
        program.wait()
        await_end_of_file(source)
    select.select([supervisor], [], [])
    os.close(supervisor)


def test_a_forked_child_keeps_its_own(fifo: str) -> None:
    """And does not keep what its parent had."""
    with started(fifo, "fork") as (program, source):
        assert program.stdin is not None and program.stdout is not None
        go_on(program)
        assert program.stdout.readline() == "forked\n"
        program.kill()
        await_end_of_file(source)
        program.stdin.close()
        assert program.stdout.read() == "lives\n"


async def test_the_end_of_a_session_is_that_of_a_program_in_it_and_all_it_left(fifo: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    runtime = LocalRuntime()
    await runtime.create_session(CreateBashSessionRequest(startup_timeout=60))
    command = f"PYTHONPATH={':'.join(sys.path)} {sys.executable} {tmp_path}/program.py {fifo} SIGKILL </dev/zero &"
    await runtime.run(command, timeout=60)
    source = await asyncio.to_thread(os.open, fifo, os.O_RDONLY)
    await asyncio.to_thread(read_lines, source, 7)
    await runtime.close_session(CloseBashSessionRequest())
    await asyncio.to_thread(await_end_of_file, source)
    os.close(source)
    await runtime.close()


def test_a_supervisor_holds_nothing_and_nobody_waits_for_it(fifo: str) -> None:
    with started(fifo, "exit") as (program, _):
        pid = supervisor_of(program.pid)
        assert os.listdir(f"/proc/{pid}/fd") == ["0"]
        assert os.readlink(f"/proc/{pid}/cwd") == "/"
        assert Path(f"/proc/{pid}/environ").read_bytes() == b""
        assert os.getsid(pid) == pid
        status = dict(line.split(":\t") for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        assert int(status["PPid"]) != program.pid
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGQUIT):
            assert int(status["SigBlk"], 16) >> (number - 1) & 1


@pytest.mark.parametrize("how", ["missing", "not executable"])
def test_sessions_run_without_a_supervisor(tmp_path: Path, how: str) -> None:
    """As where an installer keeps no modes, or takes modules only; `doctor` says so."""
    package = tmp_path / "swerex_c"
    shutil.copytree(Path(swerex_c.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    if how == "missing":
        (package / "_supervisor").unlink()
    else:
        (package / "_supervisor").chmod(0o644)

    def cli(*words: str) -> tuple[str, str, int]:
        return results(ran(sys.executable, "-m", "swerex_c", *words, cwd=tmp_path))  # the package of that directory

    assert cli("exec", "echo hi") == ("hi\n", "", 0)
    found = json.loads(cli("doctor", "--json")[0])
    assert found["ok"] and found["findings"]["supervisor"]["good"] is False


def test_the_first_process_of_a_namespace_gets_no_child_that_stays() -> None:
    """As a container's command that waits for all that became its child; the kernel ends the others with it."""
    program = """if True:
        import asyncio, os
        from swerex_c.runtime.abstract import Command
        from swerex_c.runtime.local import LocalRuntime
        print(asyncio.run(LocalRuntime().execute(Command(command="echo $PPID", shell=True))).stdout, end="", flush=True)
        try:
            while True:
                os.wait()
        except ChildProcessError:
            print("none")
    """
    rights = "--pid" if os.geteuid() == 0 else "--map-root-user"
    command = ["unshare", "--pid", rights, "--fork", "--kill-child", "--mount-proc", sys.executable, "-c", program]
    done = ran(*command)
    if "unshare:" in done.stderr:
        needs.skip(needs.Lacking("the right to make a namespace, as root or in one of a user's own"))
    assert (done.stdout, done.stderr) == ("1\nnone\n", "")
