"""Alias of the module `swerex_c.providers.ssh.deployment`."""

import sys

from swerex_c.providers.ssh import deployment
from swerex_c.providers.ssh.deployment import SSHDeployment

__all__ = ["SSHDeployment"]

sys.modules[__name__] = deployment
