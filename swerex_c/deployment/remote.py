"""Alias of the module `swerex_c.providers.remote.deployment`."""

import sys

from swerex_c.providers.remote.deployment import RemoteDeployment as RemoteDeployment

sys.modules[__name__] = sys.modules[RemoteDeployment.__module__]
