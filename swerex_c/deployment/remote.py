"""Alias of the module `swerex_c.providers.remote.deployment`."""

from swerex_c.providers.remote.deployment import RemoteDeployment as RemoteDeployment
from swerex_c.utils.load import add_alias

add_alias(__name__, RemoteDeployment)
