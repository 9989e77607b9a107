"""Alias of the module `swerex_c.providers.ray.deployment`."""

import sys

from swerex_c.providers.ray.deployment import RayDeployment as RayDeployment

sys.modules[__name__] = sys.modules[RayDeployment.__module__]
