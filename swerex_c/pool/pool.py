"""Pool that starts, lends, checks, resets and ends environments."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
import math
import weakref
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Coroutine
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from swerex_c.exceptions import (
    ConnectionLostError,
    DeploymentNotStartedError,
    EnvironmentLostError,
    EnvironmentMemoryLimitError,
    EnvironmentStartError,
    EnvironmentTimeLimitError,
    InvalidInputError,
    MemoryLimitError,
    PoolClosedError,
    PoolError,
    PoolFullError,
    PoolTimeoutError,
    ProtocolError,
    ResultLostError,
    RuntimeClosedError,
    SandboxLostError,
    ServerRestartedError,
    SessionDiedError,
    SwerexException,
    TimeLimitError,
)
from swerex_c.interfaces import AbstractDeployment
from swerex_c.pool.environment import Environment, Slot, State
from swerex_c.pool.start import Starter, finish_within
from swerex_c.pool.stats import Collector, Counts, PoolStats, Times, register
from swerex_c.utils.log import get_logger

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from swerex_c.deployment.config import DeploymentConfig

__all__ = ["Environment", "Pool", "PoolStats", "Times"]

_DOUBTFUL = (
    ConnectionLostError,
    DeploymentNotStartedError,
    ProtocolError,
    ResultLostError,
    RuntimeClosedError,
    ServerRestartedError,
    SessionDiedError,
)
"""Errors after which the pool checks whether an environment is alive; `SandboxLostError` needs no check."""

_ALIVE_SECONDS = 10.0
"""Seconds for an environment's check whether it is alive."""

Reset = Callable[["Environment"], Awaitable[object]]
"""Function that restores a used environment to its initial state."""


class Pool:
    """Pool of at most `size` environments of one kind, for any number of users.

    See `swerex_c.pool`.
    """

    def __init__(
        self,
        environments: DeploymentConfig | Callable[[], AbstractDeployment],
        size: int,
        *,
        warm: int = 0,
        max_waiting: int = 1000,
        wait_timeout: float | None = None,
        time_limit: float | None = None,
        starts_at_once: int = 8,
        start_attempts: int = 3,
        start_timeout: float | None = None,
        backoff: float = 1.0,
        idle_timeout: float = 60.0,
        stop_timeout: float = 60.0,
        reuse: int | None = 0,
        reset: Reset | None = None,
        reset_timeout: float = 60.0,
        name: str = "pool",
        logger: logging.Logger | None = None,
    ):
        """Create the pool without starting any environment.

        Args:
            environments: configuration of each environment, or a function that returns a new deployment.
            size: maximum number of environments, including those that are starting and ending.
            warm: number of ready environments to keep besides those in use, within `size`, from `async with` on.
            max_waiting: maximum number of callers that wait while all environments are in use; more get PoolFullError.
            wait_timeout: seconds that a caller waits for an environment; None means no limit.
            time_limit: seconds that an environment may be in use. Then it is ended, and its user's block is cancelled
                and raises `EnvironmentTimeLimitError`; None means no limit.
            starts_at_once: maximum number of concurrent starts.
            start_attempts: maximum number of attempts for each start.
            start_timeout: seconds for each attempt; None leaves the limit to the deployment.
            backoff: seconds before the second attempt; each later pause is twice as long, up to 30 s.
            idle_timeout: seconds after which an idle environment beyond `warm` is ended.
            stop_timeout: seconds for stopping an environment. Then its slot is free again, and `ends_failed` is
                incremented: parts of the environment may be left.
            reuse: maximum number of users after the first; None means no limit. An environment is reused only if its
                user left without an exception, it is alive, and `reset` succeeded.
            reset: restores a used environment to its initial state. Required for `reuse`.
            reset_timeout: seconds for `reset`.
            name: name of the pool in messages, logs and metrics.

        Raises:
            InvalidInputError: if an argument is invalid.
        """
        for least, names in (
            (0, {"warm": warm, "max_waiting": max_waiting, "backoff": backoff, "idle_timeout": idle_timeout}),
            (1, {"size": size, "starts_at_once": starts_at_once, "start_attempts": start_attempts}),
        ):
            for which, value in names.items():
                if not value >= least:
                    raise InvalidInputError(f"{which} must be at least {least}, not {value}")
        for which, seconds in {"stop_timeout": stop_timeout, "reset_timeout": reset_timeout}.items():
            if not 0 < seconds < math.inf:
                raise InvalidInputError(f"{which} must be a finite number of seconds above 0, not {seconds}")
        if reuse is not None and reuse < 0:
            raise InvalidInputError(f"reuse must be at least 0, not {reuse}")
        if (reuse is None or reuse > 0) != (reset is not None):
            raise InvalidInputError("reuse and reset belong together: reset restores a used environment")
        if not callable(environments):
            if not hasattr(environments, "get_deployment"):
                kinds = "a configuration such as LocalDeploymentConfig(), or a function that returns a deployment"
                raise InvalidInputError(f"A pool's environments are {kinds}, not {environments!r}")
            environments = environments.model_copy(deep=True).get_deployment
        self.name = name
        self.size = size
        self.logger = logger or get_logger("rex-pool")
        self._warm = warm
        self._max_waiting = max_waiting
        self._wait_timeout = wait_timeout
        self._time_limit = time_limit
        self._idle_timeout = idle_timeout
        self._stop_timeout = stop_timeout
        self._reuse = reuse
        self._reset = reset
        self._reset_timeout = reset_timeout
        self._pause = backoff
        self._counts = Counts()
        self._starter = Starter(
            environments,
            self._counts,
            self.logger,
            at_once=starts_at_once,
            attempts=start_attempts,
            timeout=start_timeout,
            pause=backoff,
            stop_timeout=stop_timeout,
        )
        self._slots: set[Slot] = set()
        self._states: Counter[State] = Counter()
        self._idle: deque[Slot] = deque()
        self._waiting: deque[asyncio.Future[Slot]] = deque()
        self._number = 0
        self._warm_after = -math.inf
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing: asyncio.Task[None] | None = None
        self._closed = False
        self._unregister: Callable[[], None] | None = None

    # Methods for callers

    async def __aenter__(self) -> Self:
        """Begin to start the `warm` environments, without waiting for them."""
        self._bind()
        self._pump()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def environment(self, *, wait_timeout: float | None = None, time_limit: float | None = None) -> Lease:
        """Return a lease of an environment for one `async with` block.

        The limits are in seconds; the pool's own limit replaces None.

        Entering waits in the queue, and raises:
            PoolFullError: if the queue is full.
            PoolTimeoutError: if the wait exceeded `wait_timeout`.
            EnvironmentStartError: if the environment could not be started; its cause is the error of the last attempt.
            PoolClosedError: if the pool is closed or closing.
            PoolError: in another event loop than that of the pool.

        Leaving ends or resets the environment in the background, and raises:
            EnvironmentTimeLimitError: if the environment reached `time_limit` or its own time limit.
            EnvironmentMemoryLimitError: if the environment was ended at its memory limit.
            EnvironmentLostError: instead of an error of the runtime if the environment is no longer alive.
            PoolClosedError: if the pool was closed during the block.
        """
        return Lease(
            self,
            self._wait_timeout if wait_timeout is None else wait_timeout,
            self._time_limit if time_limit is None else time_limit,
        )

    def stats(self) -> PoolStats:
        """Return a snapshot of the pool's statistics."""
        states = self._states
        return PoolStats(
            size=self.size,
            waiting=len(self._waiting),
            starting=states[State.STARTING],
            idle=sum(states[state] for state in (State.IDLE, State.CHECKING, State.RESETTING)),
            in_use=states[State.IN_USE],
            ending=states[State.ENDING],
            counts=copy.deepcopy(self._counts),
        )

    def show_metrics(self, registry: CollectorRegistry | None = None) -> None:
        """Register the pool with a Prometheus registry until the pool is closed.

        None is the default registry.

        Raises:
            NotAvailableError: if prometheus-client is not installed.
        """
        if self._unregister is None:
            me = weakref.ref(self)
            collector = Collector(self.name, lambda: None if (pool := me()) is None else pool.stats())
            self._unregister = register(collector, registry)

    async def close(self, timeout: float = 120.0) -> None:
        """End every environment, including those in use.

        Waiting callers get a `PoolClosedError`. May be called again. Returns after at most `timeout` seconds. If the
        caller is cancelled, the closing continues. If the pool's event loop is already closed, this works in another
        loop.
        """
        if self._closed:
            return
        self._bind(closing=True)
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close(timeout))
        await asyncio.shield(self._closing)

    # Hand an environment to a user and take it back; none of these methods awaits, so each one is atomic

    def _bind(self, *, closing: bool = False) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            if not (closing and self._loop.is_closed()):
                raise PoolError(f"The {self.name} belongs to another event loop: make one in each loop")
            self._loop, self._closing = loop, None
            self._waiting.clear()
        if self._closing is not None and not closing:
            raise PoolClosedError(f"The {self.name} is closed")

    def _enqueue(self) -> asyncio.Future[Slot]:
        """Add the caller to the queue, and return the future of its slot."""
        self._bind()
        in_use = self._states[State.IN_USE]
        beyond = len(self._waiting) - (self.size - in_use)
        if beyond >= self._max_waiting:
            self._counts.refused += 1
            raise PoolFullError(
                f"The {self.name} is full: {in_use} of {self.size} environments are in use, "
                f"and {len(self._waiting)} callers wait for one (max_waiting is {self._max_waiting})"
            )
        future: asyncio.Future[Slot] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        self._pump()
        return future

    def _leave(self, future: asyncio.Future[Slot]) -> None:
        """Remove a caller from the queue, or take back the slot if the caller got one while it was leaving."""
        self._counts.gave_up += 1
        with contextlib.suppress(ValueError):
            self._waiting.remove(future)
        if future.done() and not future.cancelled() and future.exception() is None:
            slot = future.result()
            if slot.state is State.IN_USE:
                slot.uses -= 1
                self._counts.handed_out -= 1
                self._counts.reused -= slot.uses > 0
                self._supply(slot)
        future.cancel()
        self._pump()

    def _next_waiting(self) -> asyncio.Future[Slot] | None:
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                return future
        return None

    def _supply(self, slot: Slot) -> None:
        """Hand a ready environment to the first waiting caller, or keep it idle."""
        slot.task = None
        if self._closing is not None:
            self._end(slot)
        elif (future := self._next_waiting()) is None:
            self._set_state(slot, State.IDLE)
            slot.since = self._time()
            self._idle.append(slot)
            self._call_later(self._idle_timeout, Pool._end_surplus)
        else:
            self._set_state(slot, State.IN_USE)
            slot.uses += 1
            self._counts.handed_out += 1
            self._counts.reused += slot.uses > 1
            future.set_result(slot)

    def _pump(self) -> None:
        """Start, check or cancel environments as the pool's state requires. Call it after every change of state."""
        if self._closing is not None or self._loop is None or self._loop.is_closed():
            return
        coming = self._states[State.STARTING] + self._states[State.CHECKING]
        while self._idle and len(self._waiting) > coming:
            slot = self._idle.popleft()
            self._set_state(slot, State.CHECKING)
            self._start_task(slot, self._check(slot))
            coming += 1
        warm = self._warm if self._time() >= self._warm_after else 0
        missing = len(self._waiting) + warm - coming - len(self._idle)
        for _ in range(min(missing, self.size - len(self._slots))):
            self._number += 1
            slot = Slot(self._number)
            self._slots.add(slot)
            self._states[slot.state] += 1
            self._start_task(slot, self._start(slot))
        if missing < 0 and self._states[State.STARTING]:
            not_begun = [slot for slot in self._slots if slot.state is State.STARTING and not slot.begun]
            for slot in sorted(not_begun, key=lambda slot: slot.number)[missing:]:
                self._set_state(slot, State.ENDING)
                assert slot.task is not None
                slot.task.cancel()

    def _end_surplus(self) -> None:
        """End environments beyond `warm` that have been idle longer than `idle_timeout`."""
        while len(self._idle) > self._warm and self._time() - self._idle[0].since >= self._idle_timeout:
            self._end(self._idle.popleft())

    def _release(self, slot: Slot, *, clean: bool, lost: bool) -> None:
        """Reset or end an environment after its use. `clean` means that the block ended without an exception."""
        if slot.state is not State.IN_USE:
            return
        self._counts.replaced += lost
        if clean and self._closing is None and (self._reuse is None or slot.uses <= self._reuse):
            self._set_state(slot, State.RESETTING)
            self._start_task(slot, self._reset_used(slot))
        else:
            self._end(slot)

    def _take_away(self, slot: Slot, why: type[SwerexException]) -> None:
        """End an environment that is in use, and record `why` for its user."""
        if slot.state is State.IN_USE:
            slot.taken = why
            self._counts.time_limits += why is EnvironmentTimeLimitError
            self._end(slot)

    def _end(self, slot: Slot) -> None:
        self._set_state(slot, State.ENDING)
        self._start_task(slot, self._stop(slot))
        self._pump()

    def _set_state(self, slot: Slot, state: State) -> None:
        self._states[slot.state] -= 1
        self._states[state] += 1
        slot.state = state

    def _remove(self, slot: Slot) -> None:
        if slot in self._slots:
            self._slots.remove(slot)
            self._states[slot.state] -= 1
        self._pump()

    # Work on an environment, each method in its own task

    def _start_task(self, slot: Slot, work: Coroutine[Any, Any, None]) -> None:
        task = slot.task = asyncio.ensure_future(work)
        task.add_done_callback(lambda done: self._task_ended(slot, done))

    def _task_ended(self, slot: Slot, task: asyncio.Task[None]) -> None:
        """Clean up after a task. If it failed, which it should not, end its environment."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self.logger.error("The task of environment %s of the %s failed", slot.number, self.name, exc_info=error)
        if slot.task is not task or slot not in self._slots:
            return
        if slot.deployment is None or slot.state is State.ENDING:
            if slot.state is State.STARTING and self._closing is None:
                self._fail_first_waiting(EnvironmentStartError("The start of the environment was cancelled"))
            self._remove(slot)
        else:
            self._end(slot)

    async def _start(self, slot: Slot) -> None:
        def begun(really: bool) -> None:
            slot.begun = really

        try:
            slot.deployment = await self._starter.start(begun)
        except EnvironmentStartError as error:
            self._counts.starts_failed += 1
            self._set_state(slot, State.ENDING)
            self._fail_first_waiting(error)
            return  # `_task_ended` then removes the slot
        self._counts.started += 1
        if slot.state is State.STARTING:
            self._supply(slot)
            self._pump()
        else:
            self._end(slot)

    def _fail_first_waiting(self, error: EnvironmentStartError) -> None:
        """Raise a failed start at the first waiting caller. Without one, suspend the starts for `warm` for a while."""
        if (future := self._next_waiting()) is not None:
            future.set_exception(error)
            return
        rest = max(30.0, self._pause)
        self._warm_after = self._time() + rest
        self._call_later(rest, Pool._pump)
        self.logger.warning("The %s could not keep an environment ready: %s", self.name, error)

    async def _check(self, slot: Slot) -> None:
        """Hand out an idle environment if it is still alive, else replace it."""
        why = await self._why_dead(slot)
        if why is None:
            self._supply(slot)
            self._pump()
        else:
            self._replace(slot, why)

    async def _reset_used(self, slot: Slot) -> None:
        """Reset a used environment, or replace it if it is dead or its reset fails."""
        why = await self._why_dead(slot)
        if why is None:
            environment = Environment(slot)
            assert self._reset is not None
            try:
                async with asyncio.timeout(self._reset_timeout):
                    await self._reset(environment)
            except Exception as error:
                why = f"its reset failed: {type(error).__name__}: {error}"
            finally:
                environment._returned = True
        if why is None:
            self._supply(slot)
            self._pump()
        else:
            self._replace(slot, why)

    def _replace(self, slot: Slot, why: str) -> None:
        self._counts.replaced += 1
        self.logger.warning("%s of the %s is replaced: %s", Environment(slot).name, self.name, why)
        self._end(slot)

    async def _why_dead(self, slot: Slot) -> str | None:
        assert slot.deployment is not None
        try:
            async with asyncio.timeout(_ALIVE_SECONDS + 1):
                answer = await slot.deployment.is_alive(timeout=_ALIVE_SECONDS)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return None if answer else answer.message or "it is not alive"

    async def _stop(self, slot: Slot) -> None:
        assert slot.deployment is not None
        try:
            why = await finish_within(slot.deployment.stop, self._stop_timeout)
        finally:
            self._counts.ended += 1
        if why:
            self._counts.ends_failed += 1
            self.logger.error("%s of the %s was not stopped: %s", Environment(slot).name, self.name, why)
        slot.deployment = None

    async def _close(self, timeout: float) -> None:
        deadline = self._time() + timeout
        while (future := self._next_waiting()) is not None:
            future.set_exception(PoolClosedError("The pool was closed while the caller waited for an environment"))
        for slot in list(self._slots):
            if slot.task is not None and slot.task.get_loop() is not self._loop:
                slot.task = None  # its loop is closed
            if slot.state is State.IN_USE:
                self._take_away(slot, PoolClosedError)
            elif slot.task is None and slot.deployment is None:
                self._remove(slot)
            elif slot.task is None:
                self._end(slot)
            elif slot.state is not State.ENDING:
                slot.task.cancel()
        self._idle.clear()
        while (tasks := [slot.task for slot in self._slots if slot.task]) and (left := deadline - self._time()) > 0:
            await asyncio.wait(tasks, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.sleep(0)  # let the tasks' done callbacks run first
        if tasks:
            self.logger.error("The %s was closed while %d environments were still being stopped", self.name, len(tasks))
            for task in tasks:
                task.cancel()
        self._closed = True
        if self._unregister is not None:
            self._unregister()
            self._unregister = None

    # Time

    def _time(self) -> float:
        assert self._loop is not None
        return self._loop.time()

    def _call_later(self, seconds: float, what: Callable[[Pool], None]) -> None:
        """Call a method later, unless the pool is closing or gone: a timer must not keep the pool alive."""
        assert self._loop is not None
        me = weakref.ref(self)

        def ring() -> None:
            if (pool := me()) is not None and pool._closing is None:
                what(pool)

        if seconds < math.inf:
            self._loop.call_later(seconds, ring)


class Lease:
    """Loan of an environment for one `async with` block in one task.

    `Pool.environment` returns it.
    """

    def __init__(self, pool: Pool, wait_timeout: float | None, time_limit: float | None):
        self._pool = pool
        self._wait_timeout = wait_timeout
        self._time_limit = time_limit
        self._slot: Slot
        self._environment: Environment | None = None
        self._limit: asyncio.Timeout
        self._begin = 0.0
        self._entered = False
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Environment:
        if self._entered:
            raise InvalidInputError("A pool.environment() can be entered once: call it again for each `async with`")
        self._entered = True
        slot = await self._wait()
        self._slot = slot
        self._begin = self._pool._time()
        self._environment = Environment(slot)
        self._limit = asyncio.timeout(self._time_limit)
        await self._limit.__aenter__()
        if (end := self._limit.when()) is not None:
            self._timer = asyncio.get_running_loop().call_at(
                end, self._pool._take_away, slot, EnvironmentTimeLimitError
            )
        return self._environment

    async def _wait(self) -> Slot:
        pool = self._pool
        future = pool._enqueue()
        begin = pool._time()
        try:
            async with asyncio.timeout(self._wait_timeout) as limit:
                slot = await future
        except asyncio.CancelledError:
            pool._leave(future)
            raise
        except TimeoutError:
            if not limit.expired():
                raise
            pool._leave(future)
            raise PoolTimeoutError(self._timeout_message()) from None
        pool._counts.waiting_seconds.add(pool._time() - begin)
        return slot

    def _timeout_message(self) -> str:
        stats = self._pool.stats()
        text = (
            f"No environment of the {self._pool.name} became free in {self._wait_timeout:g} seconds: of {stats.size}, "
            f"{stats.in_use} are in use and {stats.starting} are starting; {stats.waiting} other callers wait"
        )
        last = self._pool._starter.last_error
        return f"{text}. The last start that failed: {last}" if last else text

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        slot, pool, environment = self._slot, self._pool, self._environment
        assert environment is not None
        if self._timer is not None:
            self._timer.cancel()
        ours = False
        lost: str | None = None
        try:
            try:
                await self._limit.__aexit__(kind, error, traceback)
            except TimeoutError:
                ours = True  # the time limit caused the cancellation
            if self._limit.expired():
                pool._take_away(slot, EnvironmentTimeLimitError)
            elif slot.taken is None:
                lost = await self._why_lost(error)
        finally:
            environment._returned = True
            pool._counts.use_seconds.add(pool._time() - self._begin)
            pool._release(slot, clean=error is None, lost=lost is not None)
        if error is not None and not isinstance(error, Exception) and not ours:
            return  # let a cancellation by other code, or the exit of the process, propagate
        if slot.taken is EnvironmentTimeLimitError:
            raise EnvironmentTimeLimitError(
                f"{environment.name} was in use for {self._time_limit:g} seconds (time_limit), and was ended"
            ) from error
        if slot.taken is not None:
            raise slot.taken(f"The {pool.name} was closed while {environment.name} was in use") from error
        if lost is not None:
            kind = _lost_class(error, slot)
            raise kind(f"{environment.name} was lost while it was in use: {lost}") from error

    async def _why_lost(self, error: BaseException | None) -> str | None:
        if isinstance(error, SandboxLostError):
            return str(error)
        if isinstance(error, _DOUBTFUL) and (why := await self._pool._why_dead(self._slot)) is not None:
            return f"{type(error).__name__}: {error} ({why})"
        return None


def _lost_class(error: BaseException | None, slot: Slot) -> type[EnvironmentLostError]:
    """Return the exception class for a lost environment. A limit has its own class, as a retry would hit it again."""
    if isinstance(error, MemoryLimitError):
        return EnvironmentMemoryLimitError
    if isinstance(error, TimeLimitError) and slot.uses == 1:  # else earlier users used part of the time
        return EnvironmentTimeLimitError
    return EnvironmentLostError
