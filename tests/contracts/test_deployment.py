"""Deployments: a start, a stop, each of them twice, cancelled, and dropped; and that nothing is left behind."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections.abc import AsyncIterator

import pytest

from swerex_c.deployment.abstract import AbstractDeployment
from swerex_c.deployment.hooks.abstract import DeploymentHook
from swerex_c.exceptions import (
    ConnectionLostError,
    DeploymentNotStartedError,
    RuntimeClosedError,
    SandboxLostError,
    SwerexException,
)
from swerex_c.models import Command, ReadFileRequest, WriteFileRequest
from swerex_c.utils import background
from tests.support.session import says
from tests.support.targets import DEADLINE, DEPLOYMENTS, LOST, Session, Target, seconds
from tests.support.wait import cancel, until_async

TARGETS = DEPLOYMENTS


@pytest.fixture
async def deployment(target: Target) -> AsyncIterator[AbstractDeployment]:
    """A deployment that is not started. When the case has ended the provider has what it had before."""
    assert target.make is not None
    before = set(target.left())
    made = target.make()
    yield made
    await made.stop()
    await until_async(lambda: as_before(target, before))


async def as_before(target: Target, before: set[str]) -> bool:
    return set(await asyncio.to_thread(target.left)) == before


async def is_down(deployment: AbstractDeployment) -> bool:
    """Whether there is no runtime: `is_alive` raises, or tells it."""
    with pytest.raises(DeploymentNotStartedError):
        _ = deployment.runtime
    try:
        return not await deployment.is_alive(timeout=DEADLINE)
    except DeploymentNotStartedError:
        return True


class Steps(DeploymentHook):
    """Notes the steps of a start."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.first = asyncio.Event()
        self.loop = asyncio.get_running_loop()

    def on_custom_step(self, message: str) -> None:
        self.steps.append(message)
        self.loop.call_soon_threadsafe(self.first.set)


@pytest.mark.slice
async def test_a_day(target: Target, deployment: AbstractDeployment) -> None:
    hook = Steps()
    deployment.add_hook(hook)
    assert await is_down(deployment)
    await deployment.stop()
    await deployment.start()
    assert await deployment.is_alive(timeout=DEADLINE)
    runtime = deployment.runtime
    session = Session(runtime)
    await session.create()
    await session.gives("x=5; echo $x", "5\n")
    assert await says(deployment, "echo hi") == "hi\n"
    path = target.new()
    await runtime.write_file(WriteFileRequest(path=path, content="text\n"))
    assert (await runtime.read_file(ReadFileRequest(path=path))).content == "text\n"
    await session.gives("echo $x", "5\n")
    await deployment.stop()
    assert await is_down(deployment)
    assert not target.left() or hook.steps, "a sandbox was started without a step"


async def test_stopped_twice_and_at_once(target: Target, deployment: AbstractDeployment) -> None:
    await deployment.start()
    await asyncio.gather(deployment.stop(), deployment.stop())
    await deployment.stop()
    assert await is_down(deployment)


async def test_started_again(target: Target, deployment: AbstractDeployment) -> None:
    """After a stop, and without one: the earlier sandbox ends, with its sessions."""
    before = set(target.left())
    await deployment.start()
    first = deployment.runtime
    session = Session(first)
    await session.create()
    sandboxes = set(target.left()) - before
    await deployment.start()
    assert await deployment.is_alive(timeout=DEADLINE)
    assert await says(deployment, "echo second") == "second\n"
    if deployment.runtime is first:  # Modal's ignores the second start, as the original's does
        assert target.name == "modal"
        await session.synced()
    else:
        assert not sandboxes & set(target.left())
        if target.name != "frames":  # whose server goes on
            with pytest.raises(SwerexException):
                await session.run("true")
    await deployment.stop()
    await deployment.start()
    assert await says(deployment, "echo third") == "third\n"


async def test_starts_and_stops_keep_nothing_in_this_process(target: Target, deployment: AbstractDeployment) -> None:
    """No descriptor, no thread, and no task of the loop in the background; also starts that are cancelled."""

    async def once() -> None:
        starting = await begin_to_start(deployment)
        starting.cancel()
        await asyncio.wait([starting])
        await deployment.stop()
        await deployment.start()
        await Session(deployment.runtime).create()
        assert await says(deployment, "echo hi") == "hi\n"
        await deployment.stop()

    async def kept() -> tuple[int, ...]:
        gc.collect()
        threads = [it for it in threading.enumerate() if not it.name.startswith("asyncio_")]
        return len(os.listdir("/proc/self/fd")), len(threads), await background.run(count_tasks())

    async def as_first() -> bool:
        return all(now <= then for now, then in zip(await kept(), first, strict=True))

    await kept()  # which begins the loop in the background
    await once()
    first = await kept()
    await once()
    await once()
    await until_async(as_first)


async def count_tasks() -> int:
    return len(asyncio.all_tasks())


async def test_as_a_context(target: Target) -> None:
    assert target.make is not None
    before = set(target.left())
    with pytest.raises(ZeroDivisionError):
        async with target.make() as deployment:
            assert await says(deployment, "echo hi") == "hi\n"
            raise ZeroDivisionError
    assert await is_down(deployment)
    await until_async(lambda: as_before(target, before))


async def test_a_stop_ends_everything(target: Target, deployment: AbstractDeployment) -> None:
    """What sessions and commands have started, and what their callers wait for."""
    number = seconds()
    await deployment.start()
    session = Session(deployment.runtime)
    await session.create()
    left = f"setsid sleep {number} & (env -i setsid $(type -P sleep) {number} &); (trap '' HUP; exec sleep {number}) &"
    await session.run(left)
    calls = [
        asyncio.ensure_future(session.run(f"sleep {number}")),
        asyncio.ensure_future(deployment.runtime.execute(Command(command=["sleep", number]))),
    ]
    count = ["bash", "-c", "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -o 'sleep [0-9]*'; :"]

    async def all_run() -> bool:
        done = await deployment.runtime.execute(Command(command=count, timeout=DEADLINE))
        return done.stdout.count(number) >= 5

    await until_async(all_run)
    await deployment.stop()
    ends = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), DEADLINE)
    assert isinstance(ends[0], SwerexException), ends
    assert isinstance(ends[1], SwerexException) or ends[1].exit_code == -9, ends  # it was killed
    assert target.fake or await target.sleeping(number) == 0
    await target.end(number)


async def begin_to_start(deployment: AbstractDeployment) -> asyncio.Future[None]:
    """Return a start once it tells its first step, or has ended."""
    hook = Steps()
    deployment.add_hook(hook)
    starting = asyncio.ensure_future(deployment.start())
    done = asyncio.ensure_future(hook.first.wait())
    await asyncio.wait([starting, done], return_when=asyncio.FIRST_COMPLETED)
    done.cancel()
    return starting


async def test_a_cancelled_start_leaves_nothing(target: Target, deployment: AbstractDeployment) -> None:
    """And the deployment can be started again."""
    starting = await begin_to_start(deployment)
    if not starting.done():
        await cancel(starting)
    await deployment.stop()
    assert await is_down(deployment)
    await deployment.start()
    assert await says(deployment, "echo again") == "again\n"


async def test_a_stop_ends_a_start(target: Target, deployment: AbstractDeployment) -> None:
    starting = await begin_to_start(deployment)
    await deployment.stop()
    (error,) = await asyncio.gather(starting, return_exceptions=True)
    assert error is None or isinstance(error, RuntimeClosedError)
    assert await is_down(deployment)


async def test_several_at_once(target: Target, deployment: AbstractDeployment) -> None:
    assert target.make is not None
    before = set(target.left())
    several = [deployment, target.make(), target.make()]
    await asyncio.gather(*(each.start() for each in several))
    sandboxes = set(target.left()) - before
    assert len(sandboxes) in (0, 3)
    said = await asyncio.gather(*(says(each, f"echo {i}") for i, each in enumerate(several)))
    assert said == ["0\n", "1\n", "2\n"]
    await several[1].stop()
    assert await says(several[2], "echo lives") == "lives\n"
    await several[2].stop()


def test_each_call_may_have_a_loop_of_its_own(target: Target) -> None:
    """Also in another thread."""
    assert target.make is not None
    deployment = target.make()
    session: list[Session] = []

    def work() -> None:
        asyncio.run(deployment.start())
        session.append(Session(deployment.runtime))
        asyncio.run(session[0].create())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    asyncio.run(session[0].gives("x=1; echo $x", "1\n"))
    asyncio.run(session[0].gives("echo $x", "1\n"))
    asyncio.run(deployment.stop())


async def test_one_that_is_dropped_is_stopped(target: Target) -> None:
    assert target.make is not None
    number, before = seconds(), set(target.left())
    deployment = target.make()
    await deployment.start()
    session = Session(deployment.runtime)
    await session.create()
    await session.run(f"sleep {number} &")
    del deployment, session
    gc.collect()
    await until_async(lambda: as_before(target, before))
    await target.end(number)


async def test_a_lost_sandbox_is_told(target: Target, deployment: AbstractDeployment) -> None:
    """To who waits, to who comes, and to `is_alive`; a stop is no error then, and a start makes another."""
    assert target.lose is not None
    before = set(target.left())
    await deployment.start()
    (sandbox,) = set(target.left()) - before
    session = Session(deployment.runtime)
    await session.create()
    await session.gives("echo up", "up\n")
    waiting = [
        asyncio.ensure_future(session.run("sleep 1000")),
        asyncio.ensure_future(deployment.runtime.execute(Command(command=["sleep", "1000"]))),
    ]
    await asyncio.to_thread(target.lose, sandbox)
    lost = (SandboxLostError, ConnectionLostError)
    for call in waiting:
        with pytest.raises(SwerexException):
            await asyncio.wait_for(call, DEADLINE)
    with pytest.raises(lost):
        await asyncio.wait_for(says(deployment, "echo never"), DEADLINE)
    try:
        assert not await deployment.is_alive(timeout=DEADLINE)
    except lost:
        pass
    await deployment.stop()
    await deployment.start()
    assert await says(deployment, "echo again") == "again\n"


test_a_lost_sandbox_is_told.targets = LOST  # type: ignore[attr-defined]
