"""A deployment that starts nothing, for tests."""

from __future__ import annotations

import logging
from typing import Any, Self

from swerex_c.deployment.abstract import AbstractDeployment
from swerex_c.deployment.config import DummyDeploymentConfig
from swerex_c.deployment.hooks.abstract import CombinedDeploymentHook, DeploymentHook
from swerex_c.runtime.abstract import IsAliveResponse
from swerex_c.runtime.dummy import DummyRuntime
from swerex_c.utils.log import get_logger

__all__ = ["DummyDeployment", "DummyDeploymentConfig"]


class DummyDeployment(AbstractDeployment):
    """Always alive, with a `DummyRuntime` that callers may replace by assigning to `runtime`."""

    def __init__(self, *, logger: logging.Logger | None = None, **kwargs: Any):
        """The keyword arguments are the fields of `DummyDeploymentConfig`."""
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
        """Nothing to do."""

    async def stop(self, *args: Any, **kwargs: Any) -> None:
        """Nothing to do."""

    @property
    def runtime(self) -> DummyRuntime:
        return self._runtime

    @runtime.setter
    def runtime(self, runtime: DummyRuntime) -> None:
        self._runtime = runtime

    def _left_running(self) -> bool:
        return False
