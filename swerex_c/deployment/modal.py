"""Alias of the module `swerex_c.providers.modal.deployment`."""

import sys

from swerex_c.providers.modal import deployment
from swerex_c.providers.modal.deployment import ModalDeployment

__all__ = ["ModalDeployment"]

sys.modules[__name__] = deployment
