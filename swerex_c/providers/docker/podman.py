"""Deployment in a Podman container."""

from __future__ import annotations

import logging
from typing import Any

from swerex_c.providers.docker.config import DockerDeploymentConfig
from swerex_c.providers.docker.deployment import DockerDeployment

__all__ = ["DockerDeploymentConfig", "PodmanDeployment"]


class PodmanDeployment(DockerDeployment):
    """Deployment in a Podman container: `container_runtime` is "podman" by default.

    A `DockerDeployment` with `container_runtime="podman"` is equivalent.
    """

    def __init__(self, *, logger: logging.Logger | None = None, **kwargs: Any):
        """Create a deployment from the fields of a `DockerDeploymentConfig`."""
        super().__init__(logger=logger, **{"container_runtime": "podman", **kwargs})
