"""Deployment with a server that was started elsewhere."""

from __future__ import annotations

import logging
from typing import Any, Self, Unpack

from swerex_c.exceptions import DeploymentNotStartedError, SwerexException
from swerex_c.interfaces import AbstractDeployment, CombinedDeploymentHook, DeploymentHook
from swerex_c.models import IsAliveResponse
from swerex_c.providers.remote.config import RemoteDeploymentConfig, RemoteKeywords
from swerex_c.runtime.remote import RemoteRuntime
from swerex_c.utils.load import ConfigSignature
from swerex_c.utils.log import get_logger

__all__ = ["RemoteDeployment", "RemoteDeploymentConfig"]


class RemoteDeployment(AbstractDeployment):
    """A deployment with a server that is already running.

    Its `RemoteRuntime` lets code for deployments use such a server.
    """

    __signature__ = ConfigSignature("swerex_c.providers.remote.config:RemoteDeploymentConfig")

    def __init__(self, *, logger: logging.Logger | None = None, **kwargs: Unpack[RemoteKeywords]):
        """Create a deployment from the fields of `RemoteDeploymentConfig`."""
        self._runtime: RemoteRuntime | None = None
        self.logger = logger or get_logger("rex-deploy")
        self._config = RemoteDeploymentConfig(**kwargs)
        self._hooks = CombinedDeploymentHook()

    @classmethod
    def from_config(cls, config: RemoteDeploymentConfig) -> Self:
        return cls(**config.model_dump())

    def add_hook(self, hook: DeploymentHook) -> None:
        self._hooks.add_hook(hook)

    async def is_alive(self, *, timeout: float | None = None) -> IsAliveResponse:
        """Check whether the server responds.

        Args:
            timeout: maximum seconds; None is the configuration's timeout.

        Raises:
            DeploymentNotStartedError: if the deployment was not started, or was stopped.
        """
        return await self.runtime.is_alive(timeout=timeout)

    async def start(self, *args: Any, **kwargs: Any) -> None:
        """Create the runtime, without checking whether the server responds."""
        self.logger.info("Starting remote runtime")
        self._runtime = RemoteRuntime(**self._config.model_dump(exclude={"type"}), logger=self.logger)

    async def stop(self, *args: Any, **kwargs: Any) -> None:
        """Close the server's sessions and the connection; the server keeps running.

        A failure is only logged: a server that is gone has nothing left to stop, and a server that refuses cannot be
        stopped.
        """
        runtime, self._runtime = self._runtime, None
        if runtime is not None:
            try:
                await runtime.close()
            except (SwerexException, OSError) as error:
                self.logger.warning("Cannot close the server's sessions: %s", error)

    @property
    def runtime(self) -> RemoteRuntime:
        """The runtime.

        Raises:
            DeploymentNotStartedError: if the deployment was not started, or was stopped.
        """
        if self._runtime is None:
            raise DeploymentNotStartedError()
        return self._runtime
