"""The server process: its options, its key, its addresses, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Coroutine
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import requests

from swerex_c.exceptions import ConnectionLostError, InvalidInputError, RuntimeClosedError
from swerex_c.remote.client import calls as client_channel
from swerex_c.remote.server import auth as keys
from swerex_c.remote.wire import protocol
from swerex_c.runtime.abstract import BashAction, Command, CreateBashSessionRequest
from swerex_c.runtime.remote import RemoteRuntime
from swerex_c.utils import background
from tests.support.harness import needs
from tests.support.processes import Family
from tests.support.server_process import (
    FRONT,
    KEY,
    REMOTE,
    UVICORN,
    Server,
    ended,
    environment,
    in_background,
    serving,
    upgrade,
)
from tests.support.wait import DEADLINE, until, until_async

pytestmark = pytest.mark.slow

MODULE = [sys.executable, "-m", "swerex_c.server"]

# Options: every sentence and exit code


@pytest.mark.parametrize("flag", ["-v", "--version"])
@pytest.mark.parametrize("command", [REMOTE, FRONT, MODULE], ids=["swerex-remote", "swerex-c serve", "module"])
def test_the_version_is_the_apis(flag: str, command: list[str]) -> None:
    done = ended(flag, command=command)
    assert (done.stdout, done.stderr, done.returncode) == ("1.4.0\n", "", 0)


def test_help_shows_the_options() -> None:
    said = ended("--help").stdout
    for name in ("host", "port", "auth-token", "auth-token-file", "unix", "stdio", "tls-cert", "tls-key", "metrics"):
        assert f"--{name} " in said
    assert "0.0.0.0" in said and "SWEREX_AUTH_TOKEN" in said
    assert "127.0.0.1" in ended("--help", command=FRONT).stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "The server needs a key: set --auth-token-file FILE, the variable SWEREX_AUTH_TOKEN, or --auth-token KEY"),
        (["--auth-token", ""], "The key from --auth-token is empty: a server does not start without a key"),
        ([], "The key from SWEREX_AUTH_TOKEN is empty"),
        (["--auth-token", "two\nlines"], "must be printable ASCII"),
        (["--auth-token", " x"], "without a space at either end"),
        (["--auth-token", "a", "--auth-token-file", "b"], "--auth-token-file: not allowed with argument --auth-token"),
        (["--auth-token-file", "/no/such/file"], "cannot be read from /no/such/file: No such file or directory"),
        (["--auth-token", "a", "--port", "x"], "argument --port: invalid number value: 'x'"),
        (["--auth-token", "a", "--port", "65536"], "65536 is not between 0 and 65535"),
        (["--auth-token", "a", "--max-body", "1Q"], "argument --max-body: invalid number value: '1Q'"),
        (["--auth-token", "a", "--max-sessions", "0"], "argument --max-sessions: 0 is not between 1 and"),
        (["--auth-token", "a", "--max-rate", "1"], "unrecognized arguments: --max-rate 1"),
        (["--auth-token", "a", "--graceful", "nan"], "nan is not between 0 and"),
        (["--auth-token", "a", "--log-format", "xml"], "argument --log-format: invalid choice: 'xml'"),
        (["--auth-token", "a", "--no-such-option"], "unrecognized arguments: --no-such-option"),
        (["--auth-token", "a", "--tls-key", "/dev/null"], "A TLS key was given without a certificate"),
        (["--stdio", "--port", "0"], "--stdio cannot be combined with --port"),
        (["--stdio", "--auth-token", "x"], "--stdio cannot be combined with --auth-token"),
        (["--stdio", "--metrics"], "--stdio cannot be combined with --metrics"),
    ],
)  # fmt: skip
def test_wrong_options_are_refused_in_one_sentence(arguments: list[str], says: str) -> None:
    done = ended(*arguments, **({"SWEREX_AUTH_TOKEN": ""} if "SWEREX_AUTH_TOKEN is" in says else {}))
    assert (done.stdout, done.returncode) == ("", 2)
    assert says in done.stderr and done.stderr.startswith("swerex-remote: ") and done.stderr.count("\n") == 1


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = ended("--auth-token", "a", "--host", "127.0.0.1", "--port", str(port))
    assert (done.stdout, done.returncode) == ("", 1)
    assert done.stderr == f"swerex-remote: Cannot listen on port {port} of 127.0.0.1: Address already in use\n"


# The key


def test_a_key_file_loses_its_newline_and_holds_a_key(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(b"secret\r\n")
    path.chmod(0o600)
    assert keys.from_file(path) == "secret"
    for content in (b"", b"\n", b"a\nb\n", b"\xff\n", b"a\0"):
        path.write_bytes(content)
        with pytest.raises(InvalidInputError):
            keys.from_file(path)
    with pytest.raises(InvalidInputError, match="Is a directory"):
        keys.from_file(tmp_path)


def test_the_key_comes_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text(KEY + "\n")
    path.chmod(0o644)
    with serving(tmp_path / "log", "--auth-token-file", str(path), key=None) as server:
        assert server.get("/is_alive").json()["is_alive"] is True
        assert "open to others than its owner (mode 0644): chmod 600 " in server.said() and KEY not in server.said()


def test_the_key_is_out_of_sight(tmp_path: Path) -> None:
    cases = [(REMOTE, ["--auth-token", KEY], None), (REMOTE, [f"--auth-token={KEY}"], None)]
    for command, arguments, variable in [*cases, (REMOTE, [], KEY), (UVICORN, [], KEY)]:
        with serving(tmp_path / "log", *arguments, command=command, key=variable) as server:
            with contextlib.suppress(PermissionError):  # root sees its environment
                for shown in ("cmdline", "environ"):
                    assert KEY.encode() not in Path(f"/proc/{server.process.pid}/{shown}").read_bytes()
            assert server.get("/is_alive").status_code == 200
            ran = server.post("/execute", command="env; tr '\\0' '\\n' < /proc/$PPID/environ", shell=True)
            assert ran.status_code == 200 and "PATH=" in ran.json()["stdout"]
            assert KEY not in ran.json()["stdout"] and KEY not in server.said()


def test_an_emulator_may_not_tell_where_the_key_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "Path", lambda _: Path("/dev/null"))  # qemu-user ends the line before these fields
    assert not keys.hide(KEY)


def test_hiding_a_key_leaves_the_rest_as_it_is(tmp_path: Path) -> None:
    """A key that also occurs elsewhere, such as one letter."""
    with serving(tmp_path / "log", key="e", HERE="e", THERE="see e") as server:
        server.client.headers["X-API-Key"] = "e"
        said = server.post("/execute", command="echo $HERE,$THERE; ls /proc/self", shell=True).json()["stdout"]
        assert said.startswith("e,see e\n") and "environ" in said


# Where it listens


def key_of(server: Server, arguments: str) -> str:
    """Return the key that a server prints, with a line that makes a runtime of these arguments."""
    assert server.process.stdout is not None
    said = b""
    while b"RemoteRuntime(host=" not in said:
        said += os.read(server.process.stdout.fileno(), 65536)
    key = said.decode().split('auth_token="')[1].split('"')[0]
    assert f'    runtime = RemoteRuntime({arguments}, auth_token="{key}")\n' in said.decode()
    assert key not in server.said()
    return key


def test_the_front_listens_here_only_and_makes_a_key(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with serving(tmp_path / "log", "--port", "0", command=FRONT, key=None) as server:
        assert server.url.startswith("http://127.0.0.1:")
        server.client.headers["X-API-Key"] = key_of(server, f'host="http://127.0.0.1", port={server.port}')
        assert server.get("/is_alive").status_code == 200
    with serving(tmp_path / "log", "--unix", str(path), command=FRONT, key=None) as server:
        assert talk(path, upgrade(key=key_of(server, f'host="unix://{path}"'))).startswith(b"HTTP/1.1 101 ")


def test_the_front_takes_a_key(tmp_path: Path) -> None:
    with serving(tmp_path / "log", "--port", "0", command=FRONT) as server:
        assert server.get("/is_alive").status_code == 200
        assert server.terminate() == 0
        assert server.process.stdout is not None and server.process.stdout.read() == b""


# TLS


def test_tls_serves_http_and_frames(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    cert, key = certificate
    arguments = ("--tls-cert", str(cert), "--tls-key", str(key))
    with serving(tmp_path / "log", *arguments) as server:
        assert server.url.startswith("https://127.0.0.1:")
        assert server.get("/is_alive", verify=str(cert)).json()["is_alive"] is True
        context = ssl.create_default_context(cafile=str(cert))
        with (
            socket.create_connection(("127.0.0.1", server.port)) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as wire,
        ):
            wire.sendall(upgrade())
            assert wire.recv(65536).startswith(b"HTTP/1.1 101 ")
        with socket.create_connection(("127.0.0.1", server.port)) as plain:
            plain.sendall(b"GET /is_alive HTTP/1.1\r\n\r\n")
            plain.settimeout(10)
            with contextlib.suppress(ConnectionError):
                assert b"200" not in plain.recv(100)
        assert server.get("/is_alive", verify=str(cert)).status_code == 200
        assert server.terminate() == 0


# The unix socket


def talk(path: Path, data: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX) as wire:
        wire.settimeout(DEADLINE)
        wire.connect(str(path))
        wire.sendall(data)
        return wire.recv(65536)


def test_a_port_and_a_unix_socket_serve_the_same(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with serving(tmp_path / "log", "--port", "0", "--unix", str(path)) as server:
        assert server.url.startswith("http://0.0.0.0:") and server.port > 0  # as the original's callers need it
        assert server.said().count("Listening on") == 1 and f" and unix://{path}\n" in server.said()
        assert server.get("/is_alive").status_code == 200
        head = f"GET /is_alive HTTP/1.1\r\nHost: x\r\nX-API-Key: {KEY}\r\n\r\n"
        assert talk(path, head.encode()).startswith(b"HTTP/1.1 200 ")
        assert talk(path, upgrade()).startswith(b"HTTP/1.1 101 ")
        assert talk(path, upgrade(key="wrong")).startswith(b"HTTP/1.1 401 ")
        assert server.terminate() == 0
    assert not path.exists()


# Strangers on the port of a real server


def test_noise_on_the_port_is_not_logged(tmp_path: Path) -> None:
    with serving(tmp_path / "log") as server:
        before = server.said()
        noise, zeros = random.Random(1).randbytes(3000), bytes(70_000)
        for data in (noise, b"GET " + noise + b"\r\n\r\n", zeros, b"GET " + zeros):
            with socket.create_connection(("127.0.0.1", server.port)) as wire, contextlib.suppress(ConnectionError):
                wire.sendall(data)
                wire.recv(1000)
        assert server.get("/is_alive").status_code == 200
        assert server.said() == before


# The end


@pytest.mark.parametrize(
    ("command", "number"),
    [
        *((REMOTE, number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)),
        (MODULE, signal.SIGTERM),
        *((UVICORN, number) for number in (signal.SIGTERM, signal.SIGINT)),
    ],
)
def test_a_signal_ends_everything_and_answers(
    tmp_path: Path, family: Family, command: list[str], number: signal.Signals
) -> None:
    with serving(tmp_path / "log", command=command) as server:
        assert server.post("/create_session", session_type="bash").status_code == 200
        left = "nohup sleep 1001 >/dev/null 2>&1 & setsid sleep 1002 & (trap '' TERM HUP INT; sleep 1003) & sleep 1004"
        in_session = in_background(lambda: server.post("/run_in_session", action_type="bash", command=left))
        execute = partial(requests.post, server.url + "/execute", headers={"X-API-Key": KEY}, timeout=60)
        executed = in_background(execute, json={"command": "sleep 1005", "shell": True})
        until(lambda: len([c for c in family.living().values() if "sleep 100" in c]) >= 5)
        idle = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(3)]
        idle[1].sendall(b"GET /is_al")
        idle[2].sendall(upgrade())
        assert server.terminate(number=number) in ([0, -number] if command is UVICORN else [0])
        assert not family.left()
        for request in (in_session, executed):
            answer = request.result(DEADLINE)
            assert answer.status_code == 511, answer
            assert answer.json()["swerexception"]["class_path"].endswith("RuntimeClosedError")
        for wire in idle:
            wire.close()
        assert "Traceback" not in server.said()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", server.port))


HANGING = """if True:
    import asyncio, os
    from swerex_c.runtime.local import LocalRuntime
    async def read_file(self, request):
        await asyncio.to_thread(os.read, os.pipe()[0], 1)
    LocalRuntime.read_file = read_file
    """
"""Makes a server whose `read_file` hangs in a thread."""


def hanging(server: Server) -> Future[requests.Response]:
    tasks = f"/proc/{server.process.pid}/task"
    threads = len(os.listdir(tasks))
    reading = in_background(lambda: server.post("/read_file", path="x"))
    until(lambda: len(os.listdir(tasks)) > threads)
    return reading


def test_a_thread_that_hangs_cannot_keep_it(tmp_path: Path) -> None:
    """But it is a failure."""
    command = [*REMOTE[:-1], HANGING + REMOTE[-1]]
    with serving(tmp_path / "log", "--graceful", "1.5", command=command) as server:
        reading = hanging(server)
        began = time.monotonic()
        assert server.terminate() == 1
        assert 1.0 < time.monotonic() - began
        assert isinstance(reading.exception(DEADLINE), requests.ConnectionError)


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    command = [*REMOTE[:-1], HANGING + REMOTE[-1]]
    with serving(tmp_path / "log", "--graceful", "600", command=command) as server:
        hanging(server)
        server.process.terminate()
        until(lambda: not _alive(server), "the first signal is not noticed")
        with pytest.raises(subprocess.TimeoutExpired):
            server.process.wait(0.5)
        assert server.terminate() == -signal.SIGTERM


def _alive(server: Server) -> bool:
    try:
        return server.get("/is_alive").status_code == 200
    except requests.ConnectionError:
        return False


def test_nohup_is_respected(tmp_path: Path) -> None:
    with serving(tmp_path / "log", command=[needs("nohup"), *REMOTE]) as server:
        server.process.send_signal(signal.SIGHUP)
        assert server.get("/is_alive").status_code == 200


# Standard input and output


async def test_frames_over_standard_input_and_output(
    over_stdio: RemoteRuntime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SWEREX_AUTH_TOKEN", KEY)
    command = "echo out; echo err >&2; cat; env; ls -l /proc/$PPID/fd/[012]"
    answer = await over_stdio.execute(Command(command=command, shell=True))
    assert answer.exit_code == 0 and answer.stderr == "err\n"
    assert answer.stdout.startswith("out\n") and KEY not in answer.stdout
    places = {line.split()[-3][-1]: line.split()[-1] for line in answer.stdout.splitlines() if "/fd/" in line}
    assert places == {"0": "/dev/null", "1": str(tmp_path / "log"), "2": str(tmp_path / "log")}
    await over_stdio.close()


async def test_a_program_may_be_slow_to_start(over_stdio: RemoteRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is started once, so that one attempt has all the time that a lost connection has."""
    monkeypatch.setattr(client_channel, "_CONNECT_SECONDS", 0.01)
    assert (await over_stdio.is_alive(timeout=DEADLINE)).is_alive
    await over_stdio.close()


@pytest.mark.parametrize("how", ["end of input", "signal"])
async def test_the_end_of_standard_input_or_a_signal_is_the_end(
    over_stdio: RemoteRuntime, tmp_path: Path, family: Family, how: str
) -> None:
    await over_stdio.create_session(CreateBashSessionRequest(startup_timeout=DEADLINE))
    in_session = BashAction(command="nohup setsid sleep 1001 >/dev/null 2>&1 & sleep 1002")
    calls: list[Coroutine[Any, Any, Any]] = [
        over_stdio.run_in_session(in_session),
        over_stdio.execute(Command(command="sleep 1003", shell=True)),
    ]
    begun = asyncio.gather(*calls, return_exceptions=True)
    await until_async(lambda: len([c for c in family.living().values() if "sleep 100" in c]) >= 3)
    if how == "signal":
        with pytest.raises(RuntimeClosedError):
            await over_stdio.execute(Command(command="kill $PPID; sleep 1004", shell=True))
    else:
        await background.run(_hang_up(over_stdio))
    ends = {type(error) for error in await begun}
    assert ends == {RuntimeClosedError if how == "signal" else ConnectionLostError}
    await until_async(lambda: (tmp_path / "code").exists() and (tmp_path / "code").read_text() == "0\n")
    assert not family.left()
    assert "Traceback" not in (tmp_path / "log").read_text()


def test_a_signal_during_an_upload_is_the_end_too(tmp_path: Path) -> None:
    command = [*REMOTE, "--stdio", "--graceful", "3"]
    upload = [protocol.REQUEST, 1, "upload", 1, {"target_path": str(tmp_path / "target")}]
    sent = upgrade(key=None) + protocol.encode(upload) + protocol.encode([protocol.PING, 1])
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment()) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(sent)
        process.stdin.flush()
        received = b""
        while not received.endswith(protocol.encode([protocol.PONG])):
            received += process.stdout.read1()
        process.terminate()
        assert process.wait(DEADLINE) == 0


@pytest.mark.parametrize("command", [REMOTE, UVICORN])
def test_a_signal_during_an_upload_over_http_is_the_end_too(tmp_path: Path, command: list[str]) -> None:
    place = tmp_path / "place"
    place.mkdir()
    with serving(tmp_path / "log", command=command) as server:
        head = f"POST /upload HTTP/1.1\r\nHost: x\r\nX-API-Key: {KEY}\r\nContent-Length: 100\r\n"
        head += f'X-Swerex-Target: "{place}/target"\r\n\r\n{{"kind": "file", "size": 50}}\nsome'
        with socket.create_connection(("127.0.0.1", server.port)) as wire:
            wire.sendall(head.encode())
            until(lambda: os.listdir(place))
            assert server.terminate() in (0, -signal.SIGTERM)
            assert command is REMOTE or b"RuntimeClosedError" in wire.recv(65536)
        assert not os.listdir(place) and "Traceback" not in server.said()


async def _hang_up(runtime: RemoteRuntime) -> None:
    connection = runtime._frames.shared_channel()._connection
    assert connection is not None
    connection.abort()
