"""SWE-ReX's name for the base class of all deployments."""

from typing import Any

from swerex_c.interfaces import AbstractDeployment
from swerex_c.utils.load import handed_on

__all__ = ["AbstractDeployment"]


def __getattr__(name: str) -> Any:
    return handed_on(__name__, name)
