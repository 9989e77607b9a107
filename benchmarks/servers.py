"""Servers for the engines named "remote: ...", as their users would start them, and what goes on beside a row.

Each client is a process of its own (place_worker.py, engines/remote.py); remote_floor.py has the servers that do next
to nothing, with which all are compared. A server is started for the first client that needs it, and ends with the run.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from engines.base import free_port
from measure import HERE, Absent, BenchError, Run, Worker, needed_original, our_path
from rows import Result

__all__ = ["BESIDE", "SESSIONS", "Servers"]

DUMMY = """\
import {package}.server as server
from {package}.runtime.dummy import DummyRuntime
server.runtime = DummyRuntime()
server.main()
"""
"""A server whose runtime answers at once: what is left is all but the session."""

START_LIMIT = 20.0
"""Seconds that a server has to start."""

SESSIONS = 100
"""Of what goes on beside a row."""

PLACES: dict[str, tuple[str, str]] = {
    "echo": ("echo", "echo"),
    "echo, unix": ("echo", "echo, unix"),
    "echo, uvloop": ("echo, uvloop", "echo, uvloop"),
    "local": ("local", "local"),
    "copy": ("copy", "copy"),
    "copy to text": ("copy to text", "text"),
    "copy of files": ("copy of files", "files"),
    "bare run": ("bare run", "none"),
    "bare HTTP": ("original", "http"),
    "no server": ("no server", "none"),
    "ours": ("ours", "ours"),
    "ours, uvloop": ("ours, uvloop", "ours"),
    "ours, unix": ("ours", "ours, unix"),
    "ours, stdio": ("ours", "stdio"),
    "ours, alone": ("ours", "ours, alone"),
    "load": ("ours", "ours"),
    "ours on original": ("ours, JSON", "original"),
    "original on ours": ("original", "ours"),
    "original": ("original", "original"),
    "ours, dummy": ("ours", "ours, dummy"),
    "original on ours, dummy": ("original", "ours, dummy"),
    "original, dummy": ("original", "original, dummy"),
}
"""By what stands behind "remote: " in a case: the client, an engine, and its server."""


# ---- servers ----


class Server:
    """A server as a process of its own."""

    def __init__(self, command: list[str], environment: dict[str, str], log: Path) -> None:
        self.log = log
        with log.open("w") as out:
            self.process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT
            )

    def port(self, pattern: str) -> int:
        """The port that its output tells."""
        return int(self.wait(lambda: re.search(pattern, self.log.read_text()))[1])

    def wait(self, ready: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + START_LIMIT
        while time.monotonic() < deadline and self.process.poll() is None:
            if found := ready():
                return found
            time.sleep(0.02)
        raise BenchError(f"a server did not start: {self.log.read_text()[-500:]}")

    def close(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


class Servers:
    """Those of a run."""

    def __init__(self, environment: dict[str, str], directory: Path, *, may_install: bool) -> None:
        self.directory, self.may_install = directory, may_install
        self.key = secrets.token_urlsafe(24)
        self.servers: dict[str, Server] = {}
        self.places: dict[str, Result] = {}
        # The original logs uploads, and commands that time out as what is critical.
        self.environment = {**environment, "SWE_REX_LOG_STREAM_LEVEL": "60"}
        path = our_path()
        self.ours = {**self.environment, **({"PYTHONPATH": path} if path else {})}

    def client(self, name: str) -> Worker:
        """A client of this name that knows its server. Raises Absent or BenchError if one of both cannot be had."""
        client, server = PLACES[name]
        if client.endswith(", uvloop") and importlib.util.find_spec("uvloop") is None:
            raise Absent("no uvloop in this environment")
        place = self.place(server)
        python, environment = sys.executable, self.ours
        if client == "original":
            python, environment = needed_original(self.may_install), self.environment
        process = self.servers.get(server.removesuffix(", unix"))
        worker = Worker(f"remote: {client}", python, environment, "place_worker.py")
        worker.want("connect", place=place, key=self.key, server=process and process.process.pid)
        return worker

    def place(self, name: str) -> Result:
        """Where a server is, which is started for it if it is not there yet."""
        if name not in self.places:
            if name == "none":
                self.places[name] = {}
            elif name == "stdio":
                self.places[name] = {"command": [sys.executable, "-m", "swerex_c.server", "--stdio"]}
            elif name.startswith("ours"):
                self.start_ours(name.removesuffix(", unix"))
            elif name.startswith("original"):
                self.start_original(name)
            else:
                self.start_floor(name)
        return self.places[name]

    @staticmethod
    def command(package: str, name: str) -> list[str]:
        return ["-c", DUMMY.format(package=package)] if name.endswith(", dummy") else ["-m", f"{package}.server"]

    def start_ours(self, name: str) -> None:
        unix = str(self.directory / f"{name}.socket")
        options = ["--host", "127.0.0.1", "--port", "0", "--unix", unix]
        environment = {**self.ours, "SWEREX_AUTH_TOKEN": self.key}
        server = self.launch(name, [sys.executable, *self.command("swerex_c", name), *options], environment)
        self.places[name] = {"port": server.port(r"Listening on http://127\.0\.0\.1:(\d+)")}
        self.places[f"{name}, unix"] = {"unix": unix}

    def start_original(self, name: str) -> None:
        port = free_port()
        options = ["--host", "127.0.0.1", "--port", str(port), "--auth-token", self.key]
        command = [needed_original(self.may_install), *self.command("swerex", name), *options]
        server = self.launch(name, command, self.environment)
        server.wait(lambda: answers(port))
        self.places[name] = {"port": port}

    def start_floor(self, name: str) -> None:
        name = name.removesuffix(", unix")
        unix = str(self.directory / f"{name}.socket")
        server = self.launch(name, [sys.executable, str(HERE / "remote_floor.py"), name, unix], self.ours)
        self.places[name] = {"port": server.port(r"(\d+)\n")}
        self.places[f"{name}, unix"] = {"unix": unix}

    def launch(self, name: str, command: list[str], environment: dict[str, str]) -> Server:
        server = self.servers[name] = Server(command, environment, self.directory / f"{name}.log")
        return server

    def close(self) -> None:
        for server in self.servers.values():
            server.close()


# ---- what goes on beside a row ----

LOAD = "remote: load"


@contextmanager
def busy(run: Run) -> Iterator[None]:
    """A process that computes, for each processor."""
    count = len(os.sched_getaffinity(0))
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.send_signal(signal.SIGKILL)
            process.wait()


def load(run: Run, operation: str, **parameters: object) -> Result:
    worker: Worker | None = run.contender(LOAD)
    if worker is None:
        raise BenchError(f"the load cannot be had: {run.absent[LOAD]}")
    answer = worker.ask(operation, **parameters)
    if answer.get("error") or answer.get("wrong") or answer.get("ended"):
        raise BenchError(f"the load failed: {answer}")
    return answer


@contextmanager
def occupied(run: Run) -> Iterator[None]:
    """A command runs in each of 100 sessions of our server, and prints 20 times a second."""
    flag = run.directory / "released"
    text = f"while [ ! -e {flag} ]; do echo tick; read -t 0.05; done; true"
    load(run, "occupy", sessions=SESSIONS, text=text)
    try:
        yield
    finally:
        load(run, "release", flag=str(flag))


@contextmanager
def hammered(run: Run, what: str = "true") -> Iterator[None]:
    """100 sessions of our server carry out `true` as fast as they can, for a client of ours."""
    flag = run.directory / "enough"
    load(run, "open_all", sessions=SESSIONS if what == "true" else 1)
    worker: Worker = run.contenders[LOAD]
    worker.begin(operation="hammer", sessions=SESSIONS, flag=str(flag), what=what)
    try:
        yield
    finally:
        flag.touch()
        answer = worker.finish()
        if answer.get("error") or answer.get("wrong"):
            raise BenchError(f"the load failed: {answer}")


def forking(run: Run) -> AbstractContextManager[None]:
    """100 callers have our server `execute` programs as fast as it can."""
    return hammered(run, "execute")


BESIDE: dict[str, Callable[[Run], AbstractContextManager[None]]] = {
    "busy": busy,
    "sessions": occupied,
    "requests": hammered,
    "forks": forking,
}
"""What a case may name as `beside`."""
