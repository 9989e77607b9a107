"""Alias of the module `swerex_c.providers.docker.deployment`."""

from swerex_c.providers.docker.deployment import DockerDeployment as DockerDeployment
from swerex_c.utils.load import add_alias

add_alias(__name__, DockerDeployment)
