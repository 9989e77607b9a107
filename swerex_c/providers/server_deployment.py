"""Base class of deployments that can run a server in the sandbox.

The runtime is then a `RemoteRuntime`, the client of that server.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar

from swerex_c.exceptions import NotSupportedError
from swerex_c.providers.sandbox_deployment import SandboxDeployment
from swerex_c.utils.threads import in_thread
from swerex_c.utils.visible import visible
from swerex_c.utils.wait import _wait_until_alive

if TYPE_CHECKING:
    from swerex_c.runtime.config import RemoteRuntimeConfig
    from swerex_c.sandbox.backend import Backend

__all__ = ["ServerDeployment"]


class ServerDeployment(SandboxDeployment):
    """A deployment that starts a sandbox with or without a server.

    A subclass starts the sandbox with a server in `_start_server`, and without one in `_start_sandbox` if that is
    possible. A server is used if the configuration's `server` says so, or if it has no such field. If that is None, a
    server is used if the method named by `_start_command` is overridden: in a subclass, or by assignment to the class
    or the object.
    """

    _start_command: ClassVar[str] = ""
    """The name of the method that returns the server's start command, which callers override."""

    def _overrides(self, name: str) -> bool:
        """Check whether a subclass or an assignment to the class or object overrides this method."""
        if name in vars(self):
            return True
        does = getattr(type(self), name)
        does = getattr(does, "fget", does)  # the getter of a property
        return not str(getattr(does, "__module__", "")).startswith("swerex_c.providers.")

    @property
    def _serves(self) -> bool:
        """True if the sandbox runs a server."""
        wanted = getattr(self._config, "server", True)
        return self._overrides(self._start_command) if wanted is None else bool(wanted)

    def _get_token(self) -> str:
        """Return a new authentication token for the server."""
        return str(uuid.uuid4())

    # To be overridden by providers

    async def _start_sandbox(self) -> Backend:
        raise NotSupportedError(f"{type(self).__name__} supports runtimes with a server only")

    @abstractmethod
    async def _start_server(self) -> RemoteRuntimeConfig:
        """Start the sandbox with its server, and return how to connect to it.

        The server need not respond yet.
        """

    @abstractmethod
    async def _server_output(self) -> str:
        """Return the output of the server for the log; "" if it is not available. Takes a limited time."""

    # Shared by all providers

    async def _start(self) -> None:
        if not self._serves:
            await super()._start()
            return
        from swerex_c.runtime.remote import RemoteRuntime

        began = time.monotonic()
        config = await self._start_server()
        await self._step("Starting runtime")
        self.logger.info(f"Starting runtime at {config.host}" + (f":{config.port}" if config.port else ""))
        self._runtime = await in_thread(RemoteRuntime.from_config, config)
        await self._wait_until_alive(timeout=round(self._leave_limit(), 2))
        self.logger.info(f"Runtime started in {time.monotonic() - began:.2f}s")

    async def _wait_until_alive(self, timeout: float = 10.0) -> None:
        """Wait until the server responds.

        Raises:
            TimeoutError: if it does not respond within `timeout` seconds. Its output is logged.
            SandboxLostError: if the sandbox has ended.
        """
        config = getattr(self._runtime, "_config", None)
        try:
            await _wait_until_alive(
                self.is_alive, timeout=timeout, function_timeout=min(getattr(config, "timeout", 10.0), 10.0)
            )
        except TimeoutError:
            with contextlib.suppress(Exception):
                output = visible(await self._server_output())
                self.logger.error(f"Runtime did not start within timeout. Output of the server:\n{output}")
            raise
