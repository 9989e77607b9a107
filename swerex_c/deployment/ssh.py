"""A deployment on another host, reached by ssh."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Self

from swerex_c.deployment._exec import Effort, ExecDeployment
from swerex_c.deployment.config import SSHDeploymentConfig

if TYPE_CHECKING:
    from swerex_c.exec.ssh import SSHBackend

__all__ = ["SSHDeployment", "SSHDeploymentConfig"]


class SSHDeployment(ExecDeployment):
    """Runs commands on a host that has an ssh server and bash. Nothing is installed there, and no port is opened.

        deployment = SSHDeployment("build-host", user="agent")
        await deployment.start()

    What the sessions start is ended with them; the host and its files stay as they are.
    """

    def __init__(self, host: str | None = None, *, logger: logging.Logger | None = None, **kwargs: Any):
        """
        Args:
            host: its name, address, or alias in the configuration of ssh.
            **kwargs: the other fields of `SSHDeploymentConfig`.
        """
        super().__init__(logger=logger)
        if host is not None:
            kwargs["host"] = host
        self._config = SSHDeploymentConfig(**kwargs)
        self._backend()

    @classmethod
    def from_config(cls, config: SSHDeploymentConfig) -> Self:
        return cls(**config.model_dump())

    def _backend(self) -> SSHBackend:
        from swerex_c.exec.ssh import SSHBackend

        return SSHBackend(**self._config.model_dump(exclude={"type", "startup_timeout"}))

    def _begin(self, effort: Effort) -> SSHBackend:
        self._hooks.on_custom_step("Connecting")
        return self._backend()
