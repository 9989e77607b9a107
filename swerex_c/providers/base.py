"""Base class of all deployments of this package: configuration, hooks, logger and runtime."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any, Self

from swerex_c.exceptions import DeploymentNotStartedError, DeploymentStartupError, SwerexException
from swerex_c.interfaces import AbstractDeployment, AbstractRuntime, CombinedDeploymentHook, DeploymentHook
from swerex_c.models import IsAliveResponse
from swerex_c.utils.log import get_logger

__all__ = ["ConfiguredDeployment", "explained"]


@contextlib.contextmanager
def explained(sentence: Callable[[Exception], str]) -> Iterator[None]:
    """Convert errors of a provider's library to a `DeploymentStartupError`.

    Errors of this package and a TimeoutError stay as they are.

    Args:
        sentence: formats an error of the library for users.
    """
    try:
        yield
    except (SwerexException, TimeoutError):
        raise
    except Exception as error:
        raise DeploymentStartupError(sentence(error)) from error


class ConfiguredDeployment(AbstractDeployment):
    """A deployment whose `start` sets `_runtime`, and whose constructor sets `_config`."""

    _config: Any

    def __init__(self, *, logger: logging.Logger | None = None) -> None:
        self._runtime: Any = None
        self._hooks = CombinedDeploymentHook()
        self.logger = logger or get_logger("rex-deploy")

    @classmethod
    def from_config(cls, config: Any) -> Self:
        return cls(**{name: value for name, value in config if name != "type"})

    def add_hook(self, hook: DeploymentHook) -> None:
        self._hooks.add_hook(hook)

    async def is_alive(self, *, timeout: float | None = None) -> IsAliveResponse:
        """Check whether the runtime responds within `timeout` seconds; None is the runtime's default.

        Raises:
            DeploymentNotStartedError: if the deployment was not started, or was stopped.
        """
        return await self.runtime.is_alive(timeout=timeout)

    @property
    def runtime(self) -> AbstractRuntime:
        """The runtime.

        Raises:
            DeploymentNotStartedError: if the deployment was not started, or was stopped.
        """
        if self._runtime is None:
            raise DeploymentNotStartedError()
        runtime: AbstractRuntime = self._runtime
        return runtime
