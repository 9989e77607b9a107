"""Deployment on this machine, in this process or in an isolated view."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Unpack, cast

from swerex_c.interfaces import CombinedDeploymentHook
from swerex_c.models import IsAliveResponse
from swerex_c.providers.base import ConfiguredDeployment
from swerex_c.providers.local.config import IsolationConfig, LocalDeploymentConfig, LocalKeywords
from swerex_c.providers.sandbox_deployment import SandboxDeployment
from swerex_c.runtime.local import LocalRuntime
from swerex_c.utils.load import ConfigSignature

if TYPE_CHECKING:
    from swerex_c.engine.sessions import SessionsRuntime
    from swerex_c.providers.local.bubblewrap import BwrapBackend

__all__ = ["IsolationConfig", "LocalDeployment", "LocalDeploymentConfig"]


class LocalDeployment(ConfiguredDeployment):
    """A deployment on this machine, with a `LocalRuntime`.

    Code for deployments can use it without a container. With `isolation` it starts a `SandboxRuntime` in an isolated
    view of this machine, which needs bubblewrap:

        deployment = LocalDeployment(isolation=IsolationConfig(writable=["/srv/project"], network=False))
    """

    __signature__ = ConfigSignature("swerex_c.providers.local.config:LocalDeploymentConfig")

    def __init__(self, *, logger: logging.Logger | None = None, **kwargs: Unpack[LocalKeywords]):
        """Create a deployment from the fields of `LocalDeploymentConfig`."""
        super().__init__(logger=logger)
        self._view: _View | None = None
        self._config = LocalDeploymentConfig(**kwargs)

    async def is_alive(self, *, timeout: float | None = None) -> IsAliveResponse:
        """Check whether the deployment is started and its runtime responds."""
        if self._runtime is None and (self._view is None or self._view._runtime is None):
            return IsAliveResponse(is_alive=False, message="The deployment is not started.")
        return await self.runtime.is_alive(timeout=timeout)

    async def start(self, *args: Any, **kwargs: Any) -> None:
        """Start a new runtime. The sessions of a previous start are closed.

        Raises:
            DeploymentStartupError: if a required isolated view cannot be made; the message says why.
            StartupTimeoutError: if the view does not start within the configuration's `startup_timeout`.
        """
        await self.stop()
        if self._config.isolation is None:
            self._runtime = LocalRuntime(logger=self.logger, warm_sessions=self._config.warm_sessions)
            return
        view = self._view = _View(self._config, self._hooks, self.logger)
        try:
            await view.start()
        except BaseException:
            if self._view is view:
                self._view = None
            raise

    async def stop(self, *args: Any, **kwargs: Any) -> None:
        """Close the runtime with all its sessions, and end the isolated view."""
        runtime, self._runtime = self._runtime, None
        view, self._view = self._view, None
        if runtime is not None:
            await runtime.close()
        if view is not None:
            await view.stop()

    @property
    def runtime(self) -> SessionsRuntime:
        """The runtime: a `LocalRuntime`, or with `isolation` a `SandboxRuntime`.

        Raises:
            DeploymentNotStartedError: if the deployment was not started, or was stopped.
        """
        return cast("SessionsRuntime", super().runtime if self._view is None else self._view.runtime)


class _View(SandboxDeployment):
    """The isolated view of a local deployment."""

    def __init__(self, config: LocalDeploymentConfig, hooks: CombinedDeploymentHook, logger: logging.Logger) -> None:
        super().__init__(logger=logger)
        self._config = config
        self._hooks = hooks

    async def _start_sandbox(self) -> BwrapBackend:
        from swerex_c.providers.local.bubblewrap import BwrapBackend

        await self._step("Creating the isolated view")
        isolation: IsolationConfig = self._config.isolation
        return BwrapBackend(**isolation.model_dump(exclude_none=True))
