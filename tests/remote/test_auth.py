"""The key of a server: forged requests, its secrecy, and applications without a key."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest
import requests

from swerex_c.remote.server import auth as keys
from tests.support import processes
from tests.support.server_process import KEY, REMOTE, UVICORN, Server, ended, serving
from tests.support.wait import until


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


POST = ("POST /execute HTTP/1.1", "Host: x", "Content-Type: application/json", "Transfer-Encoding: chunked")
CHUNKED = b'1d\r\n{"command":["touch","/a/b"]} \r\n0\r\n'
UPGRADE = ("GET /wire HTTP/1.1", "Host: x", "Connection: upgrade", "Upgrade: swerex-frames/1")
SEVERAL = [[f"X-API-Key: {key}" for key in keys] for keys in (["wrong", KEY], [KEY, "wrong"], [KEY, KEY])]

FORGED: list[tuple[list[str], bytes, tuple[bytes, ...]]] = [
    # the lines of a head, what follows it, and how it may be refused
    ([*POST, f"X-API-Key: {KEY}", "Content-Length: 4"], CHUNKED + b"\r\n", (b"400",)),
    ([*POST, "X-API-Key: wrong"], CHUNKED + f"X-API-Key: {KEY}\r\n\r\n".encode(), (b"400", b"401")),
    *((["GET /is_alive HTTP/1.1", "Host: x", *keys], b"", (b"400",)) for keys in SEVERAL),
    *(([*UPGRADE, *keys], b"", (b"400", b"401")) for keys in SEVERAL),
]


@pytest.mark.parametrize("parser", ["", "httptools", "h11"])
def test_two_lengths_and_a_key_in_a_trailer_or_beside_another_are_refused(tmp_path: Path, parser: str) -> None:
    """By our server, and by the application under uvicorn with either of its parsers."""
    command, options = (UVICORN, ["--http", parser]) if parser else (REMOTE, [])
    if parser:
        pytest.importorskip(parser, reason=f"{parser} is not installed")
    with serving(tmp_path / "log", *options, command=command) as server:
        for lines, body, statuses in FORGED:
            assert answer_to(server, *lines, body=body)[9:12] in statuses, lines


@pytest.mark.parametrize(
    ("variable", "says"),
    [
        ({}, "A key is needed: set the variable SWEREX_AUTH_TOKEN"),
        ({"SWEREX_AUTH_TOKEN": "two\nlines"}, "must be printable ASCII"),
    ],
)
def test_an_application_without_a_key_does_not_start(variable: dict[str, str], says: str) -> None:
    done = ended("--port", "0", command=UVICORN, **variable)
    assert done.returncode != 0 and says in done.stderr and "Traceback" not in done.stderr


def test_an_application_without_lifespan_and_key_refuses_requests(tmp_path: Path) -> None:
    with serving(tmp_path / "log", "--lifespan", "off", command=UVICORN, key=None) as server:
        answer = requests.post(server.url + "/close", headers={"Origin": "http://example.org"}, timeout=30)
        assert answer.status_code == 403 and "has no key" in answer.json()["detail"]


@pytest.mark.parametrize("command", [REMOTE, UVICORN], ids=["swerex-remote", "uvicorn"])
def test_the_users_other_processes_cannot_read_the_key(tmp_path: Path, command: list[str]) -> None:
    """This includes root without the privilege to trace other processes (CAP_SYS_PTRACE)."""
    plain = "import ctypes, os, sys; ctypes.CDLL(None).prctl(24, 19, 0, 0, 0); os.execvp(sys.argv[1], sys.argv[1:])"
    plainly = [sys.executable, "-c", plain]  # PR_CAPBSET_DROP, CAP_SYS_PTRACE
    with serving(tmp_path / "log", command=[*plainly, *command]) as server:
        assert server.get("/is_alive").status_code == 200
        other = subprocess.Popen([*plainly, "sleep", "60"])
        try:
            until(lambda: processes.command_line(other.pid).startswith("sleep "))
            for pid, readable in ((other.pid, True), (server.process.pid, False)):
                done = processes.ran(*plainly, sys.executable, "-c", f"open('/proc/{pid}/mem', 'rb')")
                assert ("PermissionError" not in done.stderr) == readable, done.stderr
        finally:
            other.kill()
            other.wait()
        # A session is a process like any other.
        ran = server.post("/execute", command="stat -c %a /proc/self/environ; : < /proc/self/mem", shell=True)
        assert ran.json()["exit_code"] == 0


_PATHS = ("/", "/metrics", "//metrics", "/%6detrics", "/cancel", "/nowhere", "/wire", "/x/wire", "http://h/", "*")
_WEBSOCKET = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: eA==\r\nSec-WebSocket-Version: 13\r\n"
_FRAMES = "Connection: Upgrade\r\nUpgrade: SWEREX-FRAMES\r\n"
_KEYS = [f"X-API-Key{key}\r\n" for key in (": ", ": wrong", f": {KEY}x", f" : {KEY}")]
_HEADERS = ["", *_KEYS, _WEBSOCKET, _FRAMES, _FRAMES + _KEYS[-1]]


@pytest.mark.parametrize("verb", ["GET", "HEAD", "OPTIONS", "POST", "TRACE"])
@pytest.mark.parametrize("more", _HEADERS)
def test_no_way_leads_past_the_key(swerex_remote: Server, verb: str, more: str) -> None:
    for path in _PATHS:
        with socket.create_connection(("127.0.0.1", swerex_remote.port), 10) as stranger:
            stranger.sendall(f"{verb} {path} HTTP/1.1\r\nHost: x\r\n{more}Content-Length: 0\r\n\r\n".encode())
            answer = stranger.recv(1000)
        assert answer.split(b" ")[1] in (b"400", b"401", b"403"), (path, answer)


def test_keys_cannot_be_guessed_and_do_not_look_like_options() -> None:
    made = {keys.new() for _ in range(1000)}
    assert len(made) == 1000
    assert all(len(key) >= 32 and key.isalnum() and keys.checked(key, "here") == key for key in made)
