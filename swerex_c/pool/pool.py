"""Pool that starts, lends, checks and ends environments.

Each environment is a `Member` of the pool with a task of its own, which starts its deployment and stops it in any case:
to end a member is to cancel its task. All that happens between two awaits of the pool's event loop is atomic.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import math
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from numbers import Real
from typing import TYPE_CHECKING, Self

from swerex_c.exceptions import (
    ConnectionLostError,
    DeploymentNotStartedError,
    EnvironmentStartError,
    InvalidInputError,
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
from swerex_c.pool.environment import Environment, Member, PoolStats, State
from swerex_c.pool.start import finish_within, is_worth_retrying, pause_after
from swerex_c.utils.log import get_logger

if TYPE_CHECKING:
    from swerex_c.deployment.config import DeploymentConfig

__all__ = ["Pool"]

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

_IDLE_SECONDS = 60.0
"""Seconds after which an idle environment beyond `warm` is ended."""

_WARM_SECONDS = 30.0
"""Minimum seconds without a start for `warm` after one has failed."""

_STOP_SECONDS = 60.0
"""Seconds for stopping an environment. Then its slot is free again, and parts of the environment may be left."""


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
        starts_at_once: int = 8,
        start_attempts: int = 3,
        backoff: float = 1.0,
        logger: logging.Logger | None = None,
    ):
        """Create the pool without starting any environment.

        Args:
            environments: configuration of each environment, or a function that returns a new deployment.
            size: maximum number of environments, including those that are starting and ending.
            warm: number of ready environments to keep besides those in use, within `size`, from `async with` on.
            max_waiting: maximum number of callers that wait while all environments are in use; more get PoolFullError.
            starts_at_once: maximum number of concurrent starts.
            start_attempts: maximum number of attempts for each start. The deployment limits their time.
            backoff: seconds before the second attempt; each later pause is twice as long, up to 30 s.

        Raises:
            InvalidInputError: if an argument is invalid.
        """
        for least, names in (
            (0, {"warm": warm, "max_waiting": max_waiting, "backoff": backoff}),
            (1, {"size": size, "starts_at_once": starts_at_once, "start_attempts": start_attempts}),
        ):
            for which, value in names.items():
                if not isinstance(value, Real) or not value >= least:
                    raise InvalidInputError(f"{which} must be at least {least}, not {value}")
        if not callable(environments):
            if not hasattr(environments, "get_deployment"):
                kinds = "a configuration such as LocalDeploymentConfig(), or a function that returns a deployment"
                raise InvalidInputError(f"A pool's environments are {kinds}, not {environments!r}")
            environments = environments.model_copy(deep=True).get_deployment
        self.size = size
        self.logger = logger or get_logger("rex-pool")
        self._warm = warm
        self._max_waiting = max_waiting
        self._make = environments
        self._turns = asyncio.Semaphore(starts_at_once)
        self._start_attempts = start_attempts
        self._backoff = backoff
        self._counts = Counter[str]()
        self._last_error = ""
        """Error of the last failed attempt to start an environment."""
        self._members: set[Member] = set()
        self._idle: deque[Member] = deque()
        self._waiting: deque[asyncio.Future[Member]] = deque()
        self._number = 0
        self._pauses = 0
        """Number of failed starts after which the starts for `warm` are still suspended."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    # Methods for callers

    async def __aenter__(self) -> Self:
        """Begin to start the `warm` environments, without waiting for them."""
        self._bind()
        self._check_open()
        self._balance()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    @contextlib.asynccontextmanager
    async def environment(
        self, *, wait_timeout: float | None = None, time_limit: float | None = None
    ) -> AsyncIterator[Environment]:
        """Lend an environment for one `async with` block.

        Args:
            wait_timeout: seconds to wait for an environment; None means no limit.
            time_limit: seconds that the environment may be in use. Then it is ended, and the block is cancelled and
                raises `TimeLimitError`; None means no limit.

        Entering waits in the queue, and raises:
            PoolFullError: if the queue is full.
            PoolTimeoutError: if the wait exceeded `wait_timeout`.
            EnvironmentStartError: if the environment could not be started; its cause is the error of the last attempt.
            PoolClosedError: if the pool is closed or closing.
            PoolError: in another event loop than that of the pool.
            InvalidInputError: if a limit is not a number.

        Leaving ends the environment in the background, and raises:
            TimeLimitError: if the environment reached `time_limit`.
            SandboxLostError: instead of an error of the runtime if the environment is no longer alive.
            PoolClosedError: if the pool was closed during the block.
        """
        for which, seconds in (("wait_timeout", wait_timeout), ("time_limit", time_limit)):
            if seconds is not None and (not isinstance(seconds, Real) or math.isnan(seconds)):
                raise InvalidInputError(f"{which} must be a number of seconds, or None: {seconds!r}")
        member = await self._acquire(wait_timeout)
        environment = Environment(member)
        told = f"{member.name} was in use for {time_limit} seconds (time_limit), and was ended"
        timer: asyncio.TimerHandle | None = None
        try:
            try:
                async with asyncio.timeout(time_limit) as limit:
                    if (end := limit.when()) is not None:  # the environment ends even if the block does not
                        loop = asyncio.get_running_loop()
                        timer = loop.call_at(end, self._take_away, member, TimeLimitError(told))
                    yield environment
            finally:
                environment._returned = True
                if timer is not None:
                    timer.cancel()
                if limit.expired():
                    self._take_away(member, TimeLimitError(told))
        except BaseException as error:
            await self._take_back(member, error)
            raise
        else:
            await self._take_back(member, None)

    def stats(self) -> PoolStats:
        """Return a snapshot of the pool's statistics."""
        states = self._states()
        return PoolStats(
            size=self.size,
            waiting=len(self._waiting),
            starting=states[State.STARTING],
            idle=states[State.IDLE] + states[State.CHECKING],
            in_use=states[State.IN_USE],
            ending=states[State.ENDING],
            counts=self._counts.copy(),
        )

    async def close(self) -> None:
        """End every environment, including those in use, and wait until they have ended.

        Waiting callers get a `PoolClosedError`. May be called again. If the caller is cancelled, the closing continues.
        """
        if self._loop is not None and self._loop.is_closed():
            return  # the environments have ended with it
        self._bind()
        if not self._closed:
            self._shut()
        while self._members:
            await asyncio.wait([member.task for member in self._members])  # cancels none of them if it is cancelled

    # Hand a member to a user and take it back

    def _bind(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise PoolError("The pool belongs to another event loop: make one in each loop")

    def _check_open(self) -> None:
        if self._closed:
            raise PoolClosedError("The pool is closed")

    async def _acquire(self, timeout: float | None) -> Member:
        """Wait in the queue for a member. Raises as `environment` does."""
        self._bind()
        self._check_open()
        in_use = self._states()[State.IN_USE]
        if len(self._waiting) - (self.size - in_use) >= self._max_waiting:
            self._counts["refused"] += 1
            raise PoolFullError(
                f"The pool is full: {in_use} of {self.size} environments are in use, "
                f"and {len(self._waiting)} callers wait for one (max_waiting is {self._max_waiting})"
            )
        future: asyncio.Future[Member] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        self._balance()
        try:
            async with asyncio.timeout(timeout) as limit:
                member = await future
        except asyncio.CancelledError:
            self._leave(future)
            raise
        except TimeoutError:
            if not limit.expired():
                raise
            self._leave(future)
            raise PoolTimeoutError(self._timeout_message(timeout)) from None
        return member

    def _leave(self, future: asyncio.Future[Member]) -> None:
        """Remove a caller from the queue, or take back the member if the caller got one while it was leaving."""
        self._counts["gave_up"] += 1
        with contextlib.suppress(ValueError):
            self._waiting.remove(future)
        if future.done() and not future.cancelled() and future.exception() is None:
            member = future.result()
            if member.state is State.IN_USE:
                self._counts["handed_out"] -= 1
                self._supply(member)
        future.cancel()
        self._balance()

    async def _take_back(self, member: Member, error: BaseException | None) -> None:
        """End a member after its use; raise what `environment` raises in place of the `error` of the user's block."""
        lost = None
        try:
            if member.taken is None:
                lost = await self._why_lost(member, error)
        finally:
            self._counts["replaced"] += lost is not None
            if member.state is State.IN_USE:
                self._end(member)
        if error is not None and not isinstance(error, Exception):
            return  # a cancellation by other code, or the exit of the process
        if member.taken is not None:
            raise member.taken from error
        if lost is not None and not isinstance(error, SandboxLostError):
            raise SandboxLostError(f"{member.name} was lost while it was in use: {lost}") from error

    def _timeout_message(self, seconds: float | None) -> str:
        stats = self.stats()
        text = (
            f"No environment of the pool became free in {seconds:g} seconds: of {stats.size}, "
            f"{stats.in_use} are in use and {stats.starting} are starting; {stats.waiting} other callers wait"
        )
        return f"{text}. The last start that failed: {self._last_error}" if self._last_error else text

    def _next_waiting(self) -> asyncio.Future[Member] | None:
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                return future
        return None

    def _supply(self, member: Member) -> None:
        """Hand a ready member to the first waiting caller, or keep it idle."""
        member.since = time.monotonic()
        if (future := self._next_waiting()) is None:
            member.state = State.IDLE
            self._idle.append(member)
            asyncio.get_running_loop().call_later(_IDLE_SECONDS, self._end_surplus, member.since)
        else:
            member.state = State.IN_USE
            self._counts["handed_out"] += 1
            future.set_result(member)

    def _balance(self) -> None:
        """Start, check or cancel members as the pool's state requires. Call it after every change of state."""
        if self._closed:
            return
        states = self._states()
        checking = states[State.CHECKING]
        while self._idle and len(self._waiting) > checking:
            member = self._idle.popleft()
            member.state = State.CHECKING
            member.wanted.set()
            checking += 1
        coming = states[State.STARTING] + checking
        warm = 0 if self._pauses else self._warm
        missing = len(self._waiting) + warm - coming - len(self._idle)
        for _ in range(min(missing, self.size - len(self._members))):
            self._number += 1
            member = Member(self._number)
            self._members.add(member)
            member.task = asyncio.ensure_future(self._live(member))
            member.task.add_done_callback(functools.partial(self._remove, member))
        if missing < 0:
            not_begun = [it for it in self._members if it.state is State.STARTING and not it.begun]
            for member in sorted(not_begun, key=lambda it: it.number)[missing:]:
                self._end(member)

    def _end_surplus(self, since: float) -> None:
        """End members beyond `warm` that are idle since then, or for longer."""
        while len(self._idle) > self._warm and self._idle[0].since <= since:
            self._end(self._idle.popleft())

    def _take_away(self, member: Member, why: SwerexException) -> None:
        """End a member that is in use, and record `why` for its user."""
        if member.state is State.IN_USE:
            member.taken = why
            self._counts["time_limits"] += isinstance(why, TimeLimitError)
            self._end(member)

    def _end(self, member: Member) -> None:
        member.state, member.is_ended = State.ENDING, True
        member.task.cancel()

    def _remove(self, member: Member, task: asyncio.Task[None]) -> None:
        """Remove a member whose task is done."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self.logger.error("The task of %s failed", member.name, exc_info=error)
        self._members.discard(member)
        if task.cancelling() > member.is_ended:  # by `asyncio.run`, which cancels all tasks at its end
            self._shut()
        self._balance()

    # The life of a member

    async def _live(self, member: Member) -> None:
        """Start a member, serve users with it until it is cancelled, and stop it."""
        try:
            member.deployment = await self._start(member)
            self._counts["started"] += 1
            while True:
                self._supply(member)
                await member.wanted.wait()
                member.wanted.clear()
                if (why := await self._why_dead(member)) is not None:
                    self._counts["replaced"] += 1
                    self.logger.warning("%s is replaced: %s", member.name, why)
                    member.state = State.ENDING
                    self._balance()  # before the stop, which may take long
                    return
        except EnvironmentStartError as error:
            self._counts["starts_failed"] += 1
            self._fail_first_waiting(error)
        except asyncio.CancelledError:
            if member.task.cancelling():
                raise
            self._fail_first_waiting(EnvironmentStartError("The start of the environment was cancelled"))
        finally:
            member.state = State.ENDING
            if member.deployment is not None:
                await self._stop(member, member.deployment)
                member.deployment = None

    async def _start(self, member: Member) -> AbstractDeployment:
        """Start a deployment within the limits on attempts and on concurrent starts."""
        attempt = 0
        while True:
            attempt += 1
            async with self._turns:
                member.begun = True
                try:
                    deployment = self._make()
                    try:
                        await deployment.start()
                    except BaseException:
                        # The deployment should have cleaned up already; a second stop is harmless.
                        if why := await finish_within(deployment.stop(), _STOP_SECONDS):
                            self.logger.warning("Cannot stop the deployment of a failed start: %s", why)
                        raise
                except Exception as error:
                    member.begun = False
                    self._last_error = f"{type(error).__name__}: {error}"
                    self._counts["attempts_failed"] += 1
                    if attempt == self._start_attempts or not is_worth_retrying(error):
                        tried = "1 attempt" if attempt == 1 else f"{attempt} attempts, the last"
                        message = f"Cannot start an environment ({tried}): {self._last_error}"
                        raise EnvironmentStartError(message, attempts=attempt) from error
                else:
                    return deployment
            pause = pause_after(attempt, self._backoff)
            self.logger.info("Start %d failed, next one in %.1f s: %s", attempt, pause, self._last_error)
            await asyncio.sleep(pause)

    def _fail_first_waiting(self, error: EnvironmentStartError) -> None:
        """Raise a failed start at the first waiting caller. Without one, suspend the starts for `warm` for a while."""
        if (future := self._next_waiting()) is not None:
            future.set_exception(error)
            return
        self._pauses += 1
        asyncio.get_running_loop().call_later(max(_WARM_SECONDS, self._backoff), self._end_pause)
        self.logger.warning("The pool could not keep an environment ready: %s", error)

    def _end_pause(self) -> None:
        self._pauses -= 1
        self._balance()

    async def _why_dead(self, member: Member) -> str | None:
        assert member.deployment is not None
        try:
            async with asyncio.timeout(_ALIVE_SECONDS + 1):
                answer = await member.deployment.is_alive(timeout=_ALIVE_SECONDS)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return None if answer else answer.message or "it is not alive"

    async def _why_lost(self, member: Member, error: BaseException | None) -> str | None:
        """Return why a member is lost, given the error that its user's block has raised; None if it is not."""
        if isinstance(error, SandboxLostError):
            return str(error)
        if isinstance(error, _DOUBTFUL) and (why := await self._why_dead(member)) is not None:
            return f"{type(error).__name__}: {error} ({why})"
        return None

    async def _stop(self, member: Member, deployment: AbstractDeployment) -> None:
        try:
            why = await finish_within(deployment.stop(), _STOP_SECONDS)
        finally:
            self._counts["ended"] += 1
        if why:
            self._counts["ends_failed"] += 1
            self.logger.error("%s was not stopped: %s", member.name, why)

    # Closing

    def _shut(self) -> None:
        """Refuse all callers, and begin to end all members."""
        self._closed = True
        while (future := self._next_waiting()) is not None:
            future.set_exception(PoolClosedError("The pool was closed while the caller waited for an environment"))
        for member in self._members:
            if member.state is State.IN_USE:
                self._take_away(member, PoolClosedError(f"The pool was closed while {member.name} was in use"))
            elif member.state is not State.ENDING:
                self._end(member)
        self._idle.clear()

    def _states(self) -> Counter[State]:
        return Counter(member.state for member in self._members)
