"""A deployment behind a server that somebody else has started."""

from __future__ import annotations

import logging
from typing import Any, Self

from swerex_c.deployment.abstract import AbstractDeployment
from swerex_c.deployment.config import RemoteDeploymentConfig
from swerex_c.deployment.hooks.abstract import CombinedDeploymentHook, DeploymentHook
from swerex_c.exceptions import DeploymentNotStartedError, SwerexException
from swerex_c.runtime.abstract import IsAliveResponse
from swerex_c.runtime.remote import RemoteRuntime
from swerex_c.utils.log import get_logger

__all__ = ["RemoteDeployment", "RemoteDeploymentConfig"]


class RemoteDeployment(AbstractDeployment):
    """Connects a `RemoteRuntime`, so that what is written for deployments works with a server that runs already."""

    def __init__(self, *, logger: logging.Logger | None = None, **kwargs: Any):
        """The keyword arguments are the fields of `RemoteDeploymentConfig`."""
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
        """Whether the server answers, within `timeout` seconds (None: those of the configuration).

        Raises:
            DeploymentNotStartedError: if the deployment was not started, or was stopped.
        """
        return await self.runtime.is_alive(timeout=timeout)

    async def start(self, *args: Any, **kwargs: Any) -> None:
        """Make the runtime. The server is not asked whether it is there."""
        self.logger.info("Starting remote runtime")
        self._runtime = RemoteRuntime(**self._config.model_dump(exclude={"type"}), logger=self.logger)

    async def stop(self, *args: Any, **kwargs: Any) -> None:
        """Close the server's sessions and the connection. The server itself keeps running; one that is gone, or that
        refuses, is no error: there is nothing left to stop then, or nothing that could be."""
        runtime, self._runtime = self._runtime, None
        if runtime is not None:
            try:
                await runtime.close()
            except (SwerexException, OSError) as error:
                self.logger.warning("The server's sessions could not be closed: %s", error)

    @property
    def runtime(self) -> RemoteRuntime:
        """The runtime.

        Raises:
            DeploymentNotStartedError: if the deployment was not started, or was stopped.
        """
        if self._runtime is None:
            raise DeploymentNotStartedError()
        return self._runtime
