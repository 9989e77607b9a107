"""Alias of the module `swerex_c.providers.daytona.deployment`."""

from swerex_c.providers.daytona.deployment import DaytonaDeployment as DaytonaDeployment
from swerex_c.utils.load import add_alias

add_alias(__name__, DaytonaDeployment)
