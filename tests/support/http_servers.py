"""Servers as processes of their own, of ours and of the original."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.original import ROOT, original_python
from tests.support.server_process import KEY

SERVE = """if True:
    import json, socket, sys
    import uvicorn
    from swerex_c import server
    from swerex_c.remote.server.app import create_app
    from swerex_c.remote.server.limits import Limits
    from swerex_c.remote.server.service import Service
    key, descriptor, limits = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
    server.AUTH_TOKEN = key
    if sys.argv[4] == "dummy":
        from swerex_c.runtime.dummy import DummyRuntime
        server.runtime = DummyRuntime()
    app = create_app(Service(server, Limits(**limits))) if limits else server.app
    config = uvicorn.Config(app, log_level="warning")
    uvicorn.Server(config).run(sockets=[socket.socket(fileno=descriptor)])
"""


@dataclass
class Server:
    """A server that runs."""

    url: str
    process: subprocess.Popen[bytes]
    kind: str
    log: Path
    key: str = KEY

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def alive(self) -> bool:
        request = urllib.request.Request(self.url + "/is_alive", headers={"X-API-Key": self.key})
        try:
            with urllib.request.urlopen(request, timeout=5) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False


def environment() -> dict[str, str]:
    return {**os.environ, "TERM": "dumb", "PYTHONPATH": str(ROOT)}


def start_ours(log: Path, limits: str = "{}", port: int = 0, runtime: str = "local") -> Server:
    """A server of ours on a port of this machine; `port` 0 is any. The runtime is "local" or "dummy"."""
    with contextlib.closing(socket.socket()) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(128)
        number = listener.fileno()
        command = [sys.executable, "-c", SERVE, KEY, str(number), limits, runtime]
        with open(log, "ab") as output:
            process = subprocess.Popen(
                command, pass_fds=[number], env=environment(), stdout=output, stderr=output, cwd=log.parent
            )
        server = Server(f"http://127.0.0.1:{listener.getsockname()[1]}", process, "ours", log)
    wait(server)
    return server


def start_original(log: Path) -> Server:
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [original_python(), "-m", "swerex.server", "--host=127.0.0.1", f"--port={port}", f"--auth-token={KEY}"]
    original_environment = {k: v for k, v in environment().items() if k != "PYTHONPATH"}
    with open(log, "ab") as output:
        process = subprocess.Popen(command, env=original_environment, stdout=output, stderr=output, cwd=log.parent)
    server = Server(f"http://127.0.0.1:{port}", process, "original", log)
    wait(server)
    return server


def wait(server: Server) -> None:
    deadline = time.monotonic() + 60
    while not server.alive():
        assert server.process.poll() is None, server.log.read_text()
        assert time.monotonic() < deadline, server.log.read_text()
        time.sleep(0.05)


def stop(server: Server) -> None:
    server.process.terminate()
    try:
        server.process.wait(20)
    except subprocess.TimeoutExpired:
        server.process.kill()
        server.process.wait()


@pytest.fixture(scope="session")
def our_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = start_ours(tmp_path_factory.mktemp("ours") / "log")
    yield server
    stop(server)


@pytest.fixture(scope="session")
def original_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = start_original(tmp_path_factory.mktemp("original") / "log")
    yield server
    stop(server)


class Place:
    def __init__(self, runtime: Any, key: str = KEY):
        self.runtime = runtime
        self.AUTH_TOKEN = key
