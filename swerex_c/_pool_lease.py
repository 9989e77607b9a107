"""An environment of a pool in the hands of a user, and the `async with` that puts it there and takes it back."""

from __future__ import annotations

import asyncio
from enum import Enum
from types import TracebackType
from typing import TYPE_CHECKING

from swerex_c.deployment.abstract import AbstractDeployment
from swerex_c.exceptions import (
    ConnectionLostError,
    DeploymentNotStartedError,
    EnvironmentLostError,
    EnvironmentMemoryLimitError,
    EnvironmentTimeLimitError,
    InvalidInputError,
    MemoryLimitError,
    PlaceLostError,
    PoolTimeoutError,
    ProtocolError,
    ResultLostError,
    RuntimeClosedError,
    ServerRestartedError,
    SessionDiedError,
    SwerexException,
    TimeLimitError,
)

if TYPE_CHECKING:
    from swerex_c.pool import Pool
    from swerex_c.runtime._base import AbstractRuntime

__all__ = ["Environment", "Lease", "Place", "State"]

_DOUBTFUL = (
    ConnectionLostError,
    DeploymentNotStartedError,
    ProtocolError,
    ResultLostError,
    RuntimeClosedError,
    ServerRestartedError,
    SessionDiedError,
)
"""Errors after which an environment is asked whether it is alive; a `PlaceLostError` has said that it is not."""

_OVER = EnvironmentTimeLimitError


class State(Enum):
    STARTING = "starting"
    CHECKING = "checking"
    IDLE = "idle"
    IN_USE = "in use"
    RESETTING = "resetting"
    ENDING = "ending"


class Place:
    """One of the `size` places of a pool and what is in it."""

    def __init__(self, number: int):
        self.number = number
        self.state = State.STARTING
        self.begun = False
        """Whether an attempt to start is under way, as opposed to waiting for a turn or for the next attempt."""

        self.deployment: AbstractDeployment | None = None
        self.task: asyncio.Task[None] | None = None
        """What is being done with it, unless it is idle or in use."""

        self.uses = 0
        self.since = 0.0
        self.taken: type[SwerexException] | None = None
        """Why the pool has ended it while it was in use."""


class Environment:
    """An environment in the hands of a user, from `async with pool.environment()` to the end of that block."""

    def __init__(self, place: Place):
        self._place = place
        self._returned = False

    @property
    def name(self) -> str:
        """Its name within the pool, which no later one has."""
        return f"environment-{self._place.number}"

    @property
    def deployment(self) -> AbstractDeployment:
        """The deployment. It is the pool's to stop.

        Raises:
            DeploymentNotStartedError: after the block: the environment may be somebody else's by then.
        """
        if self._returned or self._place.deployment is None:
            raise DeploymentNotStartedError("The environment was given back to its pool")
        return self._place.deployment

    @property
    def runtime(self) -> AbstractRuntime:
        """The deployment's runtime."""
        return self.deployment.runtime

    @property
    def used_before(self) -> bool:
        """Whether another user had it, and it was reset since."""
        return self._place.uses > 1


class Lease:
    """What `Pool.environment` returns: for one `async with`, in one task."""

    def __init__(self, pool: Pool, wait_timeout: float | None, time_limit: float | None):
        self._pool = pool
        self._wait_timeout = wait_timeout
        self._time_limit = time_limit
        self._environment: Environment | None = None
        self._entered = False
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Environment:
        if self._entered:
            raise InvalidInputError("Each pool.environment() is for one `async with`")
        self._entered = True
        place = await self._wait()
        self._place = place
        self._begin = self._pool._time()
        self._environment = Environment(place)
        self._limit = asyncio.timeout(self._time_limit)
        await self._limit.__aenter__()
        if (end := self._limit.when()) is not None:
            self._timer = asyncio.get_running_loop().call_at(end, self._pool._take_away, place, _OVER)
        return self._environment

    async def _wait(self) -> Place:
        pool = self._pool
        future = pool._enqueue()
        begin = pool._time()
        try:
            async with asyncio.timeout(self._wait_timeout) as limit:
                place = await future
        except asyncio.CancelledError:
            pool._leave(future)
            raise
        except TimeoutError:
            if not limit.expired():
                raise
            pool._leave(future)
            raise PoolTimeoutError(self._told()) from None
        pool._counts.waiting_seconds.add(pool._time() - begin)
        return place

    def _told(self) -> str:
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
        place, pool, environment = self._place, self._pool, self._environment
        assert environment is not None
        if self._timer is not None:
            self._timer.cancel()
        ours = False
        lost: str | None = None
        try:
            try:
                await self._limit.__aexit__(kind, error, traceback)
            except TimeoutError:
                ours = True  # the cancellation was the time limit's
            if self._limit.expired():
                pool._take_away(place, _OVER)
            elif place.taken is None:
                lost = await self._why_lost(error)
        finally:
            environment._returned = True
            pool._counts.use_seconds.add(pool._time() - self._begin)
            pool._release(place, clean=error is None, lost=lost is not None)
        if error is not None and not isinstance(error, Exception) and not ours:
            return  # a cancellation by somebody else, or the end of the process, goes on
        if place.taken is _OVER:
            raise EnvironmentTimeLimitError(
                f"{environment.name} was in use for {self._time_limit:g} seconds (time_limit), and was ended"
            ) from error
        if place.taken is not None:
            raise place.taken(f"The {pool.name} was closed while {environment.name} was in use") from error
        if lost is not None:
            kind = _kind(error, place)
            raise kind(f"{environment.name} was lost while it was in use: {lost}") from error

    async def _why_lost(self, error: BaseException | None) -> str | None:
        if isinstance(error, PlaceLostError):
            return str(error)
        if isinstance(error, _DOUBTFUL) and (why := await self._pool._why_dead(self._place)) is not None:
            return f"{type(error).__name__}: {error} ({why})"
        return None


def _kind(error: BaseException | None, place: Place) -> type[EnvironmentLostError]:
    """What the loss of an environment is to its user: that it ran into a limit of its own would happen again."""
    if isinstance(error, MemoryLimitError):
        return EnvironmentMemoryLimitError
    if isinstance(error, TimeLimitError) and place.uses == 1:  # else some of the time was other users'
        return EnvironmentTimeLimitError
    return EnvironmentLostError
