"""A deployment in a container of podman."""

from __future__ import annotations

import logging
from typing import Any

from swerex_c.deployment.config import DockerDeploymentConfig
from swerex_c.deployment.docker import DockerDeployment

__all__ = ["DockerDeploymentConfig", "PodmanDeployment"]


class PodmanDeployment(DockerDeployment):
    """A `DockerDeployment` with `container_runtime="podman"`. A configuration says that itself."""

    def __init__(self, *, logger: logging.Logger | None = None, **kwargs: Any):
        """The keyword arguments are the fields of `DockerDeploymentConfig`."""
        super().__init__(logger=logger, **{"container_runtime": "podman", **kwargs})
