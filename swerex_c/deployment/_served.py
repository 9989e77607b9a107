"""What deployments share whose place can run a server, with a `RemoteRuntime` here as its client."""

from __future__ import annotations

import contextlib
import time
import uuid
from typing import TYPE_CHECKING, ClassVar

from swerex_c.deployment._exec import Effort, ExecDeployment
from swerex_c.exceptions import NotSupportedError, PlaceLostError
from swerex_c.exec.threads import in_thread
from swerex_c.runtime.abstract import IsAliveResponse
from swerex_c.utils.wait import _wait_until_alive

if TYPE_CHECKING:
    from swerex_c.exec.backend import Backend
    from swerex_c.runtime.config import RemoteRuntimeConfig
    from swerex_c.runtime.remote import RemoteRuntime

__all__ = ["ServedDeployment"]

_LOOK_SECONDS = 10.0
"""How long a cloud may take to tell what became of a place."""

_OUTPUT_SECONDS = 10.0
"""How long it may take to tell what a server printed that did not start."""


class ServedDeployment(ExecDeployment):
    """Starts a place with a server in it, or without one where commands can be carried there otherwise.

    A kind of place says in `_begin_server` how it is started with a server, and in `_begin` how without, if that can
    be. There is a server if the configuration's `server` says so; if that is None or there is none, if a subclass or
    whoever assigned to the class or the object has replaced `_start_command`, which says how the server is started.
    """

    _start_command: ClassVar[str] = ""
    """The name of the method that says how the server is started, which callers override."""

    _always_serves: ClassVar[bool] = False
    """Whether there is no other way."""

    def _overrides(self, name: str) -> bool:
        """Whether a subclass, or somebody who assigned to the class or the object, does this otherwise."""
        if name in vars(self):
            return True
        does = getattr(type(self), name)
        does = getattr(does, "fget", does)  # of a property
        return not str(getattr(does, "__module__", "")).startswith("swerex_c.deployment.")

    @property
    def _serves(self) -> bool:
        """Whether the place runs a server."""
        if self._always_serves:
            return True
        wanted = getattr(self._config, "server", None)
        return self._overrides(self._start_command) if wanted is None else bool(wanted)

    def _get_token(self) -> str:
        """A new key for the server."""
        return str(uuid.uuid4())

    # What a kind of place says

    def _begin(self, effort: Effort) -> Backend:
        raise NotSupportedError(f"{type(self).__name__} reaches its place by a server only")

    def _begin_server(self, effort: Effort) -> RemoteRuntimeConfig:
        """Start the place with its server, and say where that is to be reached. Blocks, as `_begin` does.

        The server need not answer yet.
        """
        raise NotSupportedError(f"{type(self).__name__} runs no server in its place")

    def _why_ended(self, timeout: float) -> str | None:
        """Why the place has ended, as a sentence; None if it has not. Blocks for `timeout` seconds at most.

        Raises:
            TimeoutError: if that cannot be learned in time.
        """
        return None

    def _server_output(self, timeout: float) -> str:
        """What the server printed, for the log, if that can be had; "" if not. Blocks."""
        return ""

    # What is shared

    async def _start(self, effort: Effort) -> None:
        if not self._serves:
            await super()._start(effort)
            return
        config = await self._in_thread(effort, self._begin_server, effort)
        self._hooks.on_custom_step("Starting runtime")
        self.logger.info(f"Starting runtime at {config.host}" + (f":{config.port}" if config.port else ""))
        self._runtime = self._new_client(config)
        began = time.monotonic()
        await self._wait_until_alive(timeout=round(effort.check(), 2))
        self.logger.info(f"Runtime started in {time.monotonic() - began:.2f}s")

    def _new_client(self, config: RemoteRuntimeConfig) -> RemoteRuntime:
        """The client of the server. A place whose entrance wants more than the server's key has one of its own."""
        from swerex_c.runtime.remote import RemoteRuntime

        return RemoteRuntime.from_config(config)

    async def _wait_until_alive(self, timeout: float = 10.0) -> None:
        """Wait until the server answers.

        Raises:
            TimeoutError: if it does not within `timeout` seconds. What it printed goes to the log.
            PlaceLostError: if the place has ended.
        """
        config = getattr(self._runtime, "_config", None)
        try:
            await _wait_until_alive(
                self.is_alive, timeout=timeout, function_timeout=min(getattr(config, "timeout", 10.0), 10.0)
            )
        except TimeoutError:
            with contextlib.suppress(Exception):
                output = await in_thread(self._server_output, _OUTPUT_SECONDS)
                self.logger.error(f"Runtime did not start within timeout. What the place has printed:\n{output}")
            raise

    async def is_alive(self, *, timeout: float | None = None) -> IsAliveResponse:
        """Whether the runtime answers, within `timeout` seconds.

        Raises:
            DeploymentNotStartedError: if the deployment was not started, or was stopped.
            PlaceLostError: if the place has ended, with the reason.
        """
        runtime = self.runtime
        began = time.monotonic()
        answer = await runtime.is_alive(timeout=timeout)
        if answer:
            return answer
        left = _LOOK_SECONDS if timeout is None else max(0.1, timeout - (time.monotonic() - began))
        why = None
        with contextlib.suppress(TimeoutError):
            why = await in_thread(self._why_ended, left)
        if why is not None:
            raise PlaceLostError(f"Container process terminated. {why}")
        return answer

