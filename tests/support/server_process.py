"""A server as a process of its own, as `swerex-remote` starts it."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.support.original import original_python, our_environment
from tests.support.processes import file_of_descriptor, ran
from tests.support.wait import DEADLINE, until

KEY = "the-key-of-the-tests"
REMOTE = [sys.executable, "-c", "from swerex_c.cli.serve import main; main()"]
FRONT = [sys.executable, "-m", "swerex_c", "serve"]
UVICORN = [sys.executable, "-m", "uvicorn", "swerex_c.server:app", "--no-access-log"]


def environment(**more: str) -> dict[str, str]:
    found = {**our_environment(), **more}
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "all_proxy"):
        found.pop(name, None)
    return found


def ended(*arguments: str, command: list[str] = REMOTE, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a server that does not start, or ends at once."""
    return ran(*command, *arguments, stdin=subprocess.DEVNULL, env=environment(**env))


class Server:
    """One that runs. `log` is the file with its standard error."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path):
        self.process = process
        self.log = log
        self.url = ""
        self.port = 0
        self.client = requests.Session()
        self.client.trust_env = False
        self.client.headers["X-API-Key"] = KEY

    def said(self) -> str:
        return self.log.read_text()

    def until_listening(self) -> Server:
        def listens() -> re.Match[str] | None:
            assert self.process.poll() is None, self.said()
            return re.search(r"(?:Listening|Uvicorn running) on ([^\s\"]+)", self.said())

        found = until(listens, "it does not listen")
        self.url = found[1]
        port = re.search(r":(\d+)$", self.url)
        self.port = int(port[1]) if port else 0
        return self

    def get(self, path: str, /, **more: Any) -> requests.Response:
        return self.client.get(self.url + path, timeout=DEADLINE, **more)

    def post(self, path: str, /, **body: Any) -> requests.Response:
        return self.client.post(self.url + path, json=body, timeout=60)

    def terminate(self, number: int = signal.SIGTERM) -> int:
        """Send a signal, and return the exit code."""
        self.process.send_signal(number)
        return self.process.wait(DEADLINE)


@contextlib.contextmanager
def serving(
    log: Path, *arguments: str, command: list[str] = REMOTE, key: str | None = KEY, **env: str
) -> Iterator[Server]:
    """Run a server for the block, on a free port of 127.0.0.1 unless the arguments say where."""
    places = () if {"--port", "--unix"} & set(arguments) else ("--host", "127.0.0.1", "--port", "0")
    if key is not None:
        env["SWEREX_AUTH_TOKEN"] = key
    with open(log, "wb") as file:
        process = subprocess.Popen(
            [*command, *places, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=file,
            env=environment(**env),
        )  # fmt: skip
    server = Server(process, log)
    try:
        yield server.until_listening()
    finally:
        server.client.close()
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        assert process.stdout is not None
        process.stdout.close()


def serving_original(log: Path) -> contextlib.AbstractContextManager[Server]:
    command = ["sh", "-c", 'exec "$@" >&2', "sh", original_python(), "-m", "swerex.server"]
    return serving(log, "--auth-token", KEY, command=command, key=None, TERM="dumb", PYTHONPATH="")


def open_files(pid: int) -> int:
    """Count what a process has open. A server that has a key keeps that from all but root."""
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except PermissionError:
        pytest.skip("only root sees what a server with a key has open")


def connections_to(port: int) -> int:
    """Count this process's connections to a port of 127.0.0.1, in any state."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    found = {f"socket:[{line[9]}]" for line in lines if line[2] == f"0100007F:{port:04X}"}
    return len(found & set(map(file_of_descriptor, os.listdir("/proc/self/fd"))))


in_background = ThreadPoolExecutor().submit
"""Make a request in a thread; return its future."""

_channels = itertools.count(1)


def upgrade(
    path: str = "/wire", key: str | None = KEY, version: str = "1.1", channel: str | None = None, **headers: str
) -> bytes:
    """Return the request for frames on a channel; without a name it is a new one."""
    fields = {"Host": "x", "Connection": "Upgrade", "Upgrade": "swerex-frames/1", **headers}
    fields.setdefault("X-Swerex-Channel", f"{next(_channels):032x}" if channel is None else channel)
    if key is not None:
        fields["X-API-Key"] = key
    given = {name: value for name, value in fields.items() if value or name == "X-API-Key"}
    lines = [f"GET {path} HTTP/{version}", *(f"{name}: {value}" for name, value in given.items())]
    return "\r\n".join([*lines, "", ""]).encode()
