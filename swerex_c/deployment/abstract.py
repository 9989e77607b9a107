"""The base class of all deployments."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import threading
from abc import ABC, abstractmethod
from typing import Any

from swerex_c.deployment.hooks.abstract import DeploymentHook
from swerex_c.runtime.abstract import AbstractRuntime, IsAliveResponse

__all__ = ["AbstractDeployment"]

_LAST_STOP_TIMEOUT = 15.0
"""How many seconds a deployment that nobody stopped may keep the thread in which it is found."""

_last_stops: set[asyncio.Task[Any]] = set()
"""Such deployments as are being stopped on a running loop, which itself keeps its tasks only weakly."""


class AbstractDeployment(ABC):
    """The place in which a runtime works: it starts the place, hands out the runtime, and stops the place."""

    def __init__(self, *args: Any, **kwargs: Any):
        self.logger: logging.Logger

    @abstractmethod
    def add_hook(self, hook: DeploymentHook) -> None:
        """Have a hook told of what the deployment does from now on."""

    @abstractmethod
    async def is_alive(self, *, timeout: float | None = None) -> IsAliveResponse:
        """Whether the runtime answers, within `timeout` seconds.

        Raises:
            DeploymentNotStartedError: if there is none, where a deployment does not answer that it is not alive.
        """

    @abstractmethod
    async def start(self, *args: Any, **kwargs: Any) -> None:
        """Start the place, and wait until the runtime in it answers."""

    @abstractmethod
    async def stop(self, *args: Any, **kwargs: Any) -> None:
        """End the place with everything in it. A deployment that is not started stays so."""

    @property
    @abstractmethod
    def runtime(self) -> AbstractRuntime:
        """The runtime.

        Raises:
            DeploymentNotStartedError: if the deployment was not started, or was stopped.
        """

    def _left_running(self) -> bool:
        """Whether something would stay behind if the object went away now."""
        return getattr(self, "_runtime", None) is not None

    def __del__(self) -> None:
        """Stop what nobody stopped. An object that was never started, or was stopped, goes without a trace."""
        try:
            if sys.is_finalizing() or not self._left_running():
                return
            if logger := getattr(self, "logger", None):
                logger.debug("Stopping a deployment that was dropped while it was running")
            self._stop_in_any_context()
        except Exception:
            # There is nobody to raise to, and a message from a destructor helps no one.
            return

    def _stop_in_any_context(self) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self._stop_in_own_loop()
            return
        task = loop.create_task(self._stop_quietly())
        _last_stops.add(task)
        task.add_done_callback(self._last_stop_is_over)

    def _stop_in_own_loop(self) -> None:
        # The thread's own loop may be closed, and asking for it may make one that nobody closes.
        with contextlib.closing(asyncio.new_event_loop()) as own:
            own.run_until_complete(self._stop_quietly())

    def _last_stop_is_over(self, task: asyncio.Task[None]) -> None:
        _last_stops.discard(task)
        if task.cancelled() and self._left_running():
            # The loop is ending, and cancels its tasks, a new one before it has done anything.
            threading.Thread(target=self._stop_in_own_loop, name="stop").start()

    async def _stop_quietly(self) -> None:
        with contextlib.suppress(Exception):
            await asyncio.wait_for(self.stop(), _LAST_STOP_TIMEOUT)
