"""SWE-ReX's name for the hook that keeps a status line current."""

from swerex_c.interfaces import SetStatusDeploymentHook

__all__ = ["SetStatusDeploymentHook"]
