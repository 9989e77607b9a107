"""A deployment on this machine, in this process."""

from __future__ import annotations

import logging
from typing import Any, Self

from swerex_c.deployment.abstract import AbstractDeployment
from swerex_c.deployment.config import LocalDeploymentConfig
from swerex_c.deployment.hooks.abstract import CombinedDeploymentHook, DeploymentHook
from swerex_c.exceptions import DeploymentNotStartedError
from swerex_c.runtime.abstract import IsAliveResponse
from swerex_c.runtime.local import LocalRuntime
from swerex_c.utils.log import get_logger

__all__ = ["LocalDeployment", "LocalDeploymentConfig"]


class LocalDeployment(AbstractDeployment):
    """Starts a `LocalRuntime`, so that what is written for deployments works without a container too."""

    def __init__(self, *, logger: logging.Logger | None = None, **kwargs: Any):
        """The keyword arguments are the fields of `LocalDeploymentConfig`."""
        self._runtime: LocalRuntime | None = None
        self.logger = logger or get_logger("rex-deploy")
        self._config = LocalDeploymentConfig(**kwargs)
        self._hooks = CombinedDeploymentHook()

    @classmethod
    def from_config(cls, config: LocalDeploymentConfig) -> Self:
        return cls(**config.model_dump())

    def add_hook(self, hook: DeploymentHook) -> None:
        self._hooks.add_hook(hook)

    async def is_alive(self, *, timeout: float | None = None) -> IsAliveResponse:
        """Whether the deployment is started and its runtime answers."""
        if self._runtime is None:
            return IsAliveResponse(is_alive=False, message="The deployment is not started.")
        return await self._runtime.is_alive(timeout=timeout)

    async def start(self, *args: Any, **kwargs: Any) -> None:
        """Start with a new runtime. The sessions of one that was started before are closed."""
        await self.stop()
        self._runtime = LocalRuntime(logger=self.logger)

    async def stop(self, *args: Any, **kwargs: Any) -> None:
        """Close the runtime with all its sessions."""
        runtime, self._runtime = self._runtime, None
        if runtime is not None:
            await runtime.close()

    @property
    def runtime(self) -> LocalRuntime:
        """The runtime.

        Raises:
            DeploymentNotStartedError: if the deployment was not started, or was stopped.
        """
        if self._runtime is None:
            raise DeploymentNotStartedError()
        return self._runtime
