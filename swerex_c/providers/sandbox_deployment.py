"""Base classes of deployments that start and stop a sandbox.

    STOPPED -> STARTING -> STARTED -> STOPPING -> STOPPED
                  |                      ^
                  +-- failed, given up --+

The state changes in the event loop of `swerex_c.utils.background` only, whatever loops the callers have. A start and a
stop are tasks of that loop, one at a time: a caller whose own loop ends does not end the cleanup.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import importlib
import logging
import math
import os
import time
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from swerex_c.exceptions import (
    DeploymentStartupError,
    RuntimeClosedError,
    SandboxLostError,
    StartupTimeoutError,
    SwerexException,
)
from swerex_c.models import IsAliveResponse
from swerex_c.providers.base import ConfiguredDeployment
from swerex_c.utils import background
from swerex_c.utils.threads import in_thread
from swerex_c.utils.wait import settle

if TYPE_CHECKING:
    from swerex_c.sandbox.backend import Backend

__all__ = ["ProviderDeployment", "SandboxDeployment", "State"]

_FOR_EVER = 20 * 86400.0
"""Seconds that stand for no limit; small enough for system calls."""

_CLOSE_SECONDS = 10.0
"""Seconds to wait for the runtime to close; the sandbox is ended afterwards in any case."""

_ANSWER_SECONDS = 0.5
"""Seconds without a response of the runtime after which the provider is asked too."""

_LOOK_SECONDS = 10.0
"""Seconds to wait for a provider to report the state of a sandbox."""

_GIVE_UP_SECONDS = 1.0
"""Seconds to wait for a runtime to close that never became usable, or whose sandbox has ended."""

State = enum.Enum("State", ["STOPPED", "STARTING", "STARTED", "STOPPING"])


class ProviderDeployment(ConfiguredDeployment):
    """A deployment that starts a sandbox and a runtime for it.

    Subclasses create both in `_start`, and end the sandbox in `_end_sandbox`. Both run in the private event loop:
    whatever blocks, and every method and hook that callers may have written, is called in a thread.
    """

    _startup_timeout: ClassVar[float] = 180.0
    """Seconds that `start` may take if the configuration has no `startup_timeout`."""

    _ends_sandbox: ClassVar[bool] = False
    """True if `_end_sandbox` ends all processes in the sandbox, so that the runtime need not."""

    def __init__(self, *, logger: logging.Logger | None = None) -> None:
        super().__init__(logger=logger)
        self._state = State.STOPPED
        self._task: asyncio.Task[Any] | None = None
        self._starting: asyncio.Task[None] | None = None
        self._owner = os.getpid()
        self._lost = False  # known to have ended

    # To be overridden by providers

    @abstractmethod
    async def _start(self) -> None:
        """Create the sandbox and its runtime, `_runtime`.

        If this fails or is cancelled, `_end_sandbox` cleans up what it has begun.
        """

    async def _end_sandbox(self) -> None:
        """End the sandbox, however far `_start` came, in a limited time. May be called again."""

    # Interface of deployments

    async def start(self, *args: Any, **kwargs: Any) -> None:
        """Start the sandbox, and wait until it can run a command.

        A started deployment is stopped first. If the start fails or is cancelled, everything it began is ended before
        the error is raised.

        Raises:
            DeploymentStartupError: if the sandbox cannot be started.
            StartupTimeoutError: if it cannot start within the configuration's `startup_timeout`; also a TimeoutError.
        """
        await background.run(self._restart())

    async def stop(self, *args: Any, **kwargs: Any) -> None:
        """End the sandbox and everything in it.

        Do nothing if the deployment is not started. A start in progress is cancelled: it raises `RuntimeClosedError`,
        and `stop` returns when its cleanup is complete.
        """
        if asyncio.current_task() is self._starting:  # a step of a start stops what the start has begun
            await self._clear(_GIVE_UP_SECONDS)
            return
        # Not with `background.run`, which would cancel it with the caller.
        await settle(asyncio.wrap_future(background.spawn(self._stop())))

    # Lifecycle, in the private event loop

    async def _restart(self) -> None:
        while self._left_running():
            await self._stop()
        self._owner, self._state = os.getpid(), State.STARTING
        self._limit = asyncio.timeout(None)
        self._deadline, self._lost = math.inf, False
        self._starting = asyncio.create_task(self._start_in_time())
        task = self._task = asyncio.create_task(self._start_or_undo(self._starting))
        try:
            error = await asyncio.shield(task)
        except asyncio.CancelledError:
            if self._task is task:
                await self._stop()
            raise
        if error is not None:
            raise error

    async def _start_in_time(self) -> None:
        async with self._limit:
            self._limit_start(getattr(self._config, "startup_timeout", self._startup_timeout))
            await self._start()

    async def _start_or_undo(self, starting: asyncio.Task[None]) -> BaseException | None:
        """Wait for a start. If it fails, undo it and return the error to raise."""
        try:
            await starting
            self._state = State.STARTED
            return None
        except BaseException as error:
            stopped, self._state = self._state is State.STOPPING, State.STOPPING
            with contextlib.suppress(Exception):
                await self._clear(_GIVE_UP_SECONDS)
            self._state, self._task = State.STOPPED, None
            return self._startup_error(error, stopped)
        finally:
            self._starting = None

    def _startup_error(self, error: BaseException, stopped: bool) -> BaseException:
        late = time.monotonic() >= self._deadline
        raised = error
        if stopped:
            raised = RuntimeClosedError("The deployment was stopped while it was starting")
        elif isinstance(error, TimeoutError) and not isinstance(error, StartupTimeoutError):
            raised = StartupTimeoutError(str(error) or str(self._late()))
        elif isinstance(error, SwerexException) and not isinstance(error, (DeploymentStartupError, RuntimeClosedError)):
            raised = (StartupTimeoutError if late else DeploymentStartupError)(str(error))
        if raised is not error:
            raised.__cause__ = error
        return raised

    async def _stop(self) -> None:
        if self._owner != os.getpid():  # a copy in a forked process owns neither the sandbox nor the tasks
            return
        if self._starting is not None and self._starting.done() and self._task is not None:
            await asyncio.wait([self._task])  # the start is over, but its outcome is not noted yet
        if self._starting is not None and self._state is State.STARTING:
            self._state = State.STOPPING
            self._starting.cancel()
        elif self._state is not State.STOPPING:
            if not self._left_running():
                return
            self._task = asyncio.create_task(self._stop_started(self._has_begun()))
            self._state = State.STOPPING
        task = self._task
        assert task is not None
        await asyncio.wait([task])
        task.result()

    async def _stop_started(self, begun: bool) -> None:
        try:
            await self._clear(_GIVE_UP_SECONDS if self._lost else _CLOSE_SECONDS, begun)
            self._state = State.STOPPED
        except BaseException:
            self._state = State.STARTED  # another stop tries it again
            raise
        finally:
            self._task = None

    async def _clear(self, seconds: float, begun: bool = True) -> None:
        """Close the runtime within `seconds` and end the sandbox, however far they came."""
        runtime, self._runtime = self._runtime, None
        if runtime is not None:
            if self._ends_sandbox and hasattr(runtime, "ends_with_sandbox"):
                runtime.ends_with_sandbox = True
            try:
                async with asyncio.timeout(seconds):
                    await runtime.close()
            except Exception as error:
                self.logger.debug("Cannot close the runtime: %s", error)
        if begun:
            await self._end_sandbox()

    def _has_begun(self) -> bool:
        """Check whether `_end_sandbox` has anything to do."""
        return self._state is not State.STOPPED

    def _left_running(self) -> bool:
        # A copy of the object in a forked process owns nothing.
        return os.getpid() == getattr(self, "_owner", None) and (self._has_begun() or self._runtime is not None)

    # Steps of a start

    async def _step(self, message: str) -> None:
        """Tell the hooks of a step."""
        await in_thread(self._hooks.on_custom_step, message)

    def _limit_start(self, seconds: float | None) -> None:
        """Restart the timeout of the start with this many seconds; None means no limit."""
        self._seconds = _FOR_EVER if seconds is None else min(seconds, _FOR_EVER)
        self._deadline = time.monotonic() + self._seconds
        self._limit.reschedule(asyncio.get_running_loop().time() + self._seconds)

    def _late(self) -> StartupTimeoutError:
        return StartupTimeoutError(f"The deployment did not start within {self._seconds:g} seconds (startup_timeout)")

    def _seconds_left(self) -> float:
        """Return the seconds left for the start.

        Raises:
            StartupTimeoutError: if no time is left.
        """
        if (left := self._deadline - time.monotonic()) <= 0:
            raise self._late()
        return left

    def _leave_limit(self) -> float:
        """Return `_seconds_left`, for steps that have timeouts of their own: that of the start ends."""
        self._limit.reschedule(None)
        return self._seconds_left()


class SandboxDeployment(ProviderDeployment):
    """A deployment with a `SandboxRuntime`, for containers, hosts and isolated views."""

    _runs_bash = False
    """Set by `_start_sandbox` if it has run a bash of 4.4 or later there; the runtime then need not try it."""

    _backend: Any = None
    """The backend of the last start, if it had no server."""

    @abstractmethod
    async def _start_sandbox(self) -> Backend:
        """Start the sandbox and return its backend.

        If it fails, `_end_sandbox` cleans up what it has begun.
        """

    async def _why_ended(self) -> str | None:
        """Return why the sandbox has ended, as a sentence; None if it has not, or that is unknown.

        Raises:
            TimeoutError: if the state cannot be read now.
        """
        return None

    async def is_alive(self, *, timeout: float | None = None) -> IsAliveResponse:
        """Check whether the runtime responds within `timeout` seconds.

        Raises:
            DeploymentNotStartedError: if the deployment was not started, or was stopped.
            SandboxLostError: if the provider reports that the sandbox has ended, with the reason.
        """
        asking = asyncio.ensure_future(self.runtime.is_alive(timeout=timeout))
        try:
            await asyncio.wait({asking}, timeout=_ANSWER_SECONDS)
            if asking.done() and asking.result():
                return asking.result()
            # Packets to the address of an ended sandbox may be lost: the request would take the whole timeout.
            left = _LOOK_SECONDS if timeout is None else max(0.1, timeout - _ANSWER_SECONDS)
            why = None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    why = await background.run(self._why_ended())
            if why is not None:
                self._lost = True
                raise SandboxLostError(f"Container process terminated. {why}")
            return await asking
        finally:
            asking.cancel()

    async def _start(self) -> None:
        # Slow, so while the sandbox starts.
        importing = asyncio.ensure_future(in_thread(importlib.import_module, "swerex_c.runtime.sandbox"))
        self._runs_bash, self._backend = False, None
        began = time.monotonic()
        self._backend = backend = await self._start_sandbox()
        await self._step("Starting runtime")
        runtime = (await importing).SandboxRuntime(backend, logger=self.logger, runs_bash=self._runs_bash)
        self._runtime = runtime
        await runtime.open(timeout=self._leave_limit())
        self.logger.info(f"Runtime started in {time.monotonic() - began:.2f}s")
