"""Alias of the module `swerex_c.providers.kubernetes.deployment`."""

import sys

from swerex_c.providers.kubernetes.deployment import KubernetesDeployment as KubernetesDeployment

sys.modules[__name__] = sys.modules[KubernetesDeployment.__module__]
