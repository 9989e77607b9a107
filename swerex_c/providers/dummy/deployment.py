"""Deployment that starts nothing, for tests."""

from __future__ import annotations

import logging
from typing import Any

from swerex_c.models import IsAliveResponse
from swerex_c.providers.base import ConfiguredDeployment
from swerex_c.providers.dummy.config import DummyDeploymentConfig
from swerex_c.runtime.dummy import DummyRuntime

__all__ = ["DummyDeployment", "DummyDeploymentConfig"]


class DummyDeployment(ConfiguredDeployment):
    """A deployment that is always alive, with a `DummyRuntime`.

    Callers can replace the runtime through `runtime`.
    """

    def __init__(self, *, logger: logging.Logger | None = None, **kwargs: Any):
        """Create a deployment from the fields of `DummyDeploymentConfig`."""
        super().__init__(logger=logger)
        self._config = DummyDeploymentConfig(**kwargs)
        self._runtime = DummyRuntime(logger=self.logger)

    async def is_alive(self, *, timeout: float | None = None) -> IsAliveResponse:
        return IsAliveResponse(is_alive=True)

    async def start(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing."""

    async def stop(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing."""

    @property
    def runtime(self) -> DummyRuntime:
        runtime: DummyRuntime = self._runtime
        return runtime

    @runtime.setter
    def runtime(self, runtime: DummyRuntime) -> None:
        self._runtime = runtime

    def _left_running(self) -> bool:
        return False
