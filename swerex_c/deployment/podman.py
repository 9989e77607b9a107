"""Alias of the module `swerex_c.providers.docker.podman`."""

import sys

from swerex_c.providers.docker import podman
from swerex_c.providers.docker.podman import PodmanDeployment

__all__ = ["PodmanDeployment"]

sys.modules[__name__] = podman
