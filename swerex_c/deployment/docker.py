"""Alias of the module `swerex_c.providers.docker.deployment`."""

import sys

from swerex_c.providers.docker.deployment import DockerDeployment as DockerDeployment

sys.modules[__name__] = sys.modules[DockerDeployment.__module__]
