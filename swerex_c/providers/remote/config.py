"""Configuration of a deployment with a server that is already running."""

from typing import ClassVar, Literal, Required, TypedDict

from swerex_c.providers.config import ProviderConfig

__all__ = ["RemoteDeploymentConfig", "RemoteKeywords"]


class RemoteDeploymentConfig(ProviderConfig):
    """Configuration of a server that was started elsewhere."""

    deployment_class: ClassVar[str] = "swerex_c.providers.remote.deployment:RemoteDeployment"

    auth_token: str
    """The token that authenticates this client to the server."""

    host: str = "http://127.0.0.1"
    """The server's address, with its scheme."""

    port: int | None = None
    """The server's port; None uses that of the address."""

    timeout: float = 0.15
    """Seconds that `is_alive` waits for the server if its caller sets no timeout."""

    type: Literal["remote"] = "remote"
    """Discriminator of the deployment type. Do not change it."""


class RemoteKeywords(TypedDict, total=False):
    """Keyword arguments of `RemoteDeployment`: the fields of `RemoteDeploymentConfig`."""

    auth_token: Required[str]
    host: str
    port: int | None
    timeout: float
