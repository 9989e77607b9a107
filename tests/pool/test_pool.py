"""Pools of environments: places in line, starts, deaths, limits of time, closing, and what they count."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from swerex_c.deployment.config import LocalDeploymentConfig
from swerex_c.deployment.local import LocalDeployment
from swerex_c.exceptions import (
    CommandTimeoutError,
    ConnectionLostError,
    DeploymentNotStartedError,
    DeploymentStartupError,
    EnvironmentStartError,
    InvalidInputError,
    MemoryLimitError,
    NonZeroExitCodeError,
    NotAvailableError,
    NotSupportedError,
    PodStartupError,
    PodStartupTimeoutError,
    PoolClosedError,
    PoolError,
    PoolFullError,
    PoolTimeoutError,
    SandboxLostError,
    SwerexException,
    TimeLimitError,
)
from swerex_c.pool import Environment, Pool
from swerex_c.runtime.abstract import Command, CreateBashSessionRequest, IsAliveResponse
from tests.support.original import run_python
from tests.support.processes import command_line
from tests.support.wait import DEADLINE, cancel, settle, until_async


class Site:
    """Where the deployments of one test are: what they did, and what they are to do."""

    def __init__(self) -> None:
        self.made = 0
        self.starting: list[Tested] = []
        self.alive: list[Tested] = []
        self.errors: list[BaseException] = []
        """What the next starts raise."""
        self.before_start: Callable[[Tested], Awaitable[None]] | None = None
        self.before_stop: Callable[[Tested], Awaitable[None]] | None = None
        self.go_on = asyncio.Event()

    async def wait(self, _: Tested) -> None:
        """What a start or a stop does that lasts until the test sets `go_on`."""
        await self.go_on.wait()

    def make(self) -> Tested:
        self.made += 1
        return Tested(self)


class Tested(LocalDeployment):
    """A local deployment that keeps book, fails when it is told to, and can die."""

    __test__ = False

    def __init__(self, site: Site):
        super().__init__()
        self.site = site
        self.number = site.made
        self.dead = False
        self.within_start = False

    async def start(self, *args: Any, **kwargs: Any) -> None:
        self.site.starting.append(self)
        try:
            if self.site.errors:
                raise self.site.errors.pop(0)
            if self.site.before_start is not None:
                await self.site.before_start(self)
            self.within_start = True  # which stops what was there before
            await super().start()
        finally:
            self.within_start = False
            self.site.starting.remove(self)
        self.site.alive.append(self)

    async def stop(self, *args: Any, **kwargs: Any) -> None:
        if self.site.before_stop is not None and not self.within_start:
            await self.site.before_stop(self)
        await super().stop()
        if self in self.site.alive:
            self.site.alive.remove(self)

    async def is_alive(self, *, timeout: float | None = None) -> IsAliveResponse:
        if self.dead:
            return IsAliveResponse(is_alive=False, message="killed by the test")
        return await super().is_alive(timeout=timeout)

    async def die(self) -> None:
        """As if what it runs on had gone."""
        self.dead = True
        await self.runtime.close()


@pytest.fixture
def site() -> Site:
    return Site()


@asynccontextmanager
async def pooled(site: Site, size: int, **more: Any) -> AsyncIterator[Pool]:
    more.setdefault("backoff", 0.0)
    async with Pool(site.make, size, **more) as pool:
        yield pool
    assert site.alive == [] and site.starting == []
    stats = pool.stats()
    assert (stats.waiting, stats.starting, stats.idle, stats.in_use, stats.ending) == (0, 0, 0, 0, 0)


async def fails(pool: Pool, error: type[BaseException], match: str, **more: Any) -> BaseException:
    """The error of one who gets no environment."""
    with pytest.raises(error, match=match) as caught:
        async with asyncio.timeout(DEADLINE), pool.environment(**more):
            pytest.fail("there is none")
    return caught.value


async def use(pool: Pool) -> None:
    """Take an environment, and give it back at once."""
    async with pool.environment():
        pass


class User:
    """A task that takes an environment and holds it until it is told to leave."""

    def __init__(self, pool: Pool, **more: Any):
        self.has: Environment | None = None
        self.leave = asyncio.Event()
        self.error: BaseException | None = None
        self.task = asyncio.ensure_future(self._run(pool, more))

    async def _run(self, pool: Pool, more: dict[str, Any]) -> None:
        async with pool.environment(**more) as environment:
            self.has = environment
            await self.leave.wait()

    async def got(self) -> Environment:
        await until_async(lambda: self.has is not None or self.task.done())
        if self.task.done():
            await self.task
        assert self.has is not None
        return self.has

    async def go(self) -> None:
        self.leave.set()
        await self.task

    async def cancel(self) -> None:
        await cancel(self.task)


# Handing out


async def test_an_environment_is_an_ordinary_runtime_and_ends_with_its_block() -> None:
    async with Pool(LocalDeploymentConfig(), size=2) as pool:
        async with pool.environment() as environment:
            runtime = environment.runtime
            await runtime.create_session(CreateBashSessionRequest(startup_timeout=DEADLINE))
            assert (await runtime.run("echo $((6*7))")).output == "42\n"
            assert await environment.deployment.is_alive()
        with pytest.raises(DeploymentNotStartedError, match="given back"):
            _ = environment.runtime
        await until_async(lambda: pool.stats().ending == 0)
        with pytest.raises(SwerexException, match="closed"):
            await runtime.execute(Command(command="true", shell=True))


# Starting


async def test_a_start_is_tried_again_and_what_failed_is_stopped(site: Site) -> None:
    stopped = []

    async def note(deployment: Tested) -> None:
        stopped.append(deployment.number)

    site.errors = [DeploymentStartupError("not yet"), PodStartupTimeoutError("not in time", cause="image")]
    site.before_stop = note
    async with pooled(site, 1) as pool:
        async with pool.environment() as environment:
            assert await environment.deployment.is_alive()
            assert stopped == [1, 2]
        counts = pool.stats().counts
        assert (counts["attempts_failed"], counts["starts_failed"], counts["started"]) == (2, 0, 1)


async def test_a_start_that_fails_for_good_tells_the_last_cause(site: Site) -> None:
    site.errors = [DeploymentStartupError("no disk, 1"), DeploymentStartupError("no disk, 2")]
    async with pooled(site, 2, start_attempts=2) as pool:
        error = await fails(pool, EnvironmentStartError, r"2 attempts, the last\): .*no disk, 2")
        assert isinstance(error.__cause__, DeploymentStartupError) and error.attempts == 2  # type: ignore[attr-defined]
        before = pool.stats()
        await use(pool)
        assert pool.stats().counts["starts_failed"] == 1
        assert before.counts["handed_out"] == 0  # a snapshot stays as it is


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (NotAvailableError("no such thing"), "1 attempt.*no such thing"),
        (TypeError("a bug"), "1 attempt.*a bug"),
        (DeploymentStartupError("no bash"), "1 attempt.*no bash"),
        (PodStartupError("no such image", cause="image"), "1 attempt.*no such image"),
        (asyncio.CancelledError(), "was cancelled"),
    ],
)
async def test_what_another_attempt_would_not_mend_is_tried_once(site: Site, error: BaseException, says: str) -> None:
    error.__cause__ = NotSupportedError("no bash") if type(error) is DeploymentStartupError else None
    site.errors = [error]
    async with pooled(site, 1, start_attempts=5) as pool:
        caught = await fails(pool, EnvironmentStartError, says)
    assert site.made == 1 and caught.__cause__ in (error, None)


async def test_pauses_between_attempts_grow(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def noted(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0)

    monkeypatch.setattr("swerex_c.pool.pool.asyncio.sleep", noted)
    site.errors = [DeploymentStartupError("no") for _ in range(8)]
    async with pooled(site, 1, start_attempts=8, backoff=1.0) as pool:
        await fails(pool, EnvironmentStartError, "8 attempts")
    longer = [pause for pause in pauses if pause > 0.5]
    assert len(longer) == 7
    for pause, middle in zip(longer, [1, 2, 4, 8, 16, 30, 30], strict=True):
        assert 0.75 * middle <= pause <= 1.25 * middle


async def test_warm_ones_are_there_before_anybody_asks_and_are_kept_up(site: Site) -> None:
    async with pooled(site, 4, warm=2) as pool:
        await until_async(lambda: pool.stats().idle == 2)
        site.before_start = site.wait
        first, second = User(pool), User(pool)
        await first.got(), await second.got()
        site.go_on.set()
        await until_async(lambda: pool.stats().idle == 2)
        assert site.made == 4 and pool.stats().in_use == 2
        await first.go()
        await second.go()
        await until_async(lambda: pool.stats().ending == 0)
        assert pool.stats().idle == 2 and site.made == 4


async def test_warming_up_that_fails_rests_until_somebody_asks(site: Site) -> None:
    site.errors = [DeploymentStartupError("no"), DeploymentStartupError("no")]
    async with pooled(site, 4, warm=2, start_attempts=1) as pool:
        await until_async(lambda: site.made == 2 and pool.stats().starting == 0)
        await settle()
        assert site.made == 2
        await use(pool)


@pytest.fixture
async def clock_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop tells when; its clock may differ from others, as that of uvloop does by up to a millisecond."""
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: 2 * time.monotonic())


@pytest.mark.usefixtures("clock_of_its_own")
async def test_warming_up_that_failed_is_tried_again(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swerex_c.pool.pool._WARM_SECONDS", 0.05)
    site.errors = [DeploymentStartupError("no"), DeploymentStartupError("no")]
    async with pooled(site, 4, warm=2, start_attempts=1) as pool:
        await until_async(lambda: pool.stats().idle == 2)
        assert pool.stats().counts["starts_failed"] == 2


@pytest.mark.usefixtures("clock_of_its_own")
async def test_those_that_nobody_wants_any_more_end(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swerex_c.pool.pool._IDLE_SECONDS", 0.05)
    site.before_start = site.wait
    async with pooled(site, 4, starts_at_once=1) as pool:
        users = [User(pool) for _ in range(3)]
        await until_async(lambda: len(site.starting) == 1)
        for user in users:
            await user.cancel()
        await until_async(lambda: pool.stats().starting == 1)  # those that had not begun are given up at once
        site.go_on.set()
        await until_async(lambda: pool.stats().counts["started"] == 1)
        await until_async(lambda: pool.stats().idle == pool.stats().ending == 0)
        assert site.alive == [] and site.made == 1


# Waiting


@pytest.mark.parametrize("room", [0, 1])
async def test_a_full_queue_refuses_at_once(site: Site, room: int) -> None:
    async with pooled(site, 1, max_waiting=room) as pool:
        holder = User(pool)
        await holder.got()
        waiting = [User(pool) for _ in range(room)]
        await settle()
        await fails(pool, PoolFullError, f"1 of 1 environments are in use, and {room} callers wait")
        await holder.go()
        for user in [*waiting, User(pool)]:
            await user.got()
            await user.go()
        assert pool.stats().counts["refused"] == 1


async def test_waiting_has_a_limit_that_tells_what_is_going_on(site: Site) -> None:
    async with pooled(site, 2, backoff=0.01) as pool:
        holder = User(pool)
        await holder.got()
        site.errors, site.before_start = [DeploymentStartupError("quota")], site.wait
        says = "in 0.2 seconds: of 2, 1 are in use and 1 are starting.*quota"
        await fails(pool, PoolTimeoutError, says, wait_timeout=0.2)
        assert (pool.stats().waiting, pool.stats().counts["gave_up"]) == (0, 1)
        await holder.go()


# Dying


async def test_one_that_dies_in_use_is_a_typed_error_and_is_replaced(site: Site) -> None:
    async with pooled(site, 1) as pool:
        with pytest.raises(SandboxLostError, match="environment-1 was lost.*killed by the test") as caught:
            async with pool.environment() as environment:
                await environment.deployment.die()  # type: ignore[attr-defined]
                await environment.runtime.execute(Command(command="true", shell=True))
        assert caught.value.__cause__ is not None
        async with pool.environment() as environment:
            assert (await environment.runtime.execute(Command(command="echo a", shell=True))).stdout == "a\n"
        assert pool.stats().counts["replaced"] == 1


@pytest.mark.parametrize(
    ("error", "replaced"),
    [
        (SandboxLostError("ended"), 1),
        (TimeLimitError("ended"), 1),
        (MemoryLimitError("ended"), 1),
        (ValueError("mine"), 0),
        (CommandTimeoutError("late"), 0),
        (NonZeroExitCodeError("1"), 0),
        (ConnectionLostError("elsewhere"), 0),  # the environment is alive
    ],
)
async def test_errors_go_through_and_a_loss_is_believed(site: Site, error: Exception, replaced: int) -> None:
    async with pooled(site, 1) as pool:
        with pytest.raises(type(error)) as caught:
            async with pool.environment():
                raise error
        assert caught.value is error and pool.stats().counts["replaced"] == replaced


async def test_a_stop_that_never_returns_is_given_up_and_counted(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swerex_c.pool.pool._STOP_SECONDS", 0.05)

    async def hangs(deployment: Tested) -> None:
        if deployment.number == 1:
            with suppress(asyncio.CancelledError):
                await site.wait(deployment)
            await site.wait(deployment)

    site.before_stop = hangs
    async with Pool(site.make, 1) as pool:
        await use(pool)
        await use(pool)
    counts = pool.stats().counts
    assert (counts["ended"], counts["ends_failed"]) == (2, 1)
    site.go_on.set()
    await until_async(lambda: not site.alive)


# Limits of time


async def test_the_time_limit_ends_the_environment_and_its_users_block(site: Site, tmp_path: Path) -> None:
    async with pooled(site, 1) as pool:
        with pytest.raises(TimeLimitError, match=r"environment-1 was in use for 1 seconds"):
            async with pool.environment(time_limit=1) as environment:
                await environment.runtime.create_session(CreateBashSessionRequest(startup_timeout=DEADLINE))
                await environment.runtime.run(f"echo $$ > {tmp_path}/pid; sleep 1000")
        pid = (tmp_path / "pid").read_text().strip()
        await until_async(lambda: not command_line(pid))
        task = asyncio.current_task()
        assert task is not None and task.cancelling() == 0
        await use(pool)
        assert pool.stats().counts["time_limits"] == 1


async def test_the_time_limit_is_told_whatever_the_user_does(site: Site) -> None:
    async with pooled(site, 3) as pool:
        with pytest.raises(TimeLimitError):
            async with pool.environment(time_limit=0.05):
                with suppress(asyncio.CancelledError):
                    await asyncio.Event().wait()
        with pytest.raises(TimeLimitError) as caught:
            async with pool.environment(time_limit=0.05):
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    raise ValueError("instead") from None
        assert isinstance(caught.value.__cause__, ValueError)
        holder = User(pool, time_limit=100)
        await holder.got()
        await holder.cancel()  # somebody else's is not the time limit


# Arguments


@pytest.mark.parametrize(
    "wrong",
    [
        {"size": 0},
        {"warm": -1},
        {"start_attempts": 0},
        {"max_waiting": -1},
        {"backoff": float("nan")},
        {"size": None},
    ],
)
def test_arguments_that_make_no_sense(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError):
        Pool(LocalDeploymentConfig(), **{"size": 1, **wrong})


@pytest.mark.parametrize("limit", ["wait_timeout", "time_limit"])
@pytest.mark.parametrize("value", ["x", float("nan")])
async def test_a_limit_that_is_no_number_takes_nothing(site: Site, limit: str, value: Any) -> None:
    async with pooled(site, 1) as pool:
        await fails(pool, InvalidInputError, limit, **{limit: value})
        assert (site.made, pool.stats().waiting) == (0, 0)


async def test_limits_are_numbers_of_any_kind(site: Site) -> None:
    """Such as numpy's, which are no subclasses of int."""
    async with pooled(site, 1, backoff=Fraction(1)) as pool:
        holder = User(pool, wait_timeout=Fraction(60), time_limit=Fraction(60))
        await holder.got()
        await holder.go()


# Closing


async def test_closing_ends_everything_and_tells_everybody(site: Site) -> None:
    pool = Pool(site.make, 3)
    holder, other = User(pool), User(pool)
    await holder.got(), await other.got()
    site.before_start = site.wait
    starting, waiting = User(pool), User(pool)
    await until_async(lambda: len(site.starting) == 1)
    await asyncio.gather(pool.close(), pool.close())
    assert site.alive == site.starting == []
    for user in (starting, waiting):
        with pytest.raises(PoolClosedError, match="while the caller waited"):
            await user.task
    with pytest.raises(PoolClosedError, match="environment-1 was in use"):
        await holder.go()
    await other.cancel()
    for _ in range(2):
        await pool.close()
    await fails(pool, PoolClosedError, "is closed")


async def test_closing_goes_on_when_it_is_cancelled(site: Site) -> None:
    site.before_stop = site.wait
    async with Pool(site.make, 2) as pool:
        await use(pool)
        closing = asyncio.ensure_future(pool.close())
        await settle()
        closing.cancel()
        with suppress(asyncio.CancelledError):
            await closing
        site.go_on.set()
    assert site.alive == []


def test_a_pool_belongs_to_a_loop_and_ends_with_it(site: Site) -> None:
    pool = Pool(site.make, 2, warm=1)

    async def first() -> None:
        await use(pool)
        await until_async(lambda: pool.stats().idle == 1 and pool.stats().ending == 0)

        def elsewhere() -> None:
            asyncio.run(fails(pool, PoolError, "belongs to another event loop"))
            with pytest.raises(PoolError, match="belongs to another event loop"):
                asyncio.run(pool.close())

        await asyncio.to_thread(elsewhere)

    asyncio.run(first())
    assert site.alive == [] and site.made == 2
    asyncio.run(pool.close())


def test_a_pool_starts_nothing_more_when_its_loop_ends(site: Site) -> None:
    site.before_start = site.wait
    pool = Pool(site.make, 2, warm=1)

    async def use() -> None:
        await pool.__aenter__()
        await until_async(lambda: site.starting)

    asyncio.run(use())
    assert site.made == 1 and site.starting == []


def test_a_process_that_ends_without_closing_its_pool_ends_quietly() -> None:
    code = """
    import asyncio
    from swerex_c.deployment.config import LocalDeploymentConfig
    from swerex_c.pool import Pool

    async def main():
        global pool
        pool = Pool(LocalDeploymentConfig(), size=3, warm=2)
        async with pool.environment() as environment:
            print("used")

    asyncio.run(main())
    """
    done = run_python(code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "used\n", "")
