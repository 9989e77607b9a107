"""Alias of the module `swerex_c.providers.fargate.deployment`."""

import sys

from swerex_c.providers.fargate import deployment
from swerex_c.providers.fargate.deployment import FargateDeployment

__all__ = ["FargateDeployment"]

sys.modules[__name__] = deployment
