"""A server's key: what a request can do to it, who can read it, and `swerex_c.server:app` under an ASGI server."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import requests

from tests.support import processes
from tests.support.processes import Family
from tests.support.server_process import KEY, REMOTE, Background, Server, environment, serving
from tests.support.wait import DEADLINE, until

UVICORN = [sys.executable, "-m", "uvicorn", "swerex_c.server:app", "--no-access-log"]


@pytest.fixture(params=["swerex-remote", "httptools", "h11"])
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    """Our server, and the application under uvicorn with either of its parsers."""
    if request.param == "swerex-remote":
        with serving(tmp_path / "log") as server:
            yield server
        return
    pytest.importorskip(request.param, reason=f"{request.param} is not installed")
    with under_uvicorn(tmp_path / "log", "--http", request.param) as server:
        yield server


class under_uvicorn:
    """`uvicorn swerex_c.server:app` on a free port."""

    def __init__(self, log: Path, *arguments: str, prefix: Sequence[str] = ()):
        self._listener = socket.create_server(("127.0.0.1", 0))
        command = [*prefix, *UVICORN, "--fd", str(self._listener.fileno()), *arguments]
        with open(log, "wb") as file:
            process = subprocess.Popen(
                command, pass_fds=[self._listener.fileno()], stdin=subprocess.DEVNULL, stdout=file, stderr=file,
                env=environment(SWEREX_AUTH_TOKEN=KEY),
            )  # fmt: skip
        self.server = Server(process, log)
        self.server.port = self._listener.getsockname()[1]
        self.server.url = f"http://127.0.0.1:{self.server.port}"

    def __enter__(self) -> Server:
        self._listener.close()
        assert self.server.get("/is_alive").status_code == 200, self.server.said()
        return self.server

    def __exit__(self, *_: object) -> None:
        self.server.client.close()
        self.server.process.kill()
        self.server.process.wait()


def answer_to(server: Server, *lines: str, body: bytes = b"") -> bytes:
    """Return what a server answers to a request as it is written here, until it closes."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as wire:
        wire.sendall("\r\n".join([*lines, "", ""]).encode() + body)
        said = b""
        while data := wire.recv(65536):
            said += data
            if b"HTTP/1.1 200" in said or b"HTTP/1.1 511" in said:
                break
        return said


POST = ("POST /execute HTTP/1.1", "Host: x", "Content-Type: application/json")
CHUNKED = b'1d\r\n{"command":["touch","MARK"]} \r\n0\r\n'


def test_two_lengths_of_a_body_are_refused(served: Server, tmp_path: Path) -> None:
    body = CHUNKED.replace(b"MARK", b"/a/b") + b"\r\n"
    said = answer_to(
        served, *POST, f"X-API-Key: {KEY}", "Content-Length: 4", "Transfer-Encoding: chunked", body=body
    )  # fmt: skip
    assert said.startswith(b"HTTP/1.1 400 ")


def test_a_trailer_is_no_key(served: Server) -> None:
    body = CHUNKED.replace(b"MARK", b"/a/b") + f"X-API-Key: {KEY}\r\n\r\n".encode()
    said = answer_to(served, *POST, "X-API-Key: wrong", "Transfer-Encoding: chunked", body=body)
    assert said[:13] in (b"HTTP/1.1 400 ", b"HTTP/1.1 401 ")


def test_a_key_may_come_only_once(served: Server) -> None:
    for keys in (["wrong", KEY], [KEY, "wrong"], [KEY, KEY]):
        said = answer_to(served, "GET /is_alive HTTP/1.1", "Host: x", *(f"X-API-Key: {key}" for key in keys))
        assert said.startswith(b"HTTP/1.1 400 ")
        wire = ("Connection: upgrade", "Upgrade: swerex-frames/1")
        said = answer_to(served, "GET /wire HTTP/1.1", "Host: x", *wire, *(f"X-API-Key: {key}" for key in keys))
        assert said[:13] in (b"HTTP/1.1 400 ", b"HTTP/1.1 401 ")


def test_the_key_of_an_application_is_out_of_sight(tmp_path: Path) -> None:
    with under_uvicorn(tmp_path / "log") as server:
        with contextlib.suppress(PermissionError):  # root sees it
            assert KEY.encode() not in Path(f"/proc/{server.process.pid}/environ").read_bytes()
        assert KEY not in server.post("/execute", command="env", shell=True).json()["stdout"]


def test_an_application_without_a_key_does_not_start(tmp_path: Path) -> None:
    env = environment()
    env.pop("SWEREX_AUTH_TOKEN", None)
    done = subprocess.run([*UVICORN, "--port", "0"], capture_output=True, text=True, timeout=30, env=env)
    assert done.returncode != 0
    assert "A key is needed: set the variable SWEREX_AUTH_TOKEN" in done.stderr and "Traceback" not in done.stderr


def test_a_key_that_can_be_none_is_refused(tmp_path: Path) -> None:
    env = environment(SWEREX_AUTH_TOKEN="two\nlines")
    done = subprocess.run([*UVICORN, "--port", "0"], capture_output=True, text=True, timeout=30, env=env)
    assert done.returncode != 0 and "must be printable ASCII" in done.stderr and "Traceback" not in done.stderr


def test_an_application_without_lifespan_and_key_lets_nobody_in(tmp_path: Path) -> None:
    env = environment()
    env.pop("SWEREX_AUTH_TOKEN", None)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        command = [*UVICORN, "--lifespan", "off", "--fd", str(listener.fileno())]
        process = subprocess.Popen(command, pass_fds=[listener.fileno()], env=env, stderr=subprocess.DEVNULL)
        try:
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            answer = requests.post(url + "/close", headers={"Origin": "http://example.org"}, timeout=30)
            assert answer.status_code == 403 and "has no key" in answer.json()["detail"]
        finally:
            process.kill()
            process.wait()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_what_an_application_runs(tmp_path: Path, family: Family, number: int) -> None:
    with under_uvicorn(tmp_path / "log") as server:
        running = Background(lambda: server.post("/execute", command="sleep 1001", shell=True))
        until(lambda: processes.running("sleep 1001"))
        server.terminate(number=number)
        running.join(DEADLINE)
        assert running.answer.status_code == 511


@pytest.mark.parametrize("command", ["swerex-remote", "uvicorn"])
def test_the_users_other_processes_cannot_read_the_key(tmp_path: Path, command: str) -> None:
    """Of root too, as far as it is without the privilege to read every process."""
    plain = "import ctypes, os, sys; ctypes.CDLL(None).prctl(24, 19, 0, 0, 0); os.execvp(sys.argv[1], sys.argv[1:])"
    plainly = [sys.executable, "-c", plain]  # PR_CAPBSET_DROP, CAP_SYS_PTRACE
    served: contextlib.AbstractContextManager[Server] = (
        serving(tmp_path / "log", command=[*plainly, *REMOTE])
        if command == "swerex-remote"
        else under_uvicorn(tmp_path / "log", prefix=plainly)
    )
    with served as server:
        assert server.get("/is_alive").status_code == 200
        other = subprocess.Popen([*plainly, "sleep", "60"])
        try:
            until(lambda: processes.command_line(other.pid).startswith("sleep "))
            for pid, readable in ((other.pid, True), (server.process.pid, False)):
                read = [*plainly, sys.executable, "-c", f"open('/proc/{pid}/mem', 'rb')"]
                done = subprocess.run(read, capture_output=True, text=True)
                assert ("PermissionError" not in done.stderr) == readable, done.stderr
        finally:
            other.kill()
            other.wait()
        # A session is a process like any other.
        ran = server.post("/execute", command="stat -c %a /proc/self/environ; : < /proc/self/mem", shell=True)
        assert ran.json()["exit_code"] == 0
