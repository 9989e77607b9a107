"""Runtimes that copy files and trees by the same rules."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from swerex_c.interfaces import AbstractRuntime
from swerex_c.runtime.remote import RemoteRuntime
from tests.support.runtimes import RUNTIMES
from tests.support.server_process import Server, serving


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("server") / "log") as running:
        yield running


@pytest.fixture(params=["http", "frames"])
async def remote(request: pytest.FixtureRequest, server: Server) -> AsyncIterator[RemoteRuntime]:
    async with RUNTIMES[request.param](server) as made:
        await made.wait_until_alive()
        yield made


@pytest.fixture(params=RUNTIMES)
async def runtime(request: pytest.FixtureRequest, server: Server) -> AsyncIterator[AbstractRuntime]:
    async with RUNTIMES[request.param](server) as made:
        yield made
