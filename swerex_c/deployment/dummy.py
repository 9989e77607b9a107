"""Alias of the module `swerex_c.providers.dummy.deployment`."""

from swerex_c.providers.dummy.deployment import DummyDeployment as DummyDeployment
from swerex_c.utils.load import add_alias

add_alias(__name__, DummyDeployment)
