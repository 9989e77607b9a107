"""Deployment on a remote host, reached by ssh."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Unpack

from swerex_c.providers.sandbox_deployment import SandboxDeployment
from swerex_c.providers.ssh.config import SSHDeploymentConfig, SSHKeywords
from swerex_c.utils.load import ConfigSignature

if TYPE_CHECKING:
    from swerex_c.providers.ssh.backend import SSHBackend

__all__ = ["SSHDeployment", "SSHDeploymentConfig"]


class SSHDeployment(SandboxDeployment):
    """A deployment on a host with an SSH server and bash.

    Nothing is installed and no port is opened there.

        deployment = SSHDeployment("build-host", user="agent")
        await deployment.start()

    Processes that sessions start end with the sessions; `stop` leaves the host and its files as they are.
    """

    __signature__ = ConfigSignature("swerex_c.providers.ssh.config:SSHDeploymentConfig")

    def __init__(self, host: str | None = None, *, logger: logging.Logger | None = None, **kwargs: Unpack[SSHKeywords]):
        """Create a deployment; `start` connects to the host.

        Args:
            host: the host's name, address, or alias in ssh's configuration.
            **kwargs: the other fields of `SSHDeploymentConfig`.

        Raises:
            InvalidInputError: if the host name is invalid.
        """
        super().__init__(logger=logger)
        fields: dict[str, Any] = {**kwargs} if host is None else {"host": host, **kwargs}
        self._config = SSHDeploymentConfig(**fields)
        self._new_backend()

    def _new_backend(self) -> SSHBackend:
        from swerex_c.providers.ssh.backend import SSHBackend

        return SSHBackend(**self._config.model_dump(exclude={"type", "startup_timeout"}))

    async def _start_sandbox(self) -> SSHBackend:
        await self._step("Connecting")
        return self._new_backend()
