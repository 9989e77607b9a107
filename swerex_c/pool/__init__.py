"""Pool of environments for many concurrent users, on any kind of deployment.

    from swerex_c.deployment.config import LocalDeploymentConfig
    from swerex_c.pool import Pool

    async with Pool(LocalDeploymentConfig(), size=8) as pool:
        async with pool.environment() as environment:
            await environment.runtime.execute(Command(command="make", shell=True))

With another configuration (`DockerDeploymentConfig`, `RayDeploymentConfig`, ...) this code runs elsewhere. The pool
does not schedule: the engine decides where an environment runs. The pool keeps at most `size` environments, serves
waiting callers in order of arrival, and ends the environments that it has started.

An environment goes through these states, and counts towards `size` in all of them:

    STARTING -> IDLE -> (CHECKING) -> IN_USE -> ENDING

Each user gets a fresh one. To use an environment for several tasks, run them in one block.

The pool never runs a user's commands again: if an environment dies in use, its user gets a `SandboxLostError`, and the
next user gets another environment.

A pool belongs to the event loop in which it is first used. Its state changes only between two awaits of that loop, so
it needs no locks; use from another loop is refused. When `asyncio.run` ends, the environments of a pool that was not
closed end too.
"""

from swerex_c.pool.environment import Environment, PoolStats
from swerex_c.pool.pool import Pool

__all__ = ["Environment", "Pool", "PoolStats"]
