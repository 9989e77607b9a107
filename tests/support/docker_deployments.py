"""Deployments in containers that end with their test."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from swerex_c.deployment.docker import DockerDeployment
from swerex_c.providers import ownership
from tests.support.docker_engine import Engine

Make = Callable[..., DockerDeployment]

NO_NETWORK = ["--network", "none"]


@pytest.fixture
def reach(docker: Engine, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """Point the environment of this process to the tests' engine."""
    docker.lead(monkeypatch)
    monkeypatch.setenv("DOCKER_BUILDKIT", "0")
    return docker


@pytest.fixture
def make(reach: Engine, bash_only: str) -> Iterator[Make]:
    """`make(**fields)` creates a deployment of the smallest image, which is stopped after the test."""
    made: list[DockerDeployment] = []

    def one(kind: type[DockerDeployment] = DockerDeployment, **fields: Any) -> DockerDeployment:
        fields = {"image": bash_only, "pull": "never", "docker_args": NO_NETWORK, "startup_timeout": 60, **fields}
        made.append(kind(**fields))
        return made[-1]

    yield one
    for deployment in made:
        asyncio.run(deployment.stop())
    if left := names(reach):  # of a test that failed
        reach.docker("rm", "-f", *left, check=False)


def names(engine: Engine, label: str = ownership.LABEL) -> list[str]:
    return engine.docker("ps", "-a", "--filter", f"label={label}", "--format", "{{.Names}}").split()
