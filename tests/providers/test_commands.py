"""Commands outside of sessions, in each kind of place: what they print, how they end, and what becomes of the rest."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from swerex_c.exceptions import (
    CommandTimeoutError,
    InvalidInputError,
    NotSupportedError,
    SandboxLostError,
)
from swerex_c.runtime.abstract import Command, CommandResponse
from swerex_c.sandbox.backend import Backend
from swerex_c.sandbox.commands import execute
from swerex_c.sandbox.sandbox import Sandbox
from tests.support.docker_engine import Engine
from tests.support.sandboxes import Blocking
from tests.support.wait import DEADLINE, until

LIMIT = 1 << 28


class Box:
    """A place in use."""

    def __init__(self, backend: Backend) -> None:
        self.place = Blocking(Sandbox(backend))
        self.place.open(DEADLINE)

    def run(self, command: str | list[str], **fields: Any) -> CommandResponse:
        return asyncio.run(execute(self.place.it, Command(command=command, **fields), LIMIT))

    def sh(self, command: str, **fields: Any) -> CommandResponse:
        return self.run(command, shell=True, **fields)


def test_a_place_with_bash_alone(docker_place: Callable[..., Backend], bash_only: str) -> None:
    box = Box(docker_place(bash_only))
    for count in range(3):
        answer = box.sh(f"echo {count} $0; echo err >&2; exit {count}")
        assert (answer.stdout, answer.stderr, answer.exit_code) == (f"{count} /bin/sh\n", "err\n", count)
    assert box.run(["bash", "-c", 'printf %s "$A"'], env={"A": "x y", "PATH": "/bin"}).stdout == "x y"
    with pytest.raises(InvalidInputError, match="'a.b' cannot be set in container .*, which has no program env"):
        box.run(["bash", "-c", ":"], env={"a.b": "", "PATH": "/bin"})
    with pytest.raises(CommandTimeoutError):
        box.sh("while :; do :; done", timeout=0.3)
    assert box.sh("(while :; do echo noise; done) & echo mine").stdout.startswith(("mine\n", "noise\n"))
    assert box.sh("echo next").stdout == "next\n"
    box.place.close()


def test_a_place_without_bash(docker_place: Callable[..., Backend], ash_min: str) -> None:
    with pytest.raises(NotSupportedError, match="(?s)no bash in container.*executable file not found"):
        Box(docker_place(ash_min))


def test_a_place_that_ends(docker: Engine, docker_place: Callable[..., Any], bash_min: str) -> None:
    backend = docker_place(bash_min)
    box = Box(backend)
    threading.Timer(0.3, lambda: docker.docker("kill", backend.container)).start()
    with pytest.raises(SandboxLostError):
        box.sh("sleep 600", timeout=DEADLINE)
    with pytest.raises(SandboxLostError):
        box.sh("echo")
    box.place.close()


def test_a_frozen_place(docker: Engine, docker_place: Callable[..., Any], bash_min: str) -> None:
    backend = docker_place(bash_min)
    box = Box(backend)
    shells = box.place._shells
    # An engine that pauses a container in which it is starting something may hang.
    until(lambda: bool(shells._idle) and all(loader.settled for loader in shells._idle))
    docker.docker("pause", backend.container)
    try:
        with pytest.raises((CommandTimeoutError, SandboxLostError)):
            box.sh("echo thawed", timeout=0.3)
    finally:
        docker.docker("unpause", backend.container)
    assert box.sh("echo next", timeout=DEADLINE).stdout == "next\n"
    box.place.close()
