"""Alias of the module `swerex_c.providers.ray.deployment`."""

from swerex_c.providers.ray.deployment import RayDeployment as RayDeployment
from swerex_c.utils.load import add_alias

add_alias(__name__, RayDeployment)
