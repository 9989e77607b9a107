"""Configuration of a deployment that does nothing."""

from typing import ClassVar, Literal

from swerex_c.providers.config import ProviderConfig

__all__ = ["DummyDeploymentConfig"]


class DummyDeploymentConfig(ProviderConfig):
    """Configuration of a deployment that does nothing, for tests."""

    deployment_class: ClassVar[str] = "swerex_c.providers.dummy.deployment:DummyDeployment"

    type: Literal["dummy"] = "dummy"
    """Discriminator of the deployment type. Do not change it."""
