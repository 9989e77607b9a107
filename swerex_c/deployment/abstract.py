"""SWE-ReX's name for the base class of all deployments."""

from swerex_c.interfaces import AbstractDeployment

__all__ = ["AbstractDeployment"]
