"""Alias of the module `swerex_c.providers.daytona.deployment`."""

import sys

from swerex_c.providers.daytona import deployment
from swerex_c.providers.daytona.deployment import DaytonaDeployment

__all__ = ["DaytonaDeployment"]

sys.modules[__name__] = deployment
