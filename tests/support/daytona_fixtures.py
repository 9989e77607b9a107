"""What tests of Daytona's deployment have in common: a server, to which the environment leads."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.daytona_server import DaytonaWorld
from tests.support.wait import until

KEY = "key with 'quotes'"


@contextlib.contextmanager
def daytona(directory: Path) -> Iterator[DaytonaWorld]:
    """A server, whose sandboxes are in the directory, and to which the environment leads."""
    places, programs = directory / "places", directory / "programs"
    places.mkdir()
    programs.mkdir()
    with contextlib.closing(DaytonaWorld(places, programs, KEY)) as world, pytest.MonkeyPatch.context() as patch:
        patch.setenv("DAYTONA_API_URL", f"{world.url}/api")
        patch.setenv("DAYTONA_API_KEY", KEY)
        for name in ("DAYTONA_TARGET", "DAYTONA_JWT_TOKEN", "DAYTONA_ORGANIZATION_ID"):
            patch.delenv(name, raising=False)
        yield world


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaytonaWorld]:
    with daytona(tmp_path_factory.mktemp("daytona")) as world:
        yield world


@pytest.fixture
def world(server: DaytonaWorld) -> Iterator[DaytonaWorld]:
    """The server. When a test has ended there is no sandbox."""
    server.begin()
    yield server
    server.refusal = None
    try:
        until(lambda: not server.sandboxes)
    finally:
        server.clear()
