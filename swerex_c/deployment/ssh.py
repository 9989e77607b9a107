"""Alias of the module `swerex_c.providers.ssh.deployment`."""

from swerex_c.providers.ssh.deployment import SSHDeployment as SSHDeployment
from swerex_c.utils.load import add_alias

add_alias(__name__, SSHDeployment)
