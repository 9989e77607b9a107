"""Alias of the module `swerex_c.providers.modal.deployment`."""

from swerex_c.providers.modal.deployment import ModalDeployment as ModalDeployment
from swerex_c.utils.load import add_alias

add_alias(__name__, ModalDeployment)
