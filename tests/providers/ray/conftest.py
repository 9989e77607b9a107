"""A Ray cluster of two nodes on this machine for all tests of a process; without Ray they are skipped."""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio

pytest.importorskip("ray")

from swerex_c.deployment.config import RayDeploymentConfig
from swerex_c.deployment.ray import RayDeployment
from tests.providers.conftest import bash_only, docker
from tests.support.ray_cluster import Nodes

__all__ = ["bash_only", "docker"]  # of the places, whose fixtures they are

_numbers = itertools.count(os.getpid() * 1000)


@pytest.fixture(scope="session")
def nodes() -> Iterator[Nodes]:
    logging.getLogger("ray").setLevel(logging.ERROR)
    with Nodes() as nodes:
        nodes.add(far=4)
        yield nodes


@pytest.fixture
def mark() -> str:
    """An argument for `sleep` by which a process of this test is known."""
    return f"9{next(_numbers)}"


class Made(list[RayDeployment]):
    """`made(**fields)` is a deployment that is stopped after the test."""

    def __call__(self, **fields: Any) -> RayDeployment:
        fields.setdefault("num_cpus", 0.1)
        fields.setdefault("startup_timeout", 60)
        self.append(RayDeploymentConfig(**fields).get_deployment())  # type: ignore[arg-type]
        return self[-1]


@pytest_asyncio.fixture
async def made(nodes: Nodes) -> AsyncIterator[Made]:
    made = Made()
    yield made
    for deployment in made:
        await deployment.stop()
