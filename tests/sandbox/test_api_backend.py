"""Test `ApiBackend`: the clients of its terminals, and what happens when either end goes away."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import gc
import os
import pty
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
import tty
from pathlib import Path
from typing import Any

import pytest

from swerex_c.exceptions import (
    ConnectionLostError,
    InvalidInputError,
    ResourceError,
    SandboxLostError,
    SessionDiedError,
)
from swerex_c.runtime.abstract import BashAction, Command, CreateBashSessionRequest
from swerex_c.runtime.sandbox import SandboxRuntime
from swerex_c.sandbox.api_backend import ApiBackend
from swerex_c.sync import SyncRuntime
from swerex_c.utils import background
from tests.support.harness import in_forked_child
from tests.support.local_api_backend import Here, HereProgram
from tests.support.processes import alive, written_when_stuck
from tests.support.wait import DEADLINE, until_async


@pytest.fixture
def here(tmp_path: Path) -> Here:
    return Here(tmp_path)


@pytest.fixture
async def runtime(here: Here) -> Any:
    runtime = SandboxRuntime(here)
    yield runtime
    await runtime.close()
    await until_async(lambda: all(it.abandoned == 1 for it in here.programs))


class Client:
    """A client of a backend, on a terminal of its own."""

    def __init__(self, here: ApiBackend, *argv: str, **variables: str) -> None:
        self.line = here.terminal(argv, list(variables))
        self.environment = os.environ | variables

    def __enter__(self) -> Client:
        self.master, slave = pty.openpty()
        tty.setraw(slave)
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("4H", 33, 99, 0, 0))
        self.process = subprocess.Popen(
            self.line, stdin=slave, stdout=slave, stderr=slave, env=self.environment, start_new_session=True
        )
        os.close(slave)
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.master)
        self.process.kill()
        self.process.wait()

    def read(self) -> bytes:
        """Return the next output; b"" at the end."""
        with contextlib.suppress(OSError):
            return os.read(self.master, 65536)
        return b""

    def end(self) -> tuple[bytes, int]:
        """Return the rest of the output, and the exit code."""
        output = b""
        while data := self.read():
            output += data
        return output, self.process.wait(DEADLINE)


def on_terminal(here: ApiBackend, *argv: str, **variables: str) -> tuple[bytes, int]:
    """Run a program to its end on a terminal in raw mode."""
    with Client(here, "sh", "-c", 'stty raw; "$@"', "sh", *argv, **variables) as client:
        return client.end()


def test_a_caller_without_async(tmp_path: Path) -> None:
    def use() -> None:  # in a process that has had no client yet
        with SyncRuntime(SandboxRuntime(Here(tmp_path))) as runtime:
            runtime.create_session()
            assert runtime.run("echo hi").output == "hi\n"
            for name in ("A B", "my.var", "UID", "x; touch file #"):
                with pytest.raises(InvalidInputError, match="cannot be the name"):
                    runtime.create_session(CreateBashSessionRequest(session=name, env={name: ""}))

    in_forked_child(use)


VALUE = "a\"b\\c\n\x01 \udc80 \u20ac '$x"
WORDS = ["", " ", '"', "\\", "\n", "\udcff", "\u20ac", "*"]


def test_output_arguments_and_variables_pass_unchanged(here: Here) -> None:
    for argv, output, code in (
        (["sh", "-c", "echo out; echo err >&2; stty size; exit 7"], b"out\nerr\n33 99\n", 7),
        (["sh", "-c", 'printf %s "$ODD"'], os.fsencode(VALUE), 0),
        (["printf", "%s|", *WORDS], os.fsencode("".join(f"{it}|" for it in WORDS)), 0),
    ):
        assert on_terminal(here, *argv, ODD=VALUE) == (output, code)


@pytest.mark.parametrize(
    ("end", "words"),
    [
        (TimeoutError("the sandbox was\nsilent"), b"the sandbox was silent"),
        (256, b"The sandbox reports an exit code outside 0 to 255: 256"),
        (-1, b"The sandbox reports an exit code outside 0 to 255: -1"),
    ],
)
def test_a_client_prints_why_the_exit_code_is_unknown(
    here: Here, monkeypatch: pytest.MonkeyPatch, end: Exception | int, words: bytes
) -> None:
    async def wait(self: HereProgram) -> int:
        await self.program.wait()
        if isinstance(end, Exception):
            raise end
        return end

    monkeypatch.setattr(HereProgram, "wait", wait)
    assert on_terminal(here, "echo", "a") == (b"a\n%s\r\n" % words, 255)


def test_a_client_that_is_refused_prints_why(here: Here, tmp_path: Path) -> None:
    """Try a dropped backend, a wrong token, a missing server, and a program that the sandbox refuses."""
    dropped, token, server = Client(Here(tmp_path), "true"), Client(here, "true"), Client(here, "true")
    gc.collect()
    token.line[5] = "0" * 32
    server.line[4] += "0"
    for client, said in (
        (dropped, b"The sandbox was closed\r\n"),
        (token, b"The sandbox was closed\r\n"),
        (server, b"The process that reaches the sandbox is gone\r\n"),
    ):
        with client:
            assert client.end() == (said, 255)
    assert not here.programs
    here.refuses = "no\nroom"
    assert on_terminal(here, "true") == (b"no room\r\n", 255)


@pytest.mark.parametrize("size", [0, 1, 65535, 65536, 65537, 3_000_000])
def test_every_byte_passes_both_ways(here: Here, size: int) -> None:
    data = (bytes(range(256)) * (size // 256 + 1))[:size]
    with Client(here, "sh", "-c", f"stty raw -echo; echo; head -c {size}; exit 5") as client:
        assert client.read() == b"\n"
        writing = threading.Thread(target=lambda: open(client.master, "wb", closefd=False).write(data))
        writing.start()
        assert client.end() == (data, 5)
        writing.join()


async def test_a_client_that_is_killed_closes_its_program(here: Here) -> None:
    """The program takes no input, which does not hide the end of the client."""
    with Client(here, "sleep", "1000") as client:
        await until_async(lambda: here.programs)
        os.set_blocking(client.master, False)
        with pytest.raises(BlockingIOError):
            while True:
                os.write(client.master, bytes(65536))
        client.process.kill()
        await until_async(lambda: here.programs[0].abandoned == 1)


async def test_a_terminal_that_is_hung_up_closes_its_program(here: Here) -> None:
    """The client ignores SIGHUP."""
    client = Client(here, "sleep", "1000")
    client.line[:0] = ["sh", "-c", 'trap "" HUP; exec "$@"', "sh"]
    with client:
        await until_async(lambda: here.programs)
        os.close(client.master)
        await until_async(lambda: here.programs[0].abandoned == 1)
        assert await asyncio.to_thread(client.process.wait, DEADLINE) == 255
        client.master = os.open(os.devnull, os.O_RDONLY)


async def test_a_client_that_is_killed_during_the_start_closes_its_program(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program runs before the library returns it."""
    start, killed = here.exec, threading.Event()

    async def slowly(*arguments: Any) -> Any:
        program = await start(*arguments)
        await until_async(killed.is_set)  # as an API whose answer is on its way
        return program

    monkeypatch.setattr(here, "exec", slowly)
    with Client(here, "cat") as client:
        await until_async(lambda: here.programs)
        client.process.kill()
        client.process.wait()
        killed.set()
        await until_async(lambda: here.programs[0].abandoned == 1)


def test_output_that_nobody_reads_stops_the_program(here: Here) -> None:
    """Each step buffers a limited number of bytes."""
    with Client(here, "sh", "-c", "echo $$ >pid; exec yes") as client:
        assert client.read().startswith(b"y\r\n")
        pid = int((here.directory / "pid").read_text())
        assert written_when_stuck(pid) < 8_000_000
        os.kill(pid, signal.SIGKILL)


async def test_a_refusal_raises_its_reason(here: Here, runtime: SandboxRuntime) -> None:
    here.refuses = "quota exceeded"
    with pytest.raises(ResourceError, match="quota exceeded"):
        await runtime.execute(Command(command=["true"]))


async def test_a_connection_that_breaks_during_a_write_raises_its_reason(
    here: Here, runtime: SandboxRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library may raise any exception."""

    async def breaks(self: HereProgram, data: bytes) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        raise RuntimeError("no such\ntask")

    await runtime.execute(Command(command=["true"]))
    monkeypatch.setattr(HereProgram, "send", breaks)
    with pytest.raises(ConnectionLostError, match="no such task"):
        await runtime.execute(Command(command=["true"]))
    here.lost = "The sandbox was ended"
    with pytest.raises(SandboxLostError, match="The sandbox was ended"):
        await runtime.execute(Command(command=["true"]))


async def test_an_unknown_exit_code_is_not_reported_as_one(
    here: Here, runtime: SandboxRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a broken connection, when the shell has ended before it is looked for."""

    async def broken(_: HereProgram) -> int:
        raise ConnectionLostError("the connection broke")

    for session in ("first", "second"):
        await runtime.create_session(CreateBashSessionRequest(session=session, startup_timeout=DEADLINE))
    with monkeypatch.context() as lost:
        lost.setattr(HereProgram, "wait", broken)
        with pytest.raises(SessionDiedError, match="exit code of its command is unknown"):
            await runtime.run_in_session(BashAction(command="exit 3", check="silent", session="first"))
    died = await runtime.run_in_session(BashAction(command="exit 255", check="silent", session="second"))
    assert died.exit_code == 255  # as far as the client can tell, that is the same end


def test_a_forked_process_has_a_loop_of_its_own(here: Here) -> None:
    def use(word: str) -> None:
        assert on_terminal(Here(here.directory), "echo", word) == (f"{word}\n".encode(), 0)

    use("a")
    in_forked_child(lambda: use("b"))


FORKS = """
import os, sys, time
from pathlib import Path
from tests.sandbox.test_api_backend import Client, Here
with Client(Here(Path(sys.argv[1])), "sh", "-c", "echo; exec sleep 1000") as client:
    client.read()
    ours = os.fork()
    if not ours:
        time.sleep(1000)
    print(client.process.pid, ours, client.line[4], flush=True)
    time.sleep(1000)
"""


async def test_a_forked_process_keeps_no_client_when_its_parent_dies(tmp_path: Path) -> None:
    """It keeps the listening socket neither: clients would connect, and wait for an answer."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    parent = subprocess.Popen(
        [sys.executable, "-c", FORKS, str(tmp_path)], stdout=subprocess.PIPE, env=environment, text=True
    )
    assert parent.stdout is not None
    *pids, address = parent.stdout.readline().split()
    client, child = map(int, pids)
    try:
        parent.kill()
        parent.wait()
        parent.stdout.close()
        assert await until_async(lambda: not alive(client)) and alive(child)
        await until_async(lambda: _refuses(address))  # its last thread may have it a moment longer
    finally:
        os.kill(child, signal.SIGKILL)


def _refuses(address: str) -> bool:
    with socket.socket(socket.AF_UNIX) as connection:
        return connection.connect_ex(f"\0{address}") == errno.ECONNREFUSED


def test_a_flood_of_small_outputs_does_not_starve_the_loop(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tasks run between any two outputs."""
    turns, seen, over = 0, list[int](), threading.Event()

    async def take_turns() -> None:
        nonlocal turns
        while not over.is_set():
            await asyncio.sleep(0)
            turns += 1

    async def receive(_: HereProgram) -> tuple[int, bytes] | None:
        seen.append(turns)
        return (1, b"x") if len(seen) <= 5000 else None

    monkeypatch.setattr(HereProgram, "receive", receive)
    taking = background.spawn(take_turns())
    with Client(here, "sh", "-c", "exit 7") as client:
        assert client.end() == (b"x" * 5000, 7)
    over.set()
    taking.result(DEADLINE)
    assert len(set(seen)) == len(seen)
