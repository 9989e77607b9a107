"""Alias of the module `swerex_c.providers.local.deployment`."""

import sys

from swerex_c.providers.local import deployment
from swerex_c.providers.local.deployment import LocalDeployment

__all__ = ["LocalDeployment"]

sys.modules[__name__] = deployment
