"""Deployment in a Podman container."""

from __future__ import annotations

import logging
from typing import Unpack

from swerex_c.providers.docker.config import DockerDeploymentConfig, DockerKeywords
from swerex_c.providers.docker.deployment import DockerDeployment
from swerex_c.utils.load import ConfigSignature

__all__ = ["DockerDeploymentConfig", "PodmanDeployment"]


class PodmanDeployment(DockerDeployment):
    """Deployment in a Podman container: `container_runtime` is "podman" by default.

    A `DockerDeployment` with `container_runtime="podman"` is equivalent.
    """

    __signature__ = ConfigSignature(
        "swerex_c.providers.docker.config:DockerDeploymentConfig", container_runtime="podman"
    )

    def __init__(self, *, logger: logging.Logger | None = None, **kwargs: Unpack[DockerKeywords]):
        """Create a deployment from the fields of a `DockerDeploymentConfig`."""
        kwargs.setdefault("container_runtime", "podman")
        super().__init__(logger=logger, **kwargs)
