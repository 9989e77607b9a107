"""Configuration of a deployment on a host that runs an SSH server."""

from typing import ClassVar, Literal, TypedDict

from swerex_c.providers.config import ProviderConfig

__all__ = ["SSHDeploymentConfig", "SSHKeywords"]


class SSHDeploymentConfig(ProviderConfig):
    """Configuration of a host with an SSH server and login without a prompt."""

    deployment_class: ClassVar[str] = "swerex_c.providers.ssh.deployment:SSHDeployment"

    host: str
    """The host's name, address, or alias in ssh's configuration."""

    port: int | None = None
    """The SSH server's port; None uses ssh's configuration."""

    user: str | None = None
    """The user to log in as; None uses ssh's configuration."""

    identity_file: str | None = None
    """The private key to use before others."""

    config_file: str | None = None
    """An ssh configuration file that replaces the user's and the system's."""

    options: list[str] = []
    """More options for ssh, as after `-o`, such as `StrictHostKeyChecking=accept-new`."""

    share_connections: bool = True
    """True if sessions share connections, up to eight on each; otherwise each session makes its own."""

    startup_timeout: float = 60.0
    """Maximum number of seconds until a command can run."""

    type: Literal["ssh"] = "ssh"
    """Discriminator of the deployment type. Do not change it."""


class SSHKeywords(TypedDict, total=False):
    """Keyword arguments of `SSHDeployment`: the fields of `SSHDeploymentConfig`."""

    port: int | None
    user: str | None
    identity_file: str | None
    config_file: str | None
    options: list[str]
    share_connections: bool
    startup_timeout: float
