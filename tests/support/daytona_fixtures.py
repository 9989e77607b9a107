"""What tests of Daytona's deployment have in common: a server, to which the environment leads."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.daytona_server import DaytonaWorld
from tests.support.wait import until

KEY = "key with 'quotes'"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaytonaWorld]:
    with daytona(tmp_path_factory.mktemp("daytona")) as world:
        yield world


@contextlib.contextmanager
def daytona(directory: Path) -> Iterator[DaytonaWorld]:
    """A server, whose sandboxes are in the directory."""
    places, programs = directory / "places", directory / "programs"
    places.mkdir()
    programs.mkdir()
    with contextlib.closing(DaytonaWorld(places, programs, KEY)) as world:
        yield world


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
    server.refusal = None
    try:
        until(lambda: not server.sandboxes)
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
