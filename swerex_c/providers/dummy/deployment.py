"""Deployment that starts nothing, for tests."""

from __future__ import annotations

import logging
from typing import Any, Self

from swerex_c.interfaces import AbstractDeployment, CombinedDeploymentHook, DeploymentHook
from swerex_c.models import IsAliveResponse
from swerex_c.providers.dummy.config import DummyDeploymentConfig
from swerex_c.runtime.dummy import DummyRuntime
from swerex_c.utils.log import get_logger

__all__ = ["DummyDeployment", "DummyDeploymentConfig"]


class DummyDeployment(AbstractDeployment):
    """A deployment that is always alive, with a `DummyRuntime`.

    Callers can replace the runtime through `runtime`.
    """

    def __init__(self, *, logger: logging.Logger | None = None, **kwargs: Any):
        """Create a deployment from the fields of `DummyDeploymentConfig`."""
        self._config = DummyDeploymentConfig(**kwargs)
        self.logger = logger or get_logger("rex-deploy")
        self._runtime = DummyRuntime(logger=self.logger)
        self._hooks = CombinedDeploymentHook()

    @classmethod
    def from_config(cls, config: DummyDeploymentConfig) -> Self:
        return cls(**config.model_dump())

    def add_hook(self, hook: DeploymentHook) -> None:
        self._hooks.add_hook(hook)

    async def is_alive(self, *, timeout: float | None = None) -> IsAliveResponse:
        return IsAliveResponse(is_alive=True)

    async def start(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing."""

    async def stop(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing."""

    @property
    def runtime(self) -> DummyRuntime:
        return self._runtime

    @runtime.setter
    def runtime(self, runtime: DummyRuntime) -> None:
        self._runtime = runtime

    def _left_running(self) -> bool:
        return False
