"""Alias of the module `swerex_c.providers.kubernetes.deployment`."""

import sys

from swerex_c.providers.kubernetes import deployment
from swerex_c.providers.kubernetes.deployment import KubernetesDeployment

__all__ = ["KubernetesDeployment"]

sys.modules[__name__] = deployment
