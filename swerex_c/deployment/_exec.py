"""What deployments share that start a place, and those whose runtime reaches it by running a program there."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import os
import subprocess
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from swerex_c.deployment.abstract import AbstractDeployment
from swerex_c.deployment.hooks.abstract import CombinedDeploymentHook, DeploymentHook
from swerex_c.exceptions import (
    DeploymentNotStartedError,
    DeploymentStartupError,
    RuntimeClosedError,
    StartupTimeoutError,
    SwerexException,
)
from swerex_c.exec import loops
from swerex_c.exec.ask import ask, kill_group
from swerex_c.exec.threads import in_thread
from swerex_c.runtime.abstract import IsAliveResponse
from swerex_c.utils.log import get_logger

if TYPE_CHECKING:
    from swerex_c.exec.ask import Said
    from swerex_c.exec.backend import Backend
    from swerex_c.exec.session import Look
    from swerex_c.runtime._base import AbstractRuntime

__all__ = ["Effort", "EffortEnded", "ExecDeployment", "PlaceDeployment"]

_FOR_EVER = 20 * 86400.0
"""Seconds without a limit, as system calls can take them."""

_CLOSE_SECONDS = 10.0
"""How long the runtime has to close when the place is going to be ended anyway."""

_GIVE_UP_SECONDS = 1.0
"""The same for one that never was of use."""

_END_SECONDS = 60.0
"""How long ending the place may take altogether: what `_end` does has limits of its own, below this."""

T = TypeVar("T")

_entering = threading.Lock()
"""Held for a moment, by the one start among several of a deployment that may begin."""


class EffortEnded(Exception):
    """The start was given up while this was done for it. It never reaches callers."""


class Effort:
    """The work of one start: it has a deadline, and can be given up from another thread at any moment."""

    def __init__(self, seconds: float | None) -> None:
        """Begin, with this much time; None is as long as it takes."""
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._future: concurrent.futures.Future[Any] | None = None
        self._patience = 0.0
        self._killing: threading.Timer | None = None
        self._ended = False
        self.limit(seconds)

    def limit(self, seconds: float | None) -> None:
        """Have the time begin anew."""
        self.seconds = _FOR_EVER if seconds is None else min(seconds, _FOR_EVER)
        self._deadline = time.monotonic() + self.seconds

    def check(self) -> float:
        """How many seconds are left.

        Raises:
            EffortEnded: if the start was given up.
            StartupTimeoutError: if there are none.
        """
        if self._ended:
            raise EffortEnded
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise self.late()
        return left

    def over(self) -> bool:
        """Whether no time is left."""
        return time.monotonic() >= self._deadline

    def late(self) -> StartupTimeoutError:
        """The error that says that the time is over."""
        return StartupTimeoutError(f"The deployment did not start within {self.seconds:g} seconds (startup_timeout)")

    def ask(
        self,
        argv: Sequence[str],
        *,
        environment: Mapping[str, str],
        timeout: float | None = None,
        input: bytes = b"",
        until: bytes = b"",
        patience: float = 0.0,
    ) -> Said:
        """Run a client program to its end, as `swerex_c.exec.ask.ask` does, within what is left. Blocks.

        Args:
            patience: seconds that the program may still run when the start is given up, because what it asked its
                engine for is only known when it has ended.

        Raises:
            EffortEnded, StartupTimeoutError: as `check`.
            TimeoutError: if `timeout`, which is shorter, is over.
            OSError: if it cannot be started.
        """
        left = self.check()
        try:
            said = ask(
                argv,
                environment=environment,
                timeout=left if timeout is None else min(left, timeout),
                input=input,
                until=until,
                started=lambda process: self.watch(process, patience),
            )
        except TimeoutError:
            self.check()
            raise
        finally:
            self.watch(None)
        self.check()
        return said

    def run(self, work: Coroutine[Any, Any, T], *, timeout: float | None = None, patience: float = 0.0) -> T:
        """Run a coroutine in the loop of `swerex_c.exec.loops`, within what is left. Blocks.

        Args:
            timeout: seconds that it may take at most.
            patience: seconds that it may still run when the start is given up, because what it asks its cloud for is
                only known when it has ended. If it ends in that time its result is returned, and the next step raises.

        Raises:
            EffortEnded, StartupTimeoutError: as `check`.
            TimeoutError: if `timeout`, which is shorter, is over.
        """
        try:
            left = self.check()
        except BaseException:
            work.close()
            raise
        limit = left if timeout is None else min(left, timeout)
        future = loops.submit(work)
        with self._lock:
            self._future, self._patience = future, patience
            if self._ended:
                self._cancel_later(future, patience)
        try:
            return future.result(limit)
        except concurrent.futures.CancelledError:
            self.check()
            raise EffortEnded from None
        except concurrent.futures.TimeoutError:
            if future.done():  # it raised this itself
                raise
            with contextlib.suppress(concurrent.futures.TimeoutError):
                if patience and self.over():
                    return future.result(patience)
            future.cancel()
            self.check()
            raise TimeoutError(f"No answer within {limit:g} seconds") from None
        finally:
            with self._lock:
                self._future = None

    def _cancel_later(self, future: concurrent.futures.Future[Any], patience: float) -> None:
        if not patience:
            future.cancel()
            return
        cancelling = threading.Timer(patience, future.cancel)
        cancelling.daemon = True
        cancelling.start()
        future.add_done_callback(lambda _: cancelling.cancel())

    def watch(self, process: subprocess.Popen[bytes] | None, patience: float = 0.0) -> None:
        """Have a program, which leads a process group, killed if the start is given up; None: no longer.

        Raises:
            EffortEnded: if it is already.
        """
        with self._lock:
            self._process, self._patience = process, patience
            if self._killing is not None:
                self._killing.cancel()
            if self._ended and process is not None:
                raise EffortEnded

    def end(self) -> None:
        """Give the start up: what runs for it is killed, and nothing new is begun. Thread-safe."""
        with self._lock:
            self._ended = True
            if self._future is not None:
                self._cancel_later(self._future, self._patience)
                return
            process = self._process
            if process is None or self._killing is not None:
                return
            if self._patience:
                self._killing = threading.Timer(self._patience, kill_group, (process,))
                self._killing.daemon = True
                self._killing.start()
                return
        kill_group(process)


class _Starting:
    """A start that is under way."""

    def __init__(self, effort: Effort) -> None:
        self.effort = effort
        self.over = threading.Event()
        self.stopped = False

    def give_up(self) -> None:
        """It is stopped by somebody else: it undoes what it has begun, and raises."""
        self.stopped = True
        self.effort.end()


_within: ContextVar[_Starting | None] = ContextVar("_within", default=None)
"""The start that this is done for."""


_OWN_WORDS = (DeploymentStartupError, RuntimeClosedError)
"""What a failed start raises as it is; other errors of this package become the first of these."""


class PlaceDeployment(AbstractDeployment):
    """Starts a place, and a runtime that reaches it.

    A kind of place says how both are made, in `_start`, and how the place is ended, in `_end`, which blocks: it is
    called in a thread.
    """

    _startup_timeout: ClassVar[float] = 180.0
    """Seconds that `start` may take, for configurations that do not say."""

    _ends_place: ClassVar[bool] = False
    """Whether `_end` ends whatever runs in the place, so that nobody else has to."""

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

    # What a kind of place says

    @abstractmethod
    async def _start(self, effort: Effort) -> None:
        """Make the place, and the runtime that reaches it: `_runtime`. Gives up when `effort` says so.

        What it has begun it leaves to `_end` if it fails.
        """

    def _end(self) -> None:
        """End the place, however far `_start` came. May be called again. Blocks, for a limited time."""

    # What deployments do

    def add_hook(self, hook: DeploymentHook) -> None:
        self._hooks.add_hook(hook)

    async def is_alive(self, *, timeout: float | None = None) -> IsAliveResponse:
        """Whether the runtime answers, within `timeout` seconds.

        Raises:
            DeploymentNotStartedError: if the deployment was not started, or was stopped.
        """
        return await self.runtime.is_alive(timeout=timeout)

    async def start(self, *args: Any, **kwargs: Any) -> None:
        """Start the place, and wait until a command can run in it. One that was started before is stopped first.

        When it fails or is cancelled, whatever was begun is ended before that is raised.

        Raises:
            DeploymentStartupError: if the place cannot be started.
            StartupTimeoutError: if it cannot be in the configuration's `startup_timeout`; this is a TimeoutError too.
        """
        starting = _Starting(Effort(getattr(self._config, "startup_timeout", self._startup_timeout)))
        while not self._enter(starting):
            await self.stop()
        outer = _within.set(starting)
        try:
            await self._start_or_undo(starting)
        finally:
            with contextlib.suppress(ValueError):  # a coroutine that is closed elsewhere
                _within.reset(outer)
            if self._starting is starting:
                self._starting = None
            starting.over.set()

    def _enter(self, starting: _Starting) -> bool:
        """Begin a start, unless something is to be stopped before. Thread-safe."""
        with _entering:
            if self._left_running() or (self._clearing is not None and self._owner == os.getpid()):
                return False
            self._starting, self._began, self._owner = starting, True, os.getpid()
            return True

    async def _start_or_undo(self, starting: _Starting) -> None:
        try:
            await self._start(starting.effort)
            starting.effort.check()
            self._ready = True
        except GeneratorExit:
            # The loop is gone, and with it whatever could be awaited.
            starting.effort.end()
            self._runtime = None
            self._end()
            self._began = False
            raise
        except BaseException as error:
            late = starting.effort.over()
            await self._undo(starting.effort)
            if starting.stopped and isinstance(error, Exception):
                raise RuntimeClosedError("The deployment was stopped while it was starting") from error
            if isinstance(error, TimeoutError) and not isinstance(error, StartupTimeoutError):
                raise StartupTimeoutError(str(error) or str(starting.effort.late())) from error
            if isinstance(error, SwerexException) and not isinstance(error, _OWN_WORDS):
                kind = StartupTimeoutError if late else DeploymentStartupError
                raise kind(str(error)) from error
            raise

    async def _in_thread(self, effort: Effort, function: Any, *args: Any) -> Any:
        """Call a blocking function of a start in a thread. Cancelled, it ends the effort, and waits for the thread."""
        work = asyncio.ensure_future(in_thread(function, *args))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            effort.end()
            with contextlib.suppress(BaseException):
                await asyncio.wait_for(asyncio.shield(work), _END_SECONDS)
            raise

    async def _undo(self, effort: Effort) -> None:
        """End what a start that failed has begun; a second cancellation does not keep it from doing so."""
        effort.end()
        with contextlib.suppress(Exception):
            await _finish(self._clear)

    async def stop(self, *args: Any, **kwargs: Any) -> None:
        """End the place with everything in it. A deployment that is not started stays so.

        A start that is under way is given up: it raises `RuntimeClosedError`, and this returns when it has undone
        what it had begun.
        """
        await _finish(self._stop)

    async def _stop(self) -> None:
        mine = threading.Event()
        while (other := self._take_turn(mine)) is not None:
            over = other.over if isinstance(other, _Starting) else other
            if isinstance(other, _Starting):
                other.give_up()
                await self._close_runtime()  # which may be opening
            if not await in_thread(over.wait, _END_SECONDS / 2):  # as of one whose loop was abandoned
                self.logger.debug("A start or a stop of before does not end")
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
        """Be the only one who ends what was begun, until `mine` is set; or the one that has to end before."""
        with _entering:
            if self._owner == os.getpid():
                if self._starting is not None and self._starting is not _within.get():
                    return self._starting
                if self._clearing is not None:
                    return self._clearing
            self._clearing = mine
            return None

    async def _clear(self) -> None:
        """End the runtime and the place, however far they came."""
        await self._close_runtime()
        self._ready = False
        if self._has_begun():
            await in_thread(self._end)
            self._began = False

    async def _close_runtime(self) -> None:
        runtime, self._runtime = self._runtime, None
        if runtime is not None:
            if self._ends_place and hasattr(runtime, "ends_with_place"):
                runtime.ends_with_place = True
            try:
                await asyncio.wait_for(
                    runtime.close(), _GIVE_UP_SECONDS if self._began and not self._ready else self._close_seconds()
                )
            except Exception as error:
                self.logger.debug("The runtime could not be closed: %s", error)

    def _close_seconds(self) -> float:
        """How long the runtime may take to close, before the place is ended anyway."""
        return _CLOSE_SECONDS

    def _has_begun(self) -> bool:
        """Whether there is something for `_end` to do."""
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


class ExecDeployment(PlaceDeployment):
    """Starts a place, and an `ExecRuntime` in it: containers, hosts, isolated views.

    A kind of place says how it is begun, in `_begin`, which blocks: it is called in a thread.
    """

    _known: Look | None = None
    """What a bash of the place has told of it that `_begin` had run there: the place is not asked once more then."""

    @abstractmethod
    def _begin(self, effort: Effort) -> Backend:
        """Start the place and say how it is reached. Blocks, and gives up when `effort` says so.

        What it has begun it leaves to `_end` if it fails.
        """

    async def _start(self, effort: Effort) -> None:
        # What is slow to import is, while the place starts.
        threading.Thread(target=_import_runtime, name="import", daemon=True).start()
        self._known = None
        backend = await self._in_thread(effort, self._begin, effort)
        self._hooks.on_custom_step("Starting runtime")
        began = time.monotonic()
        from swerex_c.runtime.exec import ExecRuntime

        runtime = ExecRuntime(backend, logger=self.logger, known=self._known)
        self._runtime = runtime
        await runtime.open(timeout=effort.check())
        self.logger.info(f"Runtime started in {time.monotonic() - began:.2f}s")


def _import_runtime() -> None:
    with contextlib.suppress(Exception):  # it is told where it is needed
        import swerex_c.exec.session
        import swerex_c.runtime.exec  # noqa: F401


async def _finish(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Do something to its end, even if that is cancelled meanwhile; then the cancellation is raised."""
    task = asyncio.ensure_future(work())
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        for _ in range(2):
            with contextlib.suppress(BaseException):
                await asyncio.wait_for(asyncio.shield(task), _END_SECONDS)
            if not task.cancelled():
                break
            task = asyncio.ensure_future(work())  # that was, with all tasks of a loop that is about to end
        raise
