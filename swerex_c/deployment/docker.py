"""Alias of the module `swerex_c.providers.docker.deployment`."""

import sys

from swerex_c.providers.docker import deployment
from swerex_c.providers.docker.deployment import DockerDeployment

__all__ = ["DockerDeployment"]

sys.modules[__name__] = deployment
