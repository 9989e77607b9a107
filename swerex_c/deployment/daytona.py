"""Alias of the module `swerex_c.providers.daytona.deployment`."""

import sys

from swerex_c.providers.daytona.deployment import DaytonaDeployment as DaytonaDeployment

sys.modules[__name__] = sys.modules[DaytonaDeployment.__module__]
