"""What the tests of pods share: a cluster of the tests' own, or a real one, and deployments on it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from swerex_c.deployment.kubernetes import KubernetesDeployment
from tests.support.kubernetes_server import ApiServer

__all__ = ["Where", "deployment", "server", "where"]



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


def deployment(server: ApiServer, **more: Any) -> KubernetesDeployment:
    return KubernetesDeployment(**{"image": "tests", "kubeconfig": server.kubeconfig, "startup_timeout": 60.0, **more})
