"""Alias of the module `swerex_c.providers.remote.deployment`."""

import sys

from swerex_c.providers.remote import deployment
from swerex_c.providers.remote.deployment import RemoteDeployment

__all__ = ["RemoteDeployment"]

sys.modules[__name__] = deployment
