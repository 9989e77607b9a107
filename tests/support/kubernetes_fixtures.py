"""What the tests of pods share: a cluster of the tests' own, and deployments on it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from swerex_c.deployment.kubernetes import KubernetesDeployment
from tests.support.kubernetes_server import ApiServer

__all__ = ["deployment", "server"]


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as server:
        yield server


def deployment(server: ApiServer, **more: Any) -> KubernetesDeployment:
    return KubernetesDeployment(**{"image": "tests", "kubeconfig": server.kubeconfig, "startup_timeout": 60.0, **more})
