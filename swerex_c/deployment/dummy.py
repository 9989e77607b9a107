"""Alias of the module `swerex_c.providers.dummy.deployment`."""

import sys

from swerex_c.providers.dummy.deployment import DummyDeployment as DummyDeployment

sys.modules[__name__] = sys.modules[DummyDeployment.__module__]
