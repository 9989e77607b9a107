"""Alias of the module `swerex_c.providers.fargate.deployment`."""

from swerex_c.providers.fargate.deployment import FargateDeployment as FargateDeployment
from swerex_c.utils.load import add_alias

add_alias(__name__, FargateDeployment)
