"""SWE-ReX's name for the hook that keeps a status line current."""

from swerex_c.interfaces import DeploymentHook, SetStatusDeploymentHook

__all__ = ["DeploymentHook", "SetStatusDeploymentHook"]
