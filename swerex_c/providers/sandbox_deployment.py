"""Base classes of deployments that start and stop a sandbox.

They limit the time of a start, and clean up after a start that fails or is cancelled.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from swerex_c.exceptions import (
    DeploymentNotStartedError,
    DeploymentStartupError,
    ResourceError,
    RuntimeClosedError,
    StartupTimeoutError,
    SwerexException,
)
from swerex_c.interfaces import AbstractDeployment, CombinedDeploymentHook, DeploymentHook
from swerex_c.models import IsAliveResponse
from swerex_c.utils.log import get_logger
from swerex_c.utils.threads import Cancellation, in_cancellable_thread, in_thread, start_thread

if TYPE_CHECKING:
    from swerex_c.interfaces import AbstractRuntime
    from swerex_c.sandbox.backend import Backend
    from swerex_c.sandbox.session import ProbeResult

__all__ = ["SandboxDeployment", "ProviderDeployment"]

_FOR_EVER = 20 * 86400.0
"""Seconds that stand for no limit; small enough for system calls."""

_CLOSE_SECONDS = 10.0
"""Seconds to wait for the runtime to close; the sandbox is ended afterwards in any case."""

_GIVE_UP_SECONDS = 1.0
"""Seconds to wait for a runtime to close that never became usable."""

_END_SECONDS = 60.0
"""Seconds to wait for the sandbox to end; steps of `_end` have shorter limits of their own."""

T = TypeVar("T")

_entering = threading.Lock()
"""Lock held briefly, so that only one of several concurrent starts of a deployment begins."""


class _Starting:
    """A start in progress.

    Its timeout and `give_up` cancel what it waits for. All methods are thread-safe.
    """

    def __init__(self, seconds: float | None) -> None:
        """Begin a start with a timeout in seconds; None means no limit."""
        self._loop = asyncio.get_running_loop()
        self.timeout = asyncio.timeout(None)
        self.calls = Cancellation()
        self.over = threading.Event()
        self.stopped = False
        self.limit(seconds)

    def limit(self, seconds: float | None) -> None:
        """Restart the timeout with this many seconds; None means no limit."""
        self.seconds = _FOR_EVER if seconds is None else min(seconds, _FOR_EVER)
        self.deadline = time.monotonic() + self.seconds
        self._loop.call_soon_threadsafe(self._reschedule, self.deadline)

    def left(self) -> float:
        """Return the seconds left.

        Raises:
            StartupTimeoutError: if no time is left.
            concurrent.futures.CancelledError: if the start was cancelled.
        """
        self.calls.check()
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise self.late()
        return left

    def late(self) -> StartupTimeoutError:
        """Return the error for a deadline that has passed."""
        return StartupTimeoutError(f"The deployment did not start within {self.seconds:g} seconds (startup_timeout)")

    def leave_limit(self) -> float:
        """End the timeout; return the seconds left for a step with its own timeout."""
        self._loop.call_soon_threadsafe(self._reschedule, None)
        return self.left()

    def give_up(self) -> None:
        """Cancel the start on behalf of `stop`: it undoes its steps and raises."""
        self.stopped = True
        self.calls.cancel()
        with contextlib.suppress(RuntimeError):  # its event loop is closed
            self._loop.call_soon_threadsafe(self._reschedule, None)

    def _reschedule(self, deadline: float | None) -> None:
        if self.stopped:
            deadline = 0.0
        elif deadline is not None:
            deadline += self._loop.time() - time.monotonic()
        with contextlib.suppress(RuntimeError):  # the timeout has passed, or the start is over
            self.timeout.reschedule(deadline)


_within: ContextVar[_Starting | None] = ContextVar("_within", default=None)
"""The start that the current code runs for."""


def _current_start() -> _Starting:
    starting = _within.get()
    if starting is None:
        raise DeploymentNotStartedError()
    return starting


_OWN_WORDS = (DeploymentStartupError, RuntimeClosedError)
"""Errors that a failed start raises unchanged; other errors of this package become the first of them."""


class ProviderDeployment(AbstractDeployment):
    """A deployment that starts a sandbox and a runtime for it.

    Subclasses create both in `_start`, and end the sandbox in `_end`, which blocks and is called in a thread.
    """

    _startup_timeout: ClassVar[float] = 180.0
    """Seconds that `start` may take if the configuration has no `startup_timeout`."""

    _ends_sandbox: ClassVar[bool] = False
    """True if `_end` ends all processes in the sandbox, so that the runtime need not."""

    _config: Any

    def __init__(self, *, logger: logging.Logger | None = None) -> None:
        self._runtime: AbstractRuntime | None = None
        self._hooks = CombinedDeploymentHook()
        self.logger = logger or get_logger("rex-deploy")
        self._began = False
        self._ready = False
        self._starting: _Starting | None = None
        self._clearing: threading.Event | None = None
        self._owner = os.getpid()

    # To be overridden by providers

    @abstractmethod
    async def _start(self) -> None:
        """Create the sandbox and its runtime, `_runtime`.

        Blocking steps are called by `_in_thread`. If this fails or is cancelled, `_end` cleans up what it has begun.
        """

    def _end(self) -> None:
        """End the sandbox, however far `_start` came. May be called again. Blocks, for a limited time."""

    # Interface of deployments

    def add_hook(self, hook: DeploymentHook) -> None:
        self._hooks.add_hook(hook)

    async def is_alive(self, *, timeout: float | None = None) -> IsAliveResponse:
        """Check whether the runtime responds within `timeout` seconds.

        Raises:
            DeploymentNotStartedError: if the deployment was not started, or was stopped.
        """
        return await self.runtime.is_alive(timeout=timeout)

    async def start(self, *args: Any, **kwargs: Any) -> None:
        """Start the sandbox, and wait until it can run a command.

        A started deployment is stopped first. If the start fails or is cancelled, everything it began is ended before
        the error is raised.

        Raises:
            DeploymentStartupError: if the sandbox cannot be started.
            StartupTimeoutError: if it cannot start within the configuration's `startup_timeout`; also a TimeoutError.
        """
        starting = _Starting(getattr(self._config, "startup_timeout", self._startup_timeout))
        while not self._enter(starting):
            await self.stop()
        outer = _within.set(starting)
        try:
            await self._start_or_undo(starting)
        finally:
            with contextlib.suppress(ValueError):  # the coroutine was closed in another context
                _within.reset(outer)
            if self._starting is starting:
                self._starting = None
            starting.over.set()

    def _enter(self, starting: _Starting) -> bool:
        """Register a start, unless a running or stopping one must end first. Thread-safe."""
        with _entering:
            if self._left_running() or (self._clearing is not None and self._owner == os.getpid()):
                return False
            self._starting, self._began, self._owner = starting, True, os.getpid()
            return True

    async def _start_or_undo(self, starting: _Starting) -> None:
        try:
            async with starting.timeout:
                await self._start()
            starting.left()
            self._ready = True
        except GeneratorExit:
            # The event loop is gone, so nothing can be awaited.
            self._runtime = None
            self._end()
            self._began = False
            raise
        except BaseException as error:
            late = time.monotonic() >= starting.deadline
            # A second cancellation does not interrupt the cleanup.
            with contextlib.suppress(Exception):
                await _finish(self._clear)
            if starting.stopped and isinstance(error, Exception):
                raise RuntimeClosedError("The deployment was stopped while it was starting") from error
            if isinstance(error, TimeoutError) and not isinstance(error, StartupTimeoutError):
                raise StartupTimeoutError(str(error) or str(starting.late())) from error
            if isinstance(error, SwerexException) and not isinstance(error, _OWN_WORDS):
                kind = StartupTimeoutError if late else DeploymentStartupError
                raise kind(str(error)) from error
            raise

    async def _in_thread(self, function: Callable[..., T], *args: Any) -> T:
        """Call a blocking function of a start in a thread. Cancellation interrupts it, and waits for the thread."""
        return await in_cancellable_thread(_current_start().calls, function, *args)

    def _limit_start(self, seconds: float | None) -> None:
        """Restart the timeout of the start with this many seconds; None means no limit. Thread-safe."""
        _current_start().limit(seconds)

    def _seconds_left(self) -> float:
        """Return the seconds left for the start. Thread-safe.

        Raises:
            StartupTimeoutError: if no time is left.
            concurrent.futures.CancelledError: if the start was cancelled.
        """
        return _current_start().left()

    def _leave_limit(self) -> float:
        """Return `_seconds_left`, for steps that have timeouts of their own: that of the start ends. Thread-safe."""
        return _current_start().leave_limit()

    async def stop(self, *args: Any, **kwargs: Any) -> None:
        """End the sandbox and everything in it.

        Do nothing if the deployment is not started. A start in progress is cancelled: it raises `RuntimeClosedError`,
        and `stop` returns when its cleanup is complete.
        """
        await _finish(self._stop)

    async def _stop(self) -> None:
        mine = threading.Event()
        while (other := self._take_turn(mine)) is not None:
            over = other.over if isinstance(other, _Starting) else other
            if isinstance(other, _Starting):
                other.give_up()
                await self._close_runtime()  # it may still be opening
            if not await in_thread(over.wait, _END_SECONDS / 2):  # for example, because its event loop was abandoned
                self.logger.debug("An earlier start or stop has not ended")
                with _entering:
                    self._starting = None if self._starting is other else self._starting
                    self._clearing = None if self._clearing is other else self._clearing
        try:
            await self._clear()
        finally:
            with _entering:
                self._clearing = None if self._clearing is mine else self._clearing
            mine.set()

    def _take_turn(self, mine: threading.Event) -> _Starting | threading.Event | None:
        """Claim the cleanup until `mine` is set, and return None; or return the start or stop to wait for."""
        with _entering:
            if self._owner == os.getpid():
                if self._starting is not None and self._starting is not _within.get():
                    return self._starting
                if self._clearing is not None:
                    return self._clearing
            self._clearing = mine
            return None

    async def _clear(self) -> None:
        """Close the runtime and end the sandbox, however far they came."""
        await self._close_runtime()
        self._ready = False
        if self._has_begun():
            await in_thread(self._end)
            self._began = False

    async def _close_runtime(self) -> None:
        runtime, self._runtime = self._runtime, None
        if runtime is not None:
            if self._ends_sandbox and hasattr(runtime, "ends_with_sandbox"):
                runtime.ends_with_sandbox = True
            try:
                await asyncio.wait_for(
                    runtime.close(), _GIVE_UP_SECONDS if self._began and not self._ready else self._close_seconds()
                )
            except Exception as error:
                self.logger.debug("Cannot close the runtime: %s", error)

    def _close_seconds(self) -> float:
        """Return the seconds for the runtime to close before the sandbox is ended."""
        return _CLOSE_SECONDS

    def _has_begun(self) -> bool:
        """Check whether `_end` has anything to do."""
        return self._began

    @property
    def runtime(self) -> AbstractRuntime:
        """The runtime.

        Raises:
            DeploymentNotStartedError: if the deployment was not started, or was stopped.
        """
        if self._runtime is None:
            raise DeploymentNotStartedError()
        return self._runtime

    def _left_running(self) -> bool:
        # A copy of the object in a forked process owns nothing.
        return os.getpid() == getattr(self, "_owner", None) and (self._has_begun() or self._runtime is not None)


class SandboxDeployment(ProviderDeployment):
    """A deployment with a `SandboxRuntime`, for containers, hosts and isolated views.

    Subclasses start the sandbox in `_begin`, which blocks and is called in a thread.
    """

    _known: ProbeResult | None = None
    """Probe result of a bash that `_begin` has run in the sandbox; the runtime then skips its own probe."""

    _born = ""
    """Start time of the sandbox's first process, which that bash has told."""

    @abstractmethod
    def _begin(self) -> Backend:
        """Start the sandbox and return its backend. Blocks.

        It is interrupted as `in_cancellable_thread` says. If it fails, `_end` cleans up what it has begun.
        """

    async def _start(self) -> None:
        # Import slow modules while the sandbox starts.
        with contextlib.suppress(ResourceError):
            start_thread(_import_runtime, "import")
        self._known, self._born = None, ""
        began = time.monotonic()
        backend = await self._in_thread(self._begin)
        self._hooks.on_custom_step("Starting runtime")
        from swerex_c.runtime.sandbox import SandboxRuntime

        runtime = SandboxRuntime(backend, logger=self.logger, known=self._known, born=self._born)
        self._runtime = runtime
        await runtime.open(timeout=self._leave_limit())
        self.logger.info(f"Runtime started in {time.monotonic() - began:.2f}s")


def _import_runtime() -> None:
    with contextlib.suppress(Exception):  # an import error is raised where the module is needed
        import swerex_c.runtime.sandbox
        import swerex_c.sandbox.session  # noqa: F401


async def _finish(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a coroutine to completion even if cancelled meanwhile; the cancellation is raised afterwards."""
    task = asyncio.ensure_future(work())
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        for _ in range(2):
            with contextlib.suppress(BaseException):
                await asyncio.wait_for(asyncio.shield(task), _END_SECONDS)
            if not task.cancelled():
                break
            task = asyncio.ensure_future(work())  # the event loop is ending and cancelled all its tasks
        raise
