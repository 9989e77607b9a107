"""The tests' own Daytona as a process, and what they ask of it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import swerex_c
from tests.support.wait import DEADLINE, until

KEY = "key with 'quotes'"
SERVER = Path(__file__).with_name("daytona_server.py")


class DaytonaWorld:
    """The server. What a test has set is undone by `begin`."""

    def __init__(self, port: int, directory: Path) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.directory = directory
        self.programs = directory.parent / "programs"

    def _ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(self.url + path, data, timeout=DEADLINE) as answer:
            return json.load(answer)

    def begin(self) -> None:
        plain = {"build": 0.0, "delay": 0.0, "lag": 0.0, "refusal": None, "upgrades": True, "asked": [], "counts": {}}
        self.set(**plain)

    def set(self, **values: Any) -> None:
        self._ask("/control/set", values)

    def sandboxes(self) -> list[dict[str, Any]]:
        return list(self._ask("/control")["sandboxes"])

    def asked(self) -> list[dict[str, Any]]:
        """The bodies of the requests for a new sandbox."""
        return list(self._ask("/control")["asked"])

    def count(self, what: str) -> int:
        return int(self._ask("/control")["counts"].get(what, 0))

    def lose(self, sandbox: str, state: str, reason: str | None = None) -> None:
        self._ask("/control/lose", {"id": sandbox, "state": state, "reason": reason})

    def clear(self) -> None:
        self._ask("/control/clear", {})

    def cut(self, sandbox: str) -> None:
        self._ask("/control/cut", {"id": sandbox})


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaytonaWorld]:
    with daytona(tmp_path_factory.mktemp("daytona")) as world:
        yield world


@contextlib.contextmanager
def daytona(directory: Path) -> Iterator[DaytonaWorld]:
    """A server, whose sandboxes are in the directory."""
    programs = directory / "programs"
    programs.mkdir()
    remote = programs / "swerex-remote"
    package = Path(swerex_c.__file__).parent.parent
    main = "from swerex_c.cli.serve import main; main()"
    remote.write_text(f'#!/bin/sh\nPYTHONPATH={package} exec {sys.executable} -c "{main}" "$@"\n')
    remote.chmod(0o755)
    places = directory / "places"
    places.mkdir()
    variables = os.environ | {"PATH": f"{programs}:{os.environ['PATH']}"}
    with subprocess.Popen(
        [sys.executable, str(SERVER), str(places), KEY],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=variables,
        text=True,
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            yield DaytonaWorld(int(process.stdout.readline()), places)
        finally:
            process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(DEADLINE)
            process.kill()


def lead(server: DaytonaWorld, patch: pytest.MonkeyPatch) -> None:
    """Let the environment lead to the server."""
    patch.setenv("DAYTONA_API_URL", f"{server.url}/api")
    patch.setenv("DAYTONA_API_KEY", KEY)
    for name in ("DAYTONA_TARGET", "DAYTONA_JWT_TOKEN", "DAYTONA_ORGANIZATION_ID"):
        patch.delenv(name, raising=False)


@pytest.fixture
def world(server: DaytonaWorld, monkeypatch: pytest.MonkeyPatch) -> Iterator[DaytonaWorld]:
    """The server, to which the environment leads. When a test has ended there is no sandbox."""
    lead(server, monkeypatch)
    server.begin()
    yield server
    server.set(refusal=None)
    try:
        until(lambda: not server.sandboxes())
    finally:
        server.clear()


@pytest.fixture
async def make(world: DaytonaWorld) -> AsyncIterator[Callable[..., Any]]:
    """Makes deployments, which are stopped when the test has ended."""
    from swerex_c.deployment.daytona import DaytonaDeployment

    made: list[DaytonaDeployment] = []

    def make(kind: type[DaytonaDeployment] = DaytonaDeployment, **kwargs: Any) -> DaytonaDeployment:
        made.append(kind(**kwargs))
        return made[-1]

    yield make
    for each in made:
        await each.stop()
