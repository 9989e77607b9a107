"""Alias of the module `swerex_c.providers.kubernetes.deployment`."""

from swerex_c.providers.kubernetes.deployment import KubernetesDeployment as KubernetesDeployment
from swerex_c.utils.load import add_alias

add_alias(__name__, KubernetesDeployment)
