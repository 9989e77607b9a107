"""Places that are reached by calls: the relays, and what becomes of them when either end goes."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import gc
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from swerex_c.exceptions import (
    CommandTimeoutError,
    ConnectionLostError,
    ResourceError,
    SandboxLostError,
    SwerexException,
)
from swerex_c.runtime.abstract import (
    BashAction,
    Command,
    CreateBashSessionRequest,
)
from swerex_c.runtime.sandbox import SandboxRuntime
from swerex_c.sandbox.api_backend import ApiBackend
from swerex_c.sandbox.backend import Process
from swerex_c.sandbox.relay import HEAD
from swerex_c.utils import background
from swerex_c.utils.threads import Cancellation, in_cancellable_thread
from tests.support.local_api_backend import Here, HereProgram
from tests.support.wait import DEADLINE, until, until_async


@pytest.fixture
def here(tmp_path: Path) -> Here:
    return Here(tmp_path)


@pytest.fixture
async def runtime(here: Here) -> Any:
    runtime = SandboxRuntime(here)
    yield runtime
    await runtime.close()
    await until_async(lambda: all(it.abandoned == 1 for it in here.programs))


def by_relay(here: Here, *argv: str, input: bytes = b"", **variables: str) -> subprocess.CompletedProcess[bytes]:
    line = here.pipes(argv, list(variables))
    return subprocess.run(line, input=input, capture_output=True, env=os.environ | variables, timeout=DEADLINE)


def test_streams_stay_apart_and_the_code_arrives(here: Here) -> None:
    done = by_relay(here, "sh", "-c", "echo out; echo err >&2; exit 7")
    assert (done.stdout, done.stderr, done.returncode) == (b"out\n", b"err\n", 7)


def test_a_signal_is_told_as_shells_tell_it(here: Here) -> None:
    assert by_relay(here, "sh", "-c", "kill -9 $$").returncode == 137


@pytest.mark.parametrize("size", [0, 1, 65535, 65536, 65537, 3_000_000])
def test_every_byte_passes_both_ways(here: Here, size: int) -> None:
    data = (bytes(range(256)) * (size // 256 + 1))[:size]
    assert by_relay(here, "cat", input=data).stdout == data


def test_variables_pass_whatever_is_in_them(here: Here) -> None:
    value = "a\"b\\c\n\x01 \udc80 \u20ac '$x"
    done = by_relay(here, "sh", "-c", 'printf %s "$ODD"', ODD=value)
    assert done.stdout == os.fsencode(value)


def test_words_pass_whatever_is_in_them(here: Here) -> None:
    words = ["", " ", '"', "\\", "\n", "\udcff", "\u20ac", "*"]
    done = by_relay(here, "sh", "-c", 'for w; do printf "%s|" "$w"; done', "sh", *words)
    assert done.stdout == os.fsencode("".join(f"{it}|" for it in words))


def test_a_refusal_is_told(here: Here) -> None:
    here.refuses = "no\nroom"
    done = by_relay(here, "true")
    assert (done.stdout, done.stderr, done.returncode) == (b"", b"no room\n", 255)


def test_why_the_end_is_not_known_is_told(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by an error of the system's."""

    async def broken(self: HereProgram) -> int:
        await self.process.wait()
        raise TimeoutError("the place was silent")

    monkeypatch.setattr(HereProgram, "wait", broken)
    done = by_relay(here, "echo", "a")
    assert (done.stdout, done.stderr, done.returncode) == (b"a\n", b"the place was silent\n", 255)


@pytest.mark.parametrize("code", [256, -1])
def test_an_exit_code_that_is_none_is_no_success(here: Here, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    async def odd(self: HereProgram) -> int:
        await self.process.wait()
        return code

    monkeypatch.setattr(HereProgram, "wait", odd)
    done = by_relay(here, "true")
    assert (done.stderr, done.returncode) == (b"The sandbox reports an exit code outside 0 to 255: %d\n" % code, 255)


def test_a_place_that_was_dropped_lets_no_relay_in(tmp_path: Path) -> None:
    line = Here(tmp_path).pipes(["true"], [])
    gc.collect()
    done = subprocess.run(line, capture_output=True, timeout=DEADLINE)
    assert (done.stderr, done.returncode) == (b"The sandbox was closed\n", 255)


def test_a_wrong_token_is_not_let_in(here: Here) -> None:
    line = here.pipes(["true"], [])
    line[5] = "0" * 32
    assert subprocess.run(line, capture_output=True, timeout=DEADLINE).returncode == 255
    assert not here.programs


async def test_a_relay_that_is_killed_lets_go_of_the_program(here: Here) -> None:
    """Also while the program takes no input: the end of the relay is noticed nevertheless."""
    with subprocess.Popen(here.pipes(["sleep", "1000"], []), stdin=subprocess.PIPE, stdout=subprocess.PIPE) as relay:
        assert relay.stdin is not None
        await until_async(lambda: here.programs)
        os.set_blocking(relay.stdin.fileno(), False)
        with pytest.raises(BlockingIOError):
            for _ in range(1000):
                os.write(relay.stdin.fileno(), bytes(65536))
        relay.kill()
        relay.wait()
        await until_async(lambda: here.programs[0].abandoned == 1)
        relay.stdin = None


async def test_a_relay_that_is_killed_before_the_start_is_told(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program runs already, and would keep its open input."""
    start = here.exec

    async def slowly(*arguments: Any) -> Any:
        program = await start(*arguments)
        await asyncio.sleep(0.3)  # as an API whose answer is on its way
        return program

    monkeypatch.setattr(here, "exec", slowly)
    with subprocess.Popen(here.pipes(["cat"], []), stdin=subprocess.PIPE) as relay:
        await until_async(lambda: here.programs)
        relay.kill()
        relay.wait()
        await until_async(lambda: here.programs[0].abandoned == 1)


def test_output_that_nobody_reads_stops_the_program(here: Here) -> None:
    """What is on its way is bounded at every step."""
    line = here.pipes(["sh", "-c", "yes & echo $! >pid; wait"], [])
    with subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as relay:
        assert relay.stdout is not None
        assert relay.stdout.read(4) == b"y\ny\n"
        pid = int((here.directory / "pid").read_text())
        before = -1
        end = time.monotonic() + DEADLINE
        while (now := int(Path(f"/proc/{pid}/io").read_text().split()[3])) != before:  # wchar
            assert time.monotonic() < end and now < 8_000_000
            before = now
            time.sleep(0.3)
        os.kill(pid, signal.SIGKILL)
        relay.kill()


async def test_the_end_of_the_place_is_told(here: Here, runtime: SandboxRuntime) -> None:
    await runtime.create_session(CreateBashSessionRequest())
    running = asyncio.ensure_future(runtime.run_in_session(BashAction(command="echo a; sleep 1000", timeout=DEADLINE)))
    await until_async(lambda: any(it.master is not None for it in here.programs))
    await asyncio.sleep(0.2)
    here.lost = here.refuses = "The sandbox was ended"
    for each in here.programs:
        if each.process.returncode is None:
            os.killpg(each.process.pid, signal.SIGKILL)
    with pytest.raises(SwerexException) as caught:
        await running
    assert not isinstance(caught.value, CommandTimeoutError)
    with pytest.raises(SandboxLostError, match="The sandbox was ended"):
        await runtime.execute(Command(command=["true"]))


async def test_what_fails_to_start_says_why(here: Here) -> None:
    here.refuses = "quota exceeded"
    runtime = SandboxRuntime(here)
    with pytest.raises(ResourceError, match="quota exceeded"):
        await runtime.execute(Command(command=["true"]))
    await runtime.close()


async def test_a_connection_that_breaks_under_the_input_is_told(
    here: Here, runtime: SandboxRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the place's library raises then."""

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


@pytest.fixture
def ended() -> Iterator[list[str]]:
    yield []


async def _note_end(ended: list[str], seconds: float = 1000) -> str:
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        ended.append("cancelled")
        raise
    ended.append("done")
    return "answer"


def test_a_call_that_takes_too_long_is_cancelled(ended: list[str]) -> None:
    with pytest.raises(TimeoutError):
        background.run_blocking(_note_end(ended), 0.05)
    until(lambda: ended == ["cancelled"])


def test_a_cancellation_of_a_thread_cancels_the_coroutine_that_it_waits_for(ended: list[str]) -> None:
    calls = Cancellation()
    threading.Timer(0.1, calls.cancel).start()
    with pytest.raises(concurrent.futures.CancelledError):
        calls.run(lambda: background.run_blocking(_note_end(ended)))
    until(lambda: ended == ["cancelled"])
    with pytest.raises(concurrent.futures.CancelledError):
        calls.run(lambda: background.run_blocking(_note_end(ended)))
    assert ended == ["cancelled"]


def test_what_must_be_known_may_end_after_a_cancellation(ended: list[str]) -> None:
    calls = Cancellation()
    threading.Timer(0.1, calls.cancel).start()
    assert calls.run(lambda: background.run_blocking(_note_end(ended, 0.5), patience=DEADLINE)) == "answer"
    with pytest.raises(concurrent.futures.CancelledError):
        calls.check()


def test_a_cancellation_ends_a_coroutine_that_is_not_done_in_time(ended: list[str]) -> None:
    calls = Cancellation()
    threading.Timer(0.1, calls.cancel).start()
    with pytest.raises(concurrent.futures.CancelledError):
        calls.run(lambda: background.run_blocking(_note_end(ended), patience=0.1))
    until(lambda: ended == ["cancelled"])


def test_a_call_in_a_thread_ends_with_a_task_that_has_no_time_left(ended: list[str]) -> None:
    async def wait() -> None:
        async with asyncio.timeout(0.1):
            await in_cancellable_thread(Cancellation(), background.run_blocking, _note_end(ended))

    with pytest.raises(TimeoutError):
        asyncio.run(wait())
    until(lambda: ended == ["cancelled"])


def test_a_forked_process_has_a_loop_of_its_own(here: Here) -> None:
    assert by_relay(here, "echo", "a").stdout == b"a\n"
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if by_relay(Here(here.directory), "echo", "b").stdout == b"b\n" else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


FORKS = """
import os, subprocess, sys, time
from pathlib import Path
from tests.support.local_api_backend import Here
from swerex_c.utils import background as loops
here = Here(Path(sys.argv[1]))
relay = subprocess.Popen(here.pipes(["sh", "-c", "echo; exec sleep 1000"], []), stdin=-3, stdout=-1)
relay.stdout.read(1)
address = here.pipes([], [])[4]
ours = os.fork()
if not ours:
    time.sleep(1000)
print(relay.pid, ours, address, flush=True)
time.sleep(1000)
"""


async def test_a_forked_process_keeps_no_relay_when_its_parent_dies(tmp_path: Path) -> None:
    """Nor the address, at which others would wait for an answer."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    parent = subprocess.Popen(
        [sys.executable, "-c", FORKS, str(tmp_path)], stdout=subprocess.PIPE, env=environment, text=True
    )
    assert parent.stdout is not None
    relay, child, address = parent.stdout.readline().split()
    try:
        parent.kill()
        parent.wait()
        parent.stdout.close()
        assert await until_async(lambda: not _lives(relay)) and _lives(child)
        await until_async(lambda: _refuses(address))  # its last thread may have it a moment longer
    finally:
        os.kill(int(child), signal.SIGKILL)


def _refuses(address: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            connection.connect(f"\0{address}")
        except ConnectionRefusedError:
            return True
    return False


def _lives(pid: str) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


# The loop is everybody's


class Chatter(Process):
    """Prints a byte at a time, all of them at once, and takes no input."""

    def __init__(self, outputs: int) -> None:
        self.outputs = outputs
        self.abandoned = threading.Event()

    async def send(self, data: bytes) -> None:
        await asyncio.Event().wait()

    async def receive(self) -> tuple[int, bytes] | None:
        if not self.outputs:
            return None
        if self.outputs < 0:
            await asyncio.Event().wait()
        self.outputs -= 1
        return 1, b"x"

    async def wait(self) -> int:
        return 7

    async def end_input(self) -> None:
        pass

    async def close(self) -> None:
        self.abandoned.set()


class Chatty(ApiBackend):
    name = "a place of small words"

    def __init__(self, outputs: int) -> None:
        self.program = Chatter(outputs)

    async def exec(self, *_: Any) -> Process:
        return self.program

    async def why_lost(self) -> str | None:
        return None


async def _turns(within: list[float], over: asyncio.Event) -> None:
    """How much work of the loop's thread lies between two turns of somebody who is always ready."""
    before = time.thread_time()
    while not over.is_set():
        await asyncio.sleep(0)
        within.append((now := time.thread_time()) - before)
        before = now


def _with_turns(line: list[str], work: Any) -> float:
    """How much of the loop's work was done in long turns, of 0 to 1, while `work` talks to it as a relay would.

    One long turn is no sign: the garbage collector may have had it.
    """
    within: list[float] = []
    over = asyncio.Event()
    looking = background.spawn(_turns(within, over))
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(DEADLINE)
            connection.connect(f"\0{line[4]}")
            head = b"\0".join([line[5].encode(), b"", b"", b"0", b"true"])
            connection.sendall(struct.pack(HEAD, b"H", len(head)) + head)
            work(connection)
    finally:
        background.run_blocking(_set(over), DEADLINE)
        looking.result(DEADLINE)
    return sum(it for it in within if it > 0.006) / sum(within)


async def _set(event: asyncio.Event) -> None:
    event.set()


@pytest.mark.idle
def test_a_flood_of_small_outputs_leaves_others_their_turns() -> None:
    place = Chatty(50_000)
    got = bytearray()

    def read(connection: socket.socket) -> None:
        while data := connection.recv(1 << 20):
            got.extend(data)

    held = _with_turns(place.pipes(["true"], []), read)
    size = struct.calcsize(HEAD) + 1
    assert bytes(got[: size * 50_000]) == (struct.pack(HEAD, b"O", 1) + b"x") * 50_000
    assert bytes(got[size * 50_000 :]) == struct.pack(HEAD, b"X", 1) + b"7"
    assert held < 0.4


@pytest.mark.idle
def test_a_flood_of_small_inputs_leaves_others_their_turns() -> None:
    """Of one who does not keep to the window either."""
    place = Chatty(-1)

    def write(connection: socket.socket) -> None:
        connection.sendall((struct.pack(HEAD, b"I", 1) + b"x") * 50_000)
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1) == b"" and place.program.abandoned.wait(DEADLINE)

    assert _with_turns(place.pipes(["true"], []), write) < 0.4
