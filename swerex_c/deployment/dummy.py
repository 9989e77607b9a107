"""Alias of the module `swerex_c.providers.dummy.deployment`."""

import sys

from swerex_c.providers.dummy import deployment
from swerex_c.providers.dummy.deployment import DummyDeployment

__all__ = ["DummyDeployment"]

sys.modules[__name__] = deployment
