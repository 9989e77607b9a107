"""Alias of the module `swerex_c.providers.ssh.deployment`."""

import sys

from swerex_c.providers.ssh.deployment import SSHDeployment as SSHDeployment

sys.modules[__name__] = sys.modules[SSHDeployment.__module__]
