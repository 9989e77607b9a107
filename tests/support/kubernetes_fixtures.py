"""What the tests of pods share: a cluster of the tests' own, or a real one, and deployments on it."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from swerex_c.deployment.kubernetes import KubernetesDeployment
from tests.support.kubernetes_server import ApiServer

__all__ = ["PATIENCE", "Where", "deployment", "server", "soon", "where"]

PATIENCE = 20.0 * float(os.environ.get("SWX_PACE", "1"))


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as server:
        yield server


class Where:
    """A cluster: the tests' own, or the one of SWX_KUBECONFIG."""

    def __init__(self, server: ApiServer | None) -> None:
        self.server = server
        self.kubeconfig = server.kubeconfig if server else os.environ["SWX_KUBECONFIG"]
        self.image = "tests" if server else os.environ.get("SWX_KUBE_IMAGE", "debian:stable-slim")

    def deployment(self, **more: Any) -> KubernetesDeployment:
        return KubernetesDeployment(**{"image": self.image, "kubeconfig": self.kubeconfig, **more})


@pytest.fixture(params=["tests", *(["real"] if "SWX_KUBECONFIG" in os.environ else [])])
def where(request: pytest.FixtureRequest) -> Where:
    return Where(request.getfixturevalue("server") if request.param == "tests" else None)


async def soon(condition: Callable[[], Any]) -> Any:
    end = time.monotonic() + PATIENCE
    while not (found := condition()) and time.monotonic() < end:
        await asyncio.sleep(0.02)
    return found


def deployment(server: ApiServer, **more: Any) -> KubernetesDeployment:
    return KubernetesDeployment(**{"image": "tests", "kubeconfig": server.kubeconfig, "startup_timeout": 60.0, **more})
