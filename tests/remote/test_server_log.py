"""The output of a server process: an unread output does not block the server, and a read one is complete."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from swerex_c.runtime.abstract import ReadFileRequest
from swerex_c.runtime.remote import RemoteRuntime
from tests.support.server_process import KEY, REMOTE, Server, environment
from tests.support.wait import DEADLINE, until_async

PIPE_BYTES = 1 << 16
DROPPED = re.compile(r"(\d+) log lines were dropped because the output was not read")
SMALL_QUEUE = [*REMOTE[:-1], "import swerex_c.remote.server.logs as h; h.QUEUE_BYTES = 20_000; " + REMOTE[-1]]
LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} [A-Z]+ +[\w.-]+: \S.*")


@contextlib.contextmanager
def serving_unread(*options: str, command: list[str] = REMOTE) -> Iterator[tuple[Server, IO[bytes]]]:
    """Run a server, and give the pipe that is its standard output and error, of which the first line is read."""
    process = subprocess.Popen(
        [*command, "--host", "127.0.0.1", "--port", "0", *options], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, bufsize=0, env=environment(SWEREX_AUTH_TOKEN=KEY),
    )  # fmt: skip
    assert process.stdout is not None
    server = Server(process, Path(os.devnull))
    try:
        listening = re.search(r"Listening on (http://[\d.:]+)", process.stdout.readline().decode())
        assert listening
        server.url = listening[1]
        yield server, process.stdout
    finally:
        server.client.close()
        process.kill()
        process.wait()
        process.stdout.close()


def fail(server: Server, number: int) -> None:
    """Make a request that fails; its line in the log is long and has the number."""
    assert server.get(f"/no.{number}.{'x' * 180}").status_code == 404


def numbers(lines: list[str]) -> list[int]:
    return [int(found[1]) for line in lines if (found := re.search(r"GET /no\.(\d+)\.x{10}.* 404 in ", line))]


@pytest.mark.slow
@pytest.mark.parametrize("form", ["text", "json"])
def test_a_late_reader_learns_how_many_lines_were_dropped(form: str) -> None:
    if form == "json":
        pytest.importorskip("pythonjsonlogger", reason="python-json-logger is not installed")
    count = 500
    with serving_unread("--log-format", form, command=SMALL_QUEUE) as (server, pipe):
        for number in range(count):
            fail(server, number)
        lines: list[str] = []
        while not (lines and DROPPED.search(lines[-1])):  # by itself, without another line
            lines.append(pipe.readline().decode())
            assert lines[-1], "the server has ended"
        fail(server, count)
        assert server.terminate() == 0
        told = DROPPED.search(lines[-1])
        assert told and (lines[-1].startswith("{") if form == "json" else LINE.fullmatch(lines[-1].rstrip()))
        before = numbers(lines)
        assert before == list(range(len(before))) and len(before) + int(told[1]) == count
        after = pipe.read().decode().splitlines()
        assert f"/no.{count}." in after[-1] and not any(DROPPED.search(line) for line in after)


@pytest.mark.slow
async def test_a_server_on_standard_streams_goes_on_without_a_reader_of_its_log(
    over_stdio: RemoteRuntime, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "log")
    pipe = os.open(tmp_path / "log", os.O_RDWR)
    for _ in range(1000):
        with pytest.raises(FileNotFoundError):
            await over_stdio.read_file(ReadFileRequest(path=str(tmp_path / "missing")))
    await over_stdio.close()
    await until_async(lambda: (tmp_path / "code").exists() and (tmp_path / "code").read_text() == "0\n")
    lines = os.read(pipe, 2 * PIPE_BYTES).decode().splitlines()
    os.close(pipe)
    assert sum(map(len, lines)) > PIPE_BYTES * 0.9, "the pipe was full"
    for line in lines[:-1]:
        assert LINE.fullmatch(line), line


# The handler of the log


Logging = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def logging_() -> Iterator[Logging]:
    """Processes that have set their log up as a server does."""
    processes: list[subprocess.Popen[bytes]] = []

    def start(code: str, **more: Any) -> subprocess.Popen[bytes]:
        begin = "import threading, time, warnings\nfrom swerex_c.remote.server import logs\nlog = logs.LOGGER.warning\n"
        places: dict[str, Any] = {"stderr": subprocess.PIPE, "env": environment()} | more
        processes.append(subprocess.Popen([sys.executable, "-c", f"{begin}logs.set_up()\n{code}"], **places))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.wait()
        if process.stderr is not None:
            process.stderr.close()


def test_loggers_warnings_and_tracebacks_come_in_order(logging_: Logging) -> None:
    code = """
from swerex_c.utils.log import get_logger
log("line \\udc80")
get_logger("other").warning("from another logger")
warnings.warn("warning")
thread = threading.Thread(target=lambda: 1 / 0)
thread.start()
thread.join()
log("x" * (1 << 20))
raise ValueError("the end")
"""
    process = logging_(code)
    text = process.communicate(timeout=DEADLINE)[1].decode()
    assert process.returncode == 1
    wanted = (
        " rex-server: line \\udc80\n", " other: from another logger\n", "UserWarning: warning\n",
        "ZeroDivisionError: division by zero\n", "x" * (1 << 20), "\nValueError: the end\n",
    )  # fmt: skip
    places = [text.index(part) for part in wanted]
    assert places == sorted(places), text[:9999]


FLOOD = "for number in range(3000):\n    log(f'{number} ' + 'x' * 200)\n"
CHATTER = """
def chatter():
    while True:
        log("x" * 100)
        time.sleep(0.001)
log("0 " + "x" * 200)
log("y" * 1000000)
threading.Thread(target=chatter, daemon=True).start()
"""


@pytest.mark.parametrize(
    ("code", "exit_code"), [(FLOOD, 0), (FLOOD + "raise SystemExit(7)", 7), (FLOOD + "1 / 0", 1), (CHATTER, 0)]
)
def test_a_process_exits_while_its_output_is_stuck(logging_: Logging, code: str, exit_code: int) -> None:
    """A thread may continue to log meanwhile."""
    process = logging_(code)
    assert process.wait(DEADLINE) == exit_code
    assert process.communicate()[1].splitlines()[0].endswith(b" 0 " + b"x" * 200)


def test_a_descriptor_that_does_not_block_is_written_in_full(logging_: Logging) -> None:
    read, write = os.pipe()
    os.set_blocking(write, False)
    process = logging_("for number in range(5000):\n    log(f'{number} ' + 'x' * 100)\n", stderr=write)
    os.close(write)
    with open(read, "rb") as pipe:
        lines = pipe.read().decode().splitlines()
    assert process.wait(DEADLINE) == 0
    assert [line.partition(": ")[2] for line in lines] == [f"{number} {'x' * 100}" for number in range(5000)]


def test_a_file_that_is_full_loses_its_lines_and_says_so(logging_: Logging, tmp_path: Path) -> None:
    """The limit of a file's size stands for a full disk."""
    code = """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
for number in range(10):
    log(f"{number:455}")  # 500 bytes with what comes before
while logs.handler().dropped < 8:
    time.sleep(0.001)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
log("again")
"""
    with open(tmp_path / "log", "wb") as log:
        process = logging_(code, stderr=log)
    assert process.wait(DEADLINE) == 0
    lines = (tmp_path / "log").read_text().splitlines()
    assert [line.partition(": ")[2].strip() for line in lines if "File too large" not in line] == ["0", "1", "again"]
    assert lines[-2].endswith("8 log lines were dropped because File too large")
