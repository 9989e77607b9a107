"""What must hold of a pool whatever happens in whatever order: hypothesis chooses what, the test keeps book."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from swerex_c.deployment.dummy import DummyDeployment
from swerex_c.exceptions import (
    DeploymentStartupError,
    EnvironmentStartError,
    PoolClosedError,
    PoolFullError,
    SandboxLostError,
)
from swerex_c.pool import Environment, Pool
from swerex_c.runtime.abstract import IsAliveResponse


class Gated(DummyDeployment):
    """Starts and stops when the machine says so, and is alive in between until it is killed."""

    def __init__(self, machine: Machine):
        super().__init__()
        self.machine = machine
        self.exists = False
        self.dead = False
        self.used = False

    async def pass_a_gate(self, gates: list[asyncio.Future[None]]) -> None:
        gate = asyncio.get_running_loop().create_future()
        gates.append(gate)
        try:
            await gate
        finally:
            gates.remove(gate)

    async def start(self, *args: Any, **kwargs: Any) -> None:
        await self.pass_a_gate(self.machine.starts)
        self.exists = True
        self.machine.existing.append(self)

    async def stop(self, *args: Any, **kwargs: Any) -> None:
        if not self.exists:
            return
        await self.pass_a_gate(self.machine.stops)
        if self.exists:
            self.exists = False
            self.machine.existing.remove(self)

    async def is_alive(self, *, timeout: float | None = None) -> IsAliveResponse:
        return IsAliveResponse(is_alive=not self.dead)


class Caller:
    """One who asks for an environment, in a task of its own."""

    def __init__(self, machine: Machine):
        self.machine = machine
        self.environment: Environment | None = None
        self.leave: asyncio.Future[BaseException | None] = machine.loop.create_future()
        self.task = machine.loop.create_task(self._run())

    async def _run(self) -> str:
        try:
            async with self.machine.pool.environment() as environment:
                deployment = environment.deployment
                assert isinstance(deployment, Gated) and deployment.exists
                assert not deployment.used and not deployment.dead
                deployment.used = True
                self.machine.served.append(self)
                self.environment = environment
                if (error := await self.leave) is not None:
                    raise error
            return "done"
        except PoolFullError:
            return "full"
        except (EnvironmentStartError, SandboxLostError) as error:
            return type(error).__name__
        except PoolClosedError:
            return "closed"

    @property
    def waits(self) -> bool:
        return self.environment is None and not self.task.done()

    @property
    def holds(self) -> bool:
        return self.environment is not None and not self.task.done()


class Loop(asyncio.SelectorEventLoop):
    """An event loop that stops when nothing is left to do at once, and whose clock stands still."""

    def __init__(self) -> None:
        loop = self

        class Selector(selectors.DefaultSelector):
            def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
                if timeout != 0:
                    loop.stop()
                return super().select(0)

        super().__init__(Selector())

    def time(self) -> float:
        return 0.0


class Machine(RuleBasedStateMachine):
    @initialize(
        size=st.integers(1, 4),
        warm=st.integers(0, 2),
        max_waiting=st.integers(0, 4),
        starts_at_once=st.integers(1, 3),
        attempts=st.integers(1, 2),
    )
    def make(self, size: int, warm: int, max_waiting: int, starts_at_once: int, attempts: int) -> None:
        self.loop = Loop()
        self.starts: list[asyncio.Future[None]] = []
        self.stops: list[asyncio.Future[None]] = []
        self.existing: list[Gated] = []
        self.callers: list[Caller] = []
        self.served: list[Caller] = []
        self.starts_at_once = starts_at_once
        self.trouble: list[dict[str, Any]] = []
        self.loop.set_exception_handler(lambda loop, context: self.trouble.append(context))

        self.pool = Pool(
            lambda: Gated(self),
            size,
            warm=warm,
            max_waiting=max_waiting,
            starts_at_once=starts_at_once,
            start_attempts=attempts,
            backoff=0.0,
        )
        self.do(self.pool.__aenter__)

    def do(self, what: Callable[[], Any] = lambda: asyncio.sleep(0)) -> None:
        """Something, and whatever follows from it by itself."""
        task = self.loop.create_task(what())
        self.loop.run_forever()
        task.result()

    @rule(count=st.integers(1, 4))
    def ask(self, count: int) -> None:
        self.callers += [Caller(self) for _ in range(count)]
        self.do()

    @rule(data=st.data())
    @precondition(lambda self: any(caller.holds for caller in self.callers))
    def give_back(self, data: st.DataObject) -> None:
        caller = data.draw(st.sampled_from([caller for caller in self.callers if caller.holds]))
        caller.leave.set_result(data.draw(st.sampled_from([None, None, None, SandboxLostError("gone")])))
        self.do()

    @rule(data=st.data(), settle=st.booleans())
    @precondition(lambda self: any(not caller.task.done() for caller in self.callers))
    def cancel(self, data: st.DataObject, settle: bool) -> None:
        caller = data.draw(st.sampled_from([caller for caller in self.callers if not caller.task.done()]))
        caller.task.cancel()
        if settle:
            self.do()

    @rule(data=st.data(), fails=st.sampled_from([False, False, False, True]), cancel=st.booleans())
    @precondition(lambda self: self.starts)
    def let_start(self, data: st.DataObject, fails: bool, cancel: bool) -> None:
        """Perhaps in the very moment in which somebody who waits is cancelled."""
        gate = data.draw(st.sampled_from(self.starts))
        assume(not gate.done())
        if fails:
            gate.set_exception(DeploymentStartupError("no"))
        else:
            gate.set_result(None)
        if cancel and (waiting := [caller for caller in self.callers if caller.waits]):
            steps = data.draw(st.integers(0, 6))

            async def soon() -> None:
                for _ in range(steps):
                    await asyncio.sleep(0)
                waiting[0].task.cancel()

            self.do(soon)
        else:
            self.do()

    @rule(data=st.data())
    @precondition(lambda self: self.stops)
    def let_stop(self, data: st.DataObject) -> None:
        gate = data.draw(st.sampled_from(self.stops))
        assume(not gate.done())
        gate.set_result(None)
        self.do()

    @rule(data=st.data())
    @precondition(lambda self: self.existing)
    def kill(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.existing)).dead = True

    @invariant()
    def holds(self) -> None:
        stats = self.pool.stats()
        assert len(self.existing) + len(self.starts) <= stats.size
        assert len(self.starts) <= self.starts_at_once
        assert stats.starting + stats.idle + stats.in_use + stats.ending <= stats.size
        assert not self.trouble
        for caller in self.callers:
            if caller.task.done() and not caller.task.cancelled():
                assert caller.task.exception() is None

    @invariant()
    def is_fair(self) -> None:
        """Those who were served and wait still, in the order in which they came: nobody is overtaken."""
        order = [self.callers.index(caller) for caller in self.served]
        assert order == sorted(order)
        waiting = [i for i, caller in enumerate(self.callers) if caller.waits and not caller.task.cancelling()]
        assert not (order and waiting) or min(waiting) > max(order)

    @invariant()
    def nobody_waits_for_nothing(self) -> None:
        """While somebody waits, nothing is idle, and as much is being started or ended as may be at once."""
        self.do()
        stats = self.pool.stats()
        waiting = sum(caller.waits for caller in self.callers)
        in_use = sum(caller.holds for caller in self.callers)
        assert (stats.waiting, stats.in_use, stats.counts["handed_out"]) == (waiting, in_use, len(self.served))
        if waiting:
            assert stats.idle == 0, stats
            assert stats.starting >= min(waiting, stats.size - stats.in_use - stats.ending), stats
        assert len(self.starts) >= min(self.starts_at_once, stats.starting), stats

    def teardown(self) -> None:
        if not hasattr(self, "pool"):
            return
        try:
            self._let_through(self.callers, lambda: all(caller.task.done() for caller in self.callers))
            self.holds()
            self._close()
        finally:
            self.loop.close()

    def _let_through(self, callers: list[Caller], is_over: Callable[[], bool]) -> None:
        """Open all gates, and let the callers leave, until it is over."""
        for _ in range(200):
            leaves = [caller.leave for caller in callers if caller.holds]
            for gate in [*self.starts, *self.stops, *leaves]:
                if not gate.done():
                    gate.set_result(None)
            self.do()
            if is_over():
                return
        raise AssertionError(self.pool.stats())

    def _close(self) -> None:
        last = [Caller(self) for _ in range(3)]
        self.do()
        closing = self.loop.create_task(self.pool.close())
        self._let_through(last, closing.done)
        assert closing.exception() is None
        self.do()
        assert {caller.task.result() for caller in last} <= {"closed", "full", "done"}
        assert self.existing == self.starts == self.stops == []
        stats = self.pool.stats()
        assert (stats.waiting, stats.starting, stats.idle, stats.in_use, stats.ending) == (0, 0, 0, 0, 0)
        assert stats.counts["started"] == stats.counts["ended"]
        left = [task for task in asyncio.all_tasks(self.loop) if not task.done()]
        assert not left and not self.trouble, (left, self.trouble)


Machine.TestCase.settings = settings(
    max_examples=100, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
test_whatever_happens = Machine.TestCase
