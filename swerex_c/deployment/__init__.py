"""Deployments start and stop the sandbox that a runtime works in."""

from swerex_c.deployment.config import get_deployment

__all__ = ["get_deployment"]
