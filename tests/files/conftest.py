"""Runtimes that copy files and trees by the same rules."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from swerex_c.interfaces import AbstractRuntime
from swerex_c.runtime.remote import RemoteRuntime
from tests.support.runtimes import RUNTIMES
from tests.support.server_process import Server


@pytest.fixture(params=["http", "frames"])
async def remote(request: pytest.FixtureRequest, swerex_remote: Server) -> AsyncIterator[RemoteRuntime]:
    async with RUNTIMES[request.param](swerex_remote) as made:
        await made.wait_until_alive()
        yield made


@pytest.fixture(params=RUNTIMES)
async def runtime(request: pytest.FixtureRequest, swerex_remote: Server) -> AsyncIterator[AbstractRuntime]:
    async with RUNTIMES[request.param](swerex_remote) as made:
        yield made
