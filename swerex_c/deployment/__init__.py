"""Deployments: they start the place in which a runtime works, and stop it."""

from swerex_c.deployment.config import get_deployment

__all__ = ["get_deployment"]
