"""The base class of all provider configurations."""

from typing import ClassVar

from pydantic import BaseModel, ConfigDict

from swerex_c.interfaces import AbstractDeployment
from swerex_c.utils.load import load_class

__all__ = ["ProviderConfig"]


class ProviderConfig(BaseModel):
    """Base class of configurations that describe and create a deployment.

    The deployment's module is imported on creation, so a configuration does not need the provider's libraries.
    """

    deployment_class: ClassVar[str]
    """The class of the deployment, as "module:Class"."""

    model_config = ConfigDict(extra="forbid")

    def get_deployment(self) -> AbstractDeployment:
        """Create the deployment without starting it.

        Raises:
            NotAvailableError: if this version of the package does not have the deployment.
        """
        deployment: AbstractDeployment = load_class(self.deployment_class).from_config(self)
        return deployment
