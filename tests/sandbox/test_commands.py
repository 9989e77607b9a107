"""Test scripts and commands in a sandbox that is this machine, with `env` as the client."""

from __future__ import annotations

import asyncio
import errno
import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from swerex_c.exceptions import (
    CommandTimeoutError,
    InvalidInputError,
    NotSupportedError,
    ResourceError,
    RuntimeClosedError,
    SandboxLostError,
)
from swerex_c.runtime.abstract import Command, CommandResponse, CreateBashSessionRequest, ReadFileRequest
from swerex_c.runtime.sandbox import SandboxRuntime
from swerex_c.sandbox import clients as clients_module
from swerex_c.sandbox import loader, loader_pool, processes
from swerex_c.sandbox import sandbox as sandbox_module
from swerex_c.sandbox.clients import ClientProcess, CompletedCommand, run_command
from swerex_c.sandbox.commands import execute
from swerex_c.sandbox.loader import Frames
from swerex_c.sandbox.sandbox import Sandbox
from swerex_c.utils import background
from tests.support import needs
from tests.support.harness import in_forked_child
from tests.support.local_backend import NO_CAT, Here
from tests.support.original import run_python
from tests.support.processes import command_lines
from tests.support.sandboxes import Blocking
from tests.support.slow_start import Slow
from tests.support.targets import seconds
from tests.support.wait import DEADLINE, cancel, until, until_async

LIMIT = 1 << 28


@pytest.fixture
def reach(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """`reach(*client, **variables)` creates a sandbox, of which no client may be left before patches are undone."""
    made: list[Any] = []

    def make(*client: str, **variables: str) -> Any:
        made.append(Blocking(Sandbox(Here(*client, **variables))))
        return made[-1]

    yield make
    for sandbox in made:
        sandbox.end_marked(sandbox.mark)  # processes of a failed test would slow down the others
        sandbox.close()
        until(lambda sandbox=sandbox: not clients(sandbox))


@pytest.fixture
def here(reach: Callable[..., Any]) -> Any:
    sandbox = reach()
    sandbox.open(DEADLINE)
    return sandbox


def clients(sandbox: Any) -> list[int]:
    """Return the processes that belong to a sandbox."""
    return needs.mentioning(sandbox.mark)


def sh(sandbox: Any, command: str, **fields: Any) -> CommandResponse:
    return background.run_blocking(execute(sandbox.it, Command(command=command, shell=True, **fields), LIMIT))


def sleeping(number: str) -> list[int]:
    return [pid for pid, line in command_lines().items() if line == f"sleep {number} "]


# -- scripts --------------------------------------------------------------------------------------------------------


def test_a_client_runs_until_it_has_printed_a_line() -> None:
    def say(script: str, until: bytes = b"to ") -> CompletedCommand:
        command = ["bash", "-c", script]
        run = run_command(command, environment=os.environ, timeout=DEADLINE, until=until)
        return background.run_blocking(run)

    said = say("echo $$ >&2; echo no to; printf t; sleep 0.02; echo o be; exec sleep 1000")
    assert (said.code, said.stdout) == (0, b"no to\nto be\n")
    assert not os.path.exists(f"/proc/{int(said.stderr)}")
    said = say("echo no to; printf 'to be'; exit 3")  # not a whole line
    assert (said.code, said.stdout) == (3, b"no to\nto be")
    said = say("echo one; echo two >&2; printf th; sleep 0.02; echo ree", b"")
    assert (said.code, said.stdout, said.stderr) == (0, b"one\nthree\n", b"two\n")
    with pytest.raises(TimeoutError):
        background.run_blocking(run_command(["sleep", "1000"], environment=os.environ, timeout=0.05, until=b"to "))
    with pytest.raises(ResourceError, match="prints more than 64 MiB"):
        say("cat /dev/zero")


class Odd(Here):
    """A sandbox whose client has a NUL in its words, or whose methods raise errors of the system and of a library."""

    def __init__(self, *client: str, opens: Exception | None = None, asks: Exception | None = None) -> None:
        super().__init__(*client)
        self.opens, self.asks = opens, asks

    async def open(self) -> None:
        if self.opens is not None:
            raise self.opens

    async def why_lost(self) -> str | None:
        if self.asks is not None:
            raise self.asks
        return None


@pytest.mark.parametrize(
    ("backend", "kind", "says"),
    [
        (Odd("env", "A=\0"), InvalidInputError, "`env A=.x00` cannot be run .* null byte"),
        (Odd(opens=OSError(28, "No space left on device")), ResourceError, "machine cannot be reached: .* No space"),
        (Odd("false", asks=KeyError("state")), SandboxLostError, "whether this machine still exists: 'state'"),
    ],
)
async def test_only_our_errors_come_out_of_a_backend(backend: Odd, kind: type[Exception], says: str) -> None:
    with pytest.raises(kind, match=says):
        await SandboxRuntime(backend).execute(Command(command=["true"]))


async def test_a_client_that_cannot_be_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime, error = SandboxRuntime(Here()), OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    monkeypatch.setattr(runtime.sandbox.backend, "terminal", mock.Mock(side_effect=error))
    with pytest.raises(ResourceError, match="session cannot be started.*Too many open files"):
        await runtime.create_session()
    await runtime.close()


def test_what_a_client_printed_is_kept_for_a_slow_reader() -> None:
    """The client has ended long before."""

    async def work() -> dict[int, int]:
        client = await ClientProcess.start(lambda: ["bash", "-c", "printf %60000s; printf %5000s >&2"], os.environ)
        await until_async(lambda: client.process.stdout.closed)  # type: ignore[union-attr]
        sizes = {1: 0, 2: 0}
        while (output := await client.receive()) is not None:
            sizes[output[0]] += len(output[1])
        await client.close()
        return sizes

    assert background.run_blocking(work(), DEADLINE) == {1: 60000, 2: 5000}


def test_the_environment_of_the_sandbox_cannot_change_the_loader(reach: Callable[..., Any]) -> None:
    variables = {"LC_ALL": "C.UTF-8", "BASH_ENV": "/dev/stdin", "SHELLOPTS": "xtrace", "BASH_FUNC_read%%": "() { :; }"}
    sandbox = reach(**variables)
    for _ in range(3):
        answer = sandbox.run('echo ${#1} $- $LC_ALL; printf "%s " /proc/self/fd/*; env', "é")
        words = answer.stdout.split()
        assert words[:1] + words[2:3] == [b"1", b"C.UTF-8"] and b"x" not in words[1]
        assert words[3:6] == [b"/proc/self/fd/%d" % number for number in range(3)] and answer.stderr == b""
        assert variables.pop("SHELLOPTS", None) != "" and b"OPTS" not in answer.stdout
        assert all(b"%s=%s" % (name.encode(), value.encode()) in answer.stdout for name, value in variables.items())


def test_what_is_kept_of_much_output(here: Any) -> None:
    answer = here.run("printf 'a%.0s' {1..600}; printf 'b%.0s' {1..600}; echo err >&2", limit=1024)
    assert answer.stdout == b"a" * 512 + b"\n[... 176 bytes of output were dropped here ...]\n" + b"b" * 512
    assert answer.stderr == b"err\n"


def test_records_at_any_boundary() -> None:
    """Output may contain the beginning of a record, and arrive in any pieces."""
    key = b"0123456789abcdef" * 2
    stream = b"noise" + key + b"B;x" + key[:20] + b"y" + key + b"N7;" + key + b"?" + key + b"E-9;late" + key + b"R;"
    for size in range(1, len(stream) + 1):
        seen: list[bytes] = []
        output = Frames(key)
        output.drain(seen.append)
        for at in range(0, len(stream), size):
            output.feed(stream[at : at + size])
        assert b"".join(seen) == b"x" + key[:20] + b"y" + key + b"?"
        assert output.records == {b"B": b"", b"N": b"7", b"E": b"-9", b"R": b""} and output.noise == b"noise"


def test_output_cannot_forge_an_end(here: Any) -> None:
    """Not even with everything that a command can read of its parent shell."""
    look = "tr '\\0' '\\n' </proc/$PPID/environ; tr '\\0' '\\n' </proc/$PPID/cmdline; env; "
    forged = look + "for w in $(tr '\\0' ' ' </proc/$PPID/cmdline); do printf '%sE0;' \"$w\"; done; exit 9"
    for _ in range(2):
        answer = sh(here, forged)
        assert answer.exit_code == 9 and answer.stdout.count("E0;") > 5


# -- commands -------------------------------------------------------------------------------------------------------


def test_a_non_blocking_pipe_loses_nothing(here: Any) -> None:
    leave = "import os; os.set_blocking(1, False); os.set_blocking(2, False); os._exit(3)"
    answer = sh(here, f"head -c 300000 /dev/zero; {sys.executable} -c '{leave}'")
    assert (len(answer.stdout), answer.exit_code) == (300_000, 3)


@pytest.mark.parametrize("known", [":", "swx_jobs=Running"])
@pytest.mark.parametrize("end, code", [("exit 5", 5), ("exit 147", 147), ("kill -9 $$", -9)])
def test_a_command_that_stops_itself_at_once(
    reach: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, end: str, code: int, known: str
) -> None:
    """Let it stop before the loader waits for it, and perhaps just after the loader has read the job table."""
    stopped = f"\n  until [[ $swx_jobs ]]; do :; done; {known}\n  set +m"
    monkeypatch.setattr(loader, "_LOADER", loader._LOADER.replace("\n  set +m", stopped))
    sandbox = reach()
    for _ in range(2):
        answer = sh(sandbox, f"(sleep 0.3; kill -CONT $$) & kill -STOP $$; sleep 0.1; {end}")
        assert answer.exit_code == code


async def test_the_size_of_a_terminal_does_not_depend_on_its_client() -> None:
    async with SandboxRuntime(Here("sh", "-c", 'stty rows 0 cols 0 2>/dev/null; exec "$@"', "sh")) as runtime:
        await runtime.create_session(CreateBashSessionRequest(rows=50, columns=132))
        assert (await runtime.run("stty size")).output == "50 132\n"


# -- failures -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reusable", [True, False])
def test_a_command_that_kills_the_shell_above_it(
    reach: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, reusable: bool
) -> None:
    """Without `cat`, each shell takes one script only."""
    if not reusable:
        monkeypatch.setattr(loader, "_LOADER", loader._LOADER.replace(*NO_CAT))
    sandbox = reach()
    sandbox.open(DEADLINE)
    assert [it.reusable for it in sandbox._shells._idle] == [reusable]
    for command in ("kill -9 $PPID; echo on", "kill -9 $PPID; exec sleep 1"):
        with pytest.raises(ResourceError, match="shell in this machine has ended while the command ran.* status -9$"):
            sh(sandbox, command, timeout=DEADLINE)
    assert sh(sandbox, "echo next").stdout == "next\n"
    sandbox.backend.lost = "This machine was switched off"
    with pytest.raises(SandboxLostError, match="switched off"):
        sh(sandbox, "kill -9 $PPID", timeout=DEADLINE)


def test_a_ready_client_that_died_is_replaced(here: Any) -> None:
    for _ in range(2):
        until(lambda: bool(here._shells._idle))
        for client in list(here._shells._idle):
            client.process.process.kill()
            client.process.process.wait()
        until(lambda: not clients(here))  # a child that it has just forked still holds its input
        assert here.run("echo again").stdout == b"again\n"


@pytest.mark.parametrize(
    "client, kind, words",
    [
        ("/no/such/client", ResourceError, "The program that reaches this machine cannot be started.*No such file"),
        ("exit 255", ResourceError, "its client ended with status 255"),
        ("echo no bash here >&2; exit 127", NotSupportedError, r"no bash in this machine.*\(no bash here\)"),
        ("echo OCI failed; exit 126", NotSupportedError, r"\(OCI failed\)"),
        ('printf %sH3.2..\\; "$8"; printf %sH\\; "$8" >&2; read x', NotSupportedError, "is 3.2; 4.4"),
    ],
)
def test_a_client_that_does_not_start(
    reach: Callable[..., Any], client: str, kind: type[Exception], words: str
) -> None:
    sandbox = reach("sh", "-c", client, "sh") if " " in client else reach(client)
    for _ in range(2):
        with pytest.raises(kind, match=words):
            sandbox.open(DEADLINE)
    sandbox.backend.lost = "It is gone"
    if kind is not NotSupportedError or "3.2" not in words:
        with pytest.raises(SandboxLostError if " " in client else kind):
            sandbox.run("echo")


def test_a_client_that_ends_where_bash_has_run(reach: Callable[..., Any], tmp_path: Path) -> None:
    """While an engine restarts, the exit code 126 does not mean that there is no bash."""
    sandbox = reach("sh", "-c", f'[ ! -e {tmp_path}/ended ] || exit 126; exec env "$@"', "sh")
    assert sandbox.run("echo").code == 0
    (tmp_path / "ended").touch()
    with pytest.raises(ResourceError, match="has ended while the command ran"):
        sh(sandbox, "kill -9 $PPID; exec sleep 1")
    with pytest.raises(ResourceError, match="its client ended with status 126"):
        sandbox.run("echo")


def test_a_client_that_hangs(reach: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox = reach("sh", "-c", "read x")
    with pytest.raises(TimeoutError):
        sandbox.open(0.2)
    monkeypatch.setattr(loader_pool, "START_SECONDS", 0.3)
    with pytest.raises(ResourceError, match="No shell has started in this machine within 0.3 seconds"):
        sandbox.run("echo")


def test_what_clients_print_is_not_output(reach: Callable[..., Any]) -> None:
    greeting = 'echo "Welcome; H5.2.1;"; echo "a warning" >&2; exec env "$@"'
    sandbox = reach("sh", "-c", greeting, "sh")
    for _ in range(3):
        answer = sh(sandbox, "echo out; echo err >&2; exit 3")
        assert (answer.stdout, answer.stderr, answer.exit_code) == ("out\n", "err\n", 3)


@pytest.mark.parametrize("record", ["H", "H5.2", "H5.x.1.", "H--.-.1.", "E5"])
def test_a_false_greeting_is_refused(reach: Callable[..., Any], record: str) -> None:
    sandbox = reach("sh", "-c", f'for word; do :; done; echo "$word{record};"; echo "$word{record};" >&2', "sh")
    with pytest.raises(ResourceError, match="No shell could be started"):
        sandbox.open(DEADLINE)


def test_closing_ends_what_runs(here: Any) -> None:
    number = seconds()
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(sh, here, f"setsid sleep {number}& sleep {number}")
        until(lambda: len(sleeping(number)) == 2)
        here.close()
        with pytest.raises(RuntimeClosedError):
            running.result(DEADLINE)
    assert not sleeping(number) and not clients(here)
    with pytest.raises(RuntimeClosedError):
        sh(here, "echo")
    here.close()


@pytest.mark.parametrize("silent", [pytest.param(False, marks=pytest.mark.idle), True])
def test_an_end_is_awaited_while_it_makes_progress(
    here: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path, silent: bool
) -> None:
    """On a slow machine it may take long; the caller gives up on a silent one, which is logged."""
    number, go = seconds(), tmp_path / "go"
    os.mkfifo(go)
    slow = f"read -r _ <{go}" if silent else "for i in {1..20}; do printf .; sleep 0.1; done"
    with monkeypatch.context() as patch:
        patch.setattr(sandbox_module, "_SILENT_SECONDS", 0.5 if silent else 1.8)
        patch.setattr(processes, "END_MARKED", f"{slow}; {processes.END_MARKED}")
        with pytest.raises(CommandTimeoutError):
            sh(here, f"sleep {number} & sleep {number}", timeout=0.3)
    assert bool(sleeping(number)) == silent == ("has not answered for 0.5 seconds" in caplog.text)
    if silent:
        go.write_text("\n")
    until(lambda: not sleeping(number))


@pytest.mark.parametrize("slow", [False, True])
async def test_a_script_that_waits_in_its_own_shell_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slow: bool
) -> None:
    """Its environment is the loader's, so it is found by its limits; also where one scan takes all the time."""
    if slow:
        once = processes.END_MARKED.replace("limit=$((SECONDS + 5)) scans=3", "limit=$SECONDS scans=1")
        assert once != processes.END_MARKED
        monkeypatch.setattr(processes, "END_MARKED", once)
    os.mkfifo(tmp_path / "pipe")
    runtime = SandboxRuntime(Here())
    reading = asyncio.ensure_future(runtime.read_file(ReadFileRequest(path=str(tmp_path / "pipe"))))
    await until_async(lambda: any(script.note for script in runtime.sandbox._running))
    reading.cancel()
    await asyncio.wait([reading])
    with pytest.raises(OSError, match="No such device"):  # nobody reads it
        os.open(tmp_path / "pipe", os.O_WRONLY | os.O_NONBLOCK)
    await runtime.close()


async def test_a_script_whose_start_is_cancelled_is_ended(here: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The script has been sent, but the write has not returned yet."""
    number, send = seconds(), ClientProcess.send

    async def late(self: ClientProcess, data: bytes) -> None:
        monkeypatch.setattr(ClientProcess, "send", send)
        await self.send(data)
        await asyncio.Event().wait()

    monkeypatch.setattr(ClientProcess, "send", late)
    running = asyncio.ensure_future(background.run(here.it.run(f"sleep {number}")))
    await until_async(lambda: sleeping(number))
    await cancel(running)
    assert not sleeping(number)


def test_shells_that_end_before_their_script(reach: Callable[..., Any]) -> None:
    sandbox = reach("sh", "-c", 'exec "$@" </dev/null', "sh")
    sandbox.open(DEADLINE)
    with pytest.raises(ResourceError, match="runs nothing: each of its shells ends before"):
        sh(sandbox, "true")


PROGRAM = """
import os, sys
from swerex_c.sandbox.sandbox import Sandbox
from swerex_c.utils import background
from tests.support import needs
from tests.support.local_backend import Here

sandbox = Sandbox(Here())
assert background.run_blocking(sandbox.run("echo")).code == 0
mark = sandbox.mark
assert needs.mentioning(mark)
print(mark, flush=True)
{end}
"""


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), 9)", "sys.exit(0)", "os._exit(0)"])
def test_clients_end_with_their_process(end: str) -> None:
    done = run_python(PROGRAM.format(end=end))
    assert (done.returncode, len(done.stdout)) == (-9 if "kill" in end else 0, 25), done.stderr
    until(lambda: not needs.mentioning(done.stdout.strip()))


def test_clients_have_nothing_of_this_process(here: Any) -> None:
    """Clients inherit no descriptor, and are in a session of their own."""
    handle = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(handle, True)
    try:
        running = [here.start("read -r x") for _ in range(4)]
    finally:
        os.close(handle)
    inodes: list[set[str]] = []
    for one in running:
        pid = one.loader.process.process.pid
        assert os.getsid(pid) == pid != os.getsid(0)
        inodes.append({os.readlink(f"/proc/{pid}/fd/{fd}") for fd in (0, 1)})
    assert len(set().union(*inodes)) == 8
    for one in running:
        one.close_input()
        assert one.wait(DEADLINE) == 1
        one.__exit__()


def test_idle_clients_become_few(here: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader_pool, "IDLE_SECONDS", 0.05)

    async def several() -> None:
        await asyncio.gather(*(execute(here.it, Command(command=["sleep", "0.3"]), LIMIT) for _ in range(5)))

    background.run_blocking(several())
    until(lambda: len(here._shells._all) == 1)
    assert here.run("echo").code == 0


def test_a_loader_is_used_again_only_if_nothing_of_its_script_is_left(here: Any) -> None:
    number = seconds()
    parents = [sh(here, f"echo $PPID; {left}").stdout for left in ("", f"sleep {number} &", "", "", "")]
    assert parents[0] == parents[1] != parents[2] == parents[3] == parents[4]
    assert here.backend.started == 2 and len(sleeping(number)) == 1
    with pytest.raises(ResourceError, match="has ended while the command ran"):
        sh(here, "for p in $(pgrep -P $PPID -x cat); do kill $p; done; sleep 0.2; echo")
    assert sh(here, "echo next").stdout == "next\n"
    here.end_marked(here.mark)


async def test_a_second_close_while_the_sandbox_is_opened() -> None:
    opens = threading.Event()

    class Endless(Here):
        async def open(self) -> None:
            opens.set()
            try:
                await asyncio.sleep(1000)
            finally:
                await asyncio.sleep(0.2)

    runtime = SandboxRuntime(Endless())
    openings = [asyncio.ensure_future(runtime.open()) for _ in range(2)]
    await until_async(opens.is_set)
    await asyncio.gather(runtime.close(), runtime.close())
    for opening in openings:
        with pytest.raises(RuntimeClosedError):
            await opening


async def test_a_forked_child_cannot_use_the_parents_sandbox() -> None:
    def be_refused() -> None:
        for call in (runtime.create_session, lambda: runtime.execute(Command(command=["true"]))):
            with pytest.raises(RuntimeClosedError, match="forked"):
                asyncio.run(call())

    runtime = SandboxRuntime(Here())
    assert (await runtime.execute(Command(command=["true"]))).exit_code == 0
    in_forked_child(be_refused)
    assert (await runtime.execute(Command(command=["true"]))).exit_code == 0
    await runtime.close()


async def test_a_forked_child_does_not_hold_the_pipes_of_a_client() -> None:
    held, end = os.pipe()

    async def work() -> None:
        client = await ClientProcess.start(lambda: ["cat"], os.environ)
        child = os.fork()
        if child == 0:
            os.close(end)
            os.read(held, 1)
            os._exit(0)
        try:
            await client.end_input()
            async with asyncio.timeout(DEADLINE):
                assert await client.receive() is None
        finally:
            os.close(end)
            os.waitpid(child, 0)
            await client.kill()

    await background.run(work())
    os.close(held)


async def test_a_start_of_a_client_does_not_hold_up_the_loop(here: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow(clients_module._start)
    monkeypatch.setattr(clients_module, "_start", slow)
    sandbox = Sandbox(Here())
    running = asyncio.ensure_future(background.run(sandbox.run("echo")))
    await slow.begun()
    assert here.run("echo meanwhile").stdout == b"meanwhile\n"
    slow.go_on.set()
    assert (await running).stdout == b"\n"
    await background.run(sandbox.close())


def test_a_directory_that_was_made_anew(reach: Callable[..., Any], tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    sandbox = reach("env", "-C", str(work))
    assert sh(sandbox, f"cd /; rm -r {work}; mkdir {work}; touch {work}/new").exit_code == 0
    for _ in range(4):
        assert sh(sandbox, "ls").stdout == "new\n"
