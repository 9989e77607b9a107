"""Alias of the module `swerex_c.providers.ray.deployment`."""

import sys

from swerex_c.providers.ray import deployment
from swerex_c.providers.ray.deployment import RayDeployment

__all__ = ["RayDeployment"]

sys.modules[__name__] = deployment
