"""SWE-ReX's names for the base classes of hooks."""

from swerex_c.interfaces import CombinedDeploymentHook, DeploymentHook

__all__ = ["CombinedDeploymentHook", "DeploymentHook"]
