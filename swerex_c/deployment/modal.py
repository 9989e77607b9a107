"""Alias of the module `swerex_c.providers.modal.deployment`."""

import sys

from swerex_c.providers.modal.deployment import ModalDeployment as ModalDeployment

sys.modules[__name__] = sys.modules[ModalDeployment.__module__]
