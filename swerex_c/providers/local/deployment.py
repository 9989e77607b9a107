"""Deployment on this machine, in this process or in an isolated view."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any, Unpack, cast

from swerex_c.models import IsAliveResponse
from swerex_c.providers.local.config import IsolationConfig, LocalDeploymentConfig, LocalKeywords
from swerex_c.providers.sandbox_deployment import SandboxDeployment
from swerex_c.runtime.local import LocalRuntime
from swerex_c.utils.load import ConfigSignature

if TYPE_CHECKING:
    from swerex_c.engine.sessions import SessionsRuntime
    from swerex_c.providers.local.bubblewrap import BwrapBackend

__all__ = ["IsolationConfig", "LocalDeployment", "LocalDeploymentConfig"]


class LocalDeployment(SandboxDeployment):
    """A deployment on this machine, with a `LocalRuntime`.

    Code for deployments can use it without a container. With `isolation` it starts a `SandboxRuntime` in an isolated
    view of this machine, which needs bubblewrap:

        deployment = LocalDeployment(isolation=IsolationConfig(writable=["/srv/project"], network=False))
    """

    _config: LocalDeploymentConfig

    __signature__ = ConfigSignature("swerex_c.providers.local.config:LocalDeploymentConfig")

    def __init__(self, *, logger: logging.Logger | None = None, **kwargs: Unpack[LocalKeywords]):
        """Create a deployment from the fields of `LocalDeploymentConfig`."""
        super().__init__(logger=logger)
        self._config = LocalDeploymentConfig(**kwargs)

    async def is_alive(self, *, timeout: float | None = None) -> IsAliveResponse:
        """Check whether the deployment is started and its runtime responds."""
        if self._runtime is None:
            return IsAliveResponse(is_alive=False, message="The deployment is not started.")
        return await self.runtime.is_alive(timeout=timeout)

    async def start(self, *args: Any, **kwargs: Any) -> None:
        """Start a new runtime. The sessions of a previous start are closed.

        Raises:
            DeploymentStartupError: if a required isolated view cannot be made; the message says why.
            StartupTimeoutError: if the view does not start within the configuration's `startup_timeout`.
        """
        if self._config.isolation is not None:
            await super().start()
            return
        await self.stop()
        self._owner = os.getpid()
        self._runtime = LocalRuntime(logger=self.logger, warm_sessions=self._config.warm_sessions)

    async def stop(self, *args: Any, **kwargs: Any) -> None:
        """Close the runtime with all its sessions, and end the isolated view."""
        if self._config.isolation is not None:
            await super().stop()
            return
        runtime, self._runtime = self._runtime, None
        if runtime is not None:
            await runtime.close()

    @property
    def runtime(self) -> SessionsRuntime:
        """The runtime: a `LocalRuntime`, or with `isolation` a `SandboxRuntime`.

        Raises:
            DeploymentNotStartedError: if the deployment was not started, or was stopped.
        """
        return cast("SessionsRuntime", super().runtime)

    async def _start_sandbox(self) -> BwrapBackend:
        from swerex_c.providers.local.bubblewrap import BwrapBackend

        await self._step("Creating the isolated view")
        assert self._config.isolation is not None
        return BwrapBackend(**self._config.isolation.model_dump(exclude_none=True))
