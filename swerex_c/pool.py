"""Environments for many users at once, on whatever engine a configuration names.

    from swerex_c.deployment.config import LocalDeploymentConfig
    from swerex_c.pool import Pool

    async with Pool(LocalDeploymentConfig(), size=8) as pool:
        async with pool.environment() as environment:
            await environment.runtime.execute(Command(command="make", shell=True))

Another configuration (`DockerDeploymentConfig`, `RayDeploymentConfig`, ...) has the same code run elsewhere. The pool
schedules nothing: where an environment goes is the engine's business. It keeps at most `size` of them, lets callers
wait in the order in which they came, and ends what it has started.

An environment goes through these states. It counts towards `size` from the first to the last:

    STARTING -> IDLE -> (CHECKING) -> IN_USE -> ENDING        each user gets a fresh one
                 ^                      |
                 +------ RESETTING <----+                     only with `reuse` and `reset`

Nothing that a user has run is ever run again by the pool: an environment that dies in use costs its user an
`EnvironmentLostError`, and the next user gets another environment.

A pool belongs to the event loop in which it is first used. All of its state changes between two awaits of that loop,
so it needs no locks; a use from another loop is refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
import math
import weakref
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Self

from swerex_c._pool_lease import Environment, Lease, Place, State
from swerex_c._pool_start import Starter, finish
from swerex_c._pool_stats import Collector, Counts, PoolStats, Times, register
from swerex_c.deployment.abstract import AbstractDeployment
from swerex_c.exceptions import (
    EnvironmentStartError,
    EnvironmentTimeLimitError,
    InvalidInputError,
    PoolClosedError,
    PoolError,
    PoolFullError,
    SwerexException,
)
from swerex_c.utils.log import get_logger

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from swerex_c.deployment.config import DeploymentConfig

__all__ = ["Environment", "Pool", "PoolStats", "Times"]

_ALIVE_SECONDS = 10.0
"""How long an environment may take to say that it is alive."""

Reset = Callable[["Environment"], Awaitable[object]]
"""Makes an environment as good as new."""


class Pool:
    """At most `size` environments of one kind, for any number of users. See this module's text."""

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
        """Nothing is started yet.

        Args:
            environments: the configuration of each environment, or a function that makes a deployment from scratch.
            size: how many environments there may be at once, those that are starting and ending among them.
            warm: how many are kept ready beyond what users have, as far as `size` allows, from `async with` on.
            max_waiting: how many callers may wait when every environment is in use; more raise `PoolFullError`.
            wait_timeout: seconds that a caller waits for an environment; None is for ever.
            time_limit: seconds that an environment may be in use, after which it is ended and its user's block is
                cancelled and raises `EnvironmentTimeLimitError`; None is for ever.
            starts_at_once: how many may be starting at the same moment.
            start_attempts: how often a start is tried.
            start_timeout: seconds for each attempt, if the deployment's own limit is not enough.
            backoff: seconds before the second attempt; each further pause is twice as long, up to 30 s.
            idle_timeout: seconds after which environments are ended that nobody wants and that are more than `warm`.
            stop_timeout: seconds that stopping one may take. Then its place is free for another, and
                `ends_failed` is counted: something of it may be left.
            reuse: how many further users may get an environment after its first; None is any number. Only one whose
                user left without an exception, that is alive, and that `reset` has reset.
            reset: makes an environment that was used as good as new. Needed for `reuse`.
            reset_timeout: seconds for that.
            name: what messages, logs and metrics call the pool.

        Raises:
            InvalidInputError: if an argument makes no sense.
        """
        for least, names in (
            (0, {"warm": warm, "max_waiting": max_waiting, "backoff": backoff, "idle_timeout": idle_timeout}),
            (1, {"size": size, "starts_at_once": starts_at_once, "start_attempts": start_attempts}),
        ):
            for which, value in names.items():
                if not value >= least:
                    raise InvalidInputError(f"{which} must be at least {least}, and is {value}")
        for which, seconds in {"stop_timeout": stop_timeout, "reset_timeout": reset_timeout}.items():
            if not 0 < seconds < math.inf:
                raise InvalidInputError(f"{which} must be a number of seconds above 0, and is {seconds}")
        if reuse is not None and reuse < 0:
            raise InvalidInputError(f"reuse must be at least 0, and is {reuse}")
        if (reuse is None or reuse > 0) != (reset is not None):
            raise InvalidInputError("reuse needs reset, which makes a used environment as good as new; and the reverse")
        if not callable(environments):
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
        self._places: set[Place] = set()
        self._states: Counter[State] = Counter()
        self._idle: deque[Place] = deque()
        self._waiting: deque[asyncio.Future[Place]] = deque()
        self._number = 0
        self._warm_after = -math.inf
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing: asyncio.Task[None] | None = None
        self._closed = False
        self._unregister: Callable[[], None] | None = None

    # What callers do

    async def __aenter__(self) -> Self:
        """Begin to start the `warm` environments, without waiting for them."""
        self._bind()
        self._pump()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def environment(self, *, wait_timeout: float | None = None, time_limit: float | None = None) -> Lease:
        """An environment for the length of an `async with` block. Seconds that are None are those of the pool.

        Entering waits for its turn, and raises:
            PoolFullError: if too many wait already.
            PoolTimeoutError: if it took longer than `wait_timeout`.
            EnvironmentStartError: if it could not be started; what went wrong last is its cause.
            PoolClosedError: if the pool is closed, or is being closed.
            PoolError: in another event loop than that of the pool.

        Leaving ends the environment in the background, or resets it, and raises:
            EnvironmentTimeLimitError: if the time limit was over before, or that of the environment itself.
            EnvironmentMemoryLimitError: if the environment was ended at its limit of memory.
            EnvironmentLostError: instead of an error of the runtime if the environment is no longer alive.
            PoolClosedError: if the pool was closed meanwhile.
        """
        return Lease(
            self,
            self._wait_timeout if wait_timeout is None else wait_timeout,
            self._time_limit if time_limit is None else time_limit,
        )

    def stats(self) -> PoolStats:
        """The numbers of this moment; they do not change afterwards."""
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
        """Have Prometheus's registry (None: the default one) show the pool's numbers, until it is closed.

        Raises:
            NotAvailableError: if prometheus-client is not installed.
        """
        if self._unregister is None:
            me = weakref.ref(self)
            collector = Collector(self.name, lambda: None if (pool := me()) is None else pool.stats())
            self._unregister = register(collector, registry)

    async def close(self, timeout: float = 120.0) -> None:
        """End every environment, those in use too. Callers that wait get a `PoolClosedError`. May be called again.

        It returns after `timeout` seconds at the latest. Cancelled, the closing goes on all the same. When the pool's
        event loop is closed already, this works in another.
        """
        if self._closed:
            return
        self._bind(closing=True)
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close(timeout))
        await asyncio.shield(self._closing)

    # How an environment gets to a user and back; each of these runs without an await in between

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

    def _enqueue(self) -> asyncio.Future[Place]:
        """Stand in line."""
        self._bind()
        in_use = self._states[State.IN_USE]
        beyond = len(self._waiting) - (self.size - in_use)
        if beyond >= self._max_waiting:
            self._counts.refused += 1
            raise PoolFullError(
                f"The {self.name} is full: {in_use} of {self.size} environments are in use, "
                f"and {len(self._waiting)} callers wait for one (max_waiting is {self._max_waiting})"
            )
        future: asyncio.Future[Place] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        self._pump()
        return future

    def _leave(self, future: asyncio.Future[Place]) -> None:
        """Give back a place in the line, or what was handed out to one who was leaving."""
        self._counts.gave_up += 1
        with contextlib.suppress(ValueError):
            self._waiting.remove(future)
        if future.done() and not future.cancelled() and future.exception() is None:
            place = future.result()
            if place.state is State.IN_USE:
                place.uses -= 1
                self._counts.handed_out -= 1
                self._counts.reused -= place.uses > 0
                self._supply(place)
        future.cancel()
        self._pump()

    def _next_waiting(self) -> asyncio.Future[Place] | None:
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                return future
        return None

    def _supply(self, place: Place) -> None:
        """An environment is ready: for the first in line, or for whoever comes."""
        place.task = None
        if self._closing is not None:
            self._end(place)
        elif (future := self._next_waiting()) is None:
            self._move(place, State.IDLE)
            place.since = self._time()
            self._idle.append(place)
            self._call_later(self._idle_timeout, Pool._end_surplus)
        else:
            self._move(place, State.IN_USE)
            place.uses += 1
            self._counts.handed_out += 1
            self._counts.reused += place.uses > 1
            future.set_result(place)

    def _pump(self) -> None:
        """Do what the state of things asks for. Called after every change of it."""
        if self._closing is not None or self._loop is None or self._loop.is_closed():
            return
        coming = self._states[State.STARTING] + self._states[State.CHECKING]
        while self._idle and len(self._waiting) > coming:
            place = self._idle.popleft()
            self._move(place, State.CHECKING)
            self._do(place, self._check(place))
            coming += 1
        warm = self._warm if self._time() >= self._warm_after else 0
        missing = len(self._waiting) + warm - coming - len(self._idle)
        for _ in range(min(missing, self.size - len(self._places))):
            self._number += 1
            place = Place(self._number)
            self._places.add(place)
            self._states[place.state] += 1
            self._do(place, self._start(place))
        if missing < 0 and self._states[State.STARTING]:
            not_begun = [p for p in self._places if p.state is State.STARTING and not p.begun]
            for place in sorted(not_begun, key=lambda p: p.number)[missing:]:
                self._move(place, State.ENDING)
                assert place.task is not None
                place.task.cancel()

    def _end_surplus(self) -> None:
        """End what has been idle for too long."""
        while len(self._idle) > self._warm and self._time() - self._idle[0].since >= self._idle_timeout:
            self._end(self._idle.popleft())

    def _release(self, place: Place, *, clean: bool, lost: bool) -> None:
        """A user is done with it. Clean: the block was left without an exception."""
        if place.state is not State.IN_USE:
            return
        self._counts.replaced += lost
        if clean and self._closing is None and (self._reuse is None or place.uses <= self._reuse):
            self._move(place, State.RESETTING)
            self._do(place, self._make_new(place))
        else:
            self._end(place)

    def _take_away(self, place: Place, why: type[SwerexException]) -> None:
        """End an environment that is in use."""
        if place.state is State.IN_USE:
            place.taken = why
            self._counts.time_limits += why is EnvironmentTimeLimitError
            self._end(place)

    def _end(self, place: Place) -> None:
        self._move(place, State.ENDING)
        self._do(place, self._stop(place))

    def _move(self, place: Place, state: State) -> None:
        self._states[place.state] -= 1
        self._states[state] += 1
        place.state = state

    def _gone(self, place: Place) -> None:
        if place in self._places:
            self._places.remove(place)
            self._states[place.state] -= 1
        self._pump()

    # What is done with an environment, each in a task of its own

    def _do(self, place: Place, work: Coroutine[Any, Any, None]) -> None:
        task = place.task = asyncio.ensure_future(work)
        task.add_done_callback(lambda done: self._done(place, done))

    def _done(self, place: Place, task: asyncio.Task[None]) -> None:
        """A task is over. None of them should fail; if one did, what it had in hand is ended."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self.logger.error("Work on %s of the %s failed", place.number, self.name, exc_info=error)
        if place.task is not task or place not in self._places:
            return
        if place.deployment is None or place.state is State.ENDING:
            if place.state is State.STARTING and self._closing is None:
                self._fail_first(EnvironmentStartError("The start of the environment was cancelled"))
            self._gone(place)
        else:
            self._end(place)

    async def _start(self, place: Place) -> None:
        def begun(really: bool) -> None:
            place.begun = really

        try:
            place.deployment = await self._starter.start(begun)
        except EnvironmentStartError as error:
            self._counts.starts_failed += 1
            self._move(place, State.ENDING)
            self._fail_first(error)
            return  # and the place is gone
        self._counts.started += 1
        if place.state is State.STARTING:
            self._supply(place)
            self._pump()
        else:
            self._end(place)

    def _fail_first(self, error: EnvironmentStartError) -> None:
        """A start was given up: that is the answer to the first in line. With nobody there, warming up has a rest."""
        if (future := self._next_waiting()) is not None:
            future.set_exception(error)
            return
        rest = max(30.0, self._pause)
        self._warm_after = self._time() + rest
        self._call_later(rest, Pool._pump)
        self.logger.warning("The %s could not keep an environment ready: %s", self.name, error)

    async def _check(self, place: Place) -> None:
        """Hand an idle one out if it is alive still."""
        why = await self._why_dead(place)
        if why is None:
            self._supply(place)
            self._pump()
        else:
            self._replace(place, why)

    async def _make_new(self, place: Place) -> None:
        """Reset one that was used."""
        why = await self._why_dead(place)
        if why is None:
            environment = Environment(place)
            assert self._reset is not None
            try:
                async with asyncio.timeout(self._reset_timeout):
                    await self._reset(environment)
            except Exception as error:
                why = f"its reset failed: {type(error).__name__}: {error}"
            finally:
                environment._returned = True
        if why is None:
            self._supply(place)
            self._pump()
        else:
            self._replace(place, why)

    def _replace(self, place: Place, why: str) -> None:
        self._counts.replaced += 1
        self.logger.warning("%s of the %s is replaced: %s", Environment(place).name, self.name, why)
        self._end(place)

    async def _why_dead(self, place: Place) -> str | None:
        assert place.deployment is not None
        try:
            async with asyncio.timeout(_ALIVE_SECONDS + 1):
                answer = await place.deployment.is_alive(timeout=_ALIVE_SECONDS)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return None if answer else answer.message or "it is not alive"

    async def _stop(self, place: Place) -> None:
        assert place.deployment is not None
        try:
            why = await finish(place.deployment.stop, self._stop_timeout)
        finally:
            self._counts.ended += 1
        if why:
            self._counts.ends_failed += 1
            self.logger.error("%s of the %s was not stopped: %s", Environment(place).name, self.name, why)
        place.deployment = None

    async def _close(self, timeout: float) -> None:
        deadline = self._time() + timeout
        while (future := self._next_waiting()) is not None:
            future.set_exception(PoolClosedError("The pool was closed while the caller waited"))
        for place in list(self._places):
            if place.task is not None and place.task.get_loop() is not self._loop:
                place.task = None  # its loop is closed
            if place.state is State.IN_USE:
                self._take_away(place, PoolClosedError)
            elif place.task is None and place.deployment is None:
                self._gone(place)
            elif place.task is None:
                self._end(place)
            elif place.state is not State.ENDING:
                place.task.cancel()
        self._idle.clear()
        while (tasks := [p.task for p in self._places if p.task]) and (left := deadline - self._time()) > 0:
            await asyncio.wait(tasks, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.sleep(0)  # so that what they have led to is there
        if tasks:
            self.logger.error("The %s was closed with %d environments that do not end", self.name, len(tasks))
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
        """Call a method later, unless the pool is gone by then: a timer must not keep it."""
        assert self._loop is not None
        me = weakref.ref(self)

        def ring() -> None:
            if (pool := me()) is not None and pool._closing is None:
                what(pool)

        if seconds < math.inf:
            self._loop.call_later(seconds, ring)
