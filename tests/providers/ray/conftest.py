"""A Ray cluster of two nodes on this machine for all tests of a process; without Ray they are skipped."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

pytest.importorskip("ray")

from swerex_c.deployment.ray import RayDeployment
from tests.support.ray_cluster import Made, Nodes
from tests.support.targets import seconds


@pytest.fixture
def mark() -> str:
    """An argument for `sleep` by which a process of this test is known."""
    return seconds()


@pytest_asyncio.fixture
async def made(nodes: Nodes) -> AsyncIterator[Made]:
    deployments: list[RayDeployment] = []

    def made(**fields: Any) -> RayDeployment:
        deployments.append(RayDeployment(**{"num_cpus": 0.1, "startup_timeout": 60, **fields}))
        return deployments[-1]

    yield made
    for deployment in deployments:
        await deployment.stop()
