"""Alias of the module `swerex_c.providers.local.deployment`."""

import sys

from swerex_c.providers.local.deployment import LocalDeployment as LocalDeployment

sys.modules[__name__] = sys.modules[LocalDeployment.__module__]
