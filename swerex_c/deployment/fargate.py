"""Alias of the module `swerex_c.providers.fargate.deployment`."""

import sys

from swerex_c.providers.fargate.deployment import FargateDeployment as FargateDeployment

sys.modules[__name__] = sys.modules[FargateDeployment.__module__]
