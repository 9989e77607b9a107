"""The models and the base class of all runtimes, under SWE-ReX's module name."""

from swerex_c import models
from swerex_c.interfaces import AbstractRuntime
from swerex_c.models import *  # noqa: F403
from swerex_c.models import _ExceptionTransfer

__all__ = ["AbstractRuntime", "_ExceptionTransfer"]
__all__ += models.__all__
