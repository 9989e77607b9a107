"""Alias of the module `swerex_c.providers.local.deployment`."""

from swerex_c.providers.local.deployment import LocalDeployment as LocalDeployment
from swerex_c.utils.load import add_alias

add_alias(__name__, LocalDeployment)
