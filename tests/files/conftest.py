"""Runtimes whose files and trees are copied by the same rules."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from swerex_c.interfaces import AbstractRuntime
from tests.support.runtimes import RUNTIMES
from tests.support.server_process import Server, serving


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("server") / "log") as running:
        yield running


@pytest.fixture(params=RUNTIMES)
async def runtime(request: pytest.FixtureRequest, server: Server) -> AsyncIterator[AbstractRuntime]:
    made = RUNTIMES[request.param](server)
    yield made
    await made.close()
