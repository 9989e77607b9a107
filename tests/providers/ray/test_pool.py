"""Pools of environments on Ray: places on the nodes, an actor and a node that are lost, a cluster that is full."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import pytest

from swerex_c.deployment.abstract import AbstractDeployment
from swerex_c.deployment.config import LocalDeploymentConfig, RayDeploymentConfig
from swerex_c.exceptions import (
    EnvironmentStartError,
    PoolTimeoutError,
    SandboxLostError,
    StartupTimeoutError,
)
from swerex_c.pool import Pool
from swerex_c.runtime.abstract import BashAction
from tests.support.ray_cluster import Nodes, new_session
from tests.support.wait import until

pytestmark = pytest.mark.timeout(120)


def config(**fields: Any) -> RayDeploymentConfig:
    return RayDeploymentConfig(
        **{"environment": LocalDeploymentConfig(), "num_cpus": 0.1, "startup_timeout": 60, **fields}
    )


async def say(pool: Pool, text: str) -> str:
    async with pool.environment() as environment:
        await environment.runtime.create_session(new_session())
        return (await environment.runtime.run_in_session(BashAction(command=f"echo {text} $PPID"))).output


async def test_users_have_environments_of_their_own(nodes: Nodes) -> None:
    async with Pool(config(), 2) as pool:
        said = await asyncio.gather(*(say(pool, str(number)) for number in range(4)))
    assert [text.split()[0] for text in said] == ["0", "1", "2", "3"]
    assert len({text.split()[1] for text in said}) == 4  # the actors' processes
    assert pool.stats().counts["ended"] == 4


async def test_an_actor_that_is_killed_is_a_typed_error_and_is_replaced(nodes: Nodes, tmp_path: Any) -> None:
    log = tmp_path / "log"
    async with Pool(config(), 1) as pool:
        with pytest.raises(SandboxLostError):
            async with pool.environment() as environment:
                await environment.runtime.create_session(new_session())
                actor = int((await environment.runtime.run_in_session(BashAction(command="echo $PPID"))).output)
                running = asyncio.ensure_future(
                    environment.runtime.run_in_session(BashAction(command=f"echo once >> {log}; sleep 1000"))
                )
                await asyncio.to_thread(until, log.exists)
                os.kill(actor, signal.SIGKILL)
                await running
        assert (await say(pool, "again")).startswith("again ")
        assert pool.stats().counts["replaced"] == 1
    assert log.read_text() == "once\n"


async def test_a_node_that_is_killed_costs_only_what_ran_there(nodes: Nodes) -> None:
    lost = nodes.add(cpus=1, doomed=1)
    async with Pool(config(), 1) as safe, Pool(config(resources={"doomed": 0.5}), 1, start_attempts=1) as doomed:
        async with safe.environment() as environment:
            await environment.runtime.create_session(new_session())
            with pytest.raises(SandboxLostError):
                async with doomed.environment() as other:
                    await other.runtime.create_session(new_session())
                    nodes.kill(lost)
                    async with asyncio.timeout(60):
                        await other.runtime.run_in_session(BashAction(command="sleep 1000"))
            answer = await environment.runtime.run_in_session(BashAction(command="echo here"))
            assert answer.output == "here\n"
        nodes.remove(lost)


async def test_a_full_cluster_is_waited_for_and_then_says_what_it_lacks(nodes: Nodes) -> None:
    """The node that has what is asked for has it once."""
    seconds = iter([60, 3, 3])

    def make() -> AbstractDeployment:
        return config(resources={"far": 4}, startup_timeout=next(seconds)).get_deployment()

    async with Pool(make, 2, start_attempts=1) as pool, pool.environment():
        with pytest.raises(EnvironmentStartError) as caught:
            async with pool.environment():
                pytest.fail("there is no room")
        assert isinstance(caught.value.__cause__, StartupTimeoutError) and "far" in str(caught.value)
        with pytest.raises(PoolTimeoutError, match="1 are in use and 1 are starting"):
            async with pool.environment(wait_timeout=0.5):
                pytest.fail("there is no room")
