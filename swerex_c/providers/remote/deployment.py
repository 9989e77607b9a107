"""Deployment with a server that was started elsewhere."""

from __future__ import annotations

import logging
from typing import Any, Unpack, cast

from swerex_c.exceptions import SwerexException
from swerex_c.providers.base import ConfiguredDeployment
from swerex_c.providers.remote.config import RemoteDeploymentConfig, RemoteKeywords
from swerex_c.runtime.remote import RemoteRuntime
from swerex_c.utils.load import ConfigSignature

__all__ = ["RemoteDeployment", "RemoteDeploymentConfig"]


class RemoteDeployment(ConfiguredDeployment):
    """A deployment with a server that is already running.

    Its `RemoteRuntime` lets code for deployments use such a server.
    """

    __signature__ = ConfigSignature("swerex_c.providers.remote.config:RemoteDeploymentConfig")

    def __init__(self, *, logger: logging.Logger | None = None, **kwargs: Unpack[RemoteKeywords]):
        """Create a deployment from the fields of `RemoteDeploymentConfig`."""
        super().__init__(logger=logger)
        self._config = RemoteDeploymentConfig(**kwargs)

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
        return cast(RemoteRuntime, super().runtime)
