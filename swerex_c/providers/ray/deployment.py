"""Deployment on a node of a Ray cluster.

    driver                                     a node that Ray has chosen
    RayDeployment ── create, watch, kill ────> actor (a worker process of Ray)
    RayRuntime ───── calls of the actor ─────>   │
                                                 ├── supervisor ── server ── sessions, commands, docker exec ...
                                                 └── frames over a unix socket ──┘

Ray places the actor by the resources in the configuration, and reports when it has died. The environment runs in its
own processes below the actor, see `supervisor`: they end when the actor does, and the actor ends when the driver does,
whatever kills them. Ray never restarts an actor or retries a call, so that no command runs twice: calls of a lost
environment raise a `SandboxLostError`, and the caller starts another environment. All bytes pass through Ray, so that
its own ports are enough.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Unpack

from swerex_c.exceptions import DeploymentStartupError, StartupTimeoutError
from swerex_c.providers.docker.config import DockerDeploymentConfig
from swerex_c.providers.ray import cluster
from swerex_c.providers.ray.config import RayDeploymentConfig, RayKeywords
from swerex_c.providers.sandbox_deployment import ProviderDeployment
from swerex_c.utils.load import ConfigSignature
from swerex_c.utils.threads import in_thread, in_thread_to_its_end

if TYPE_CHECKING:
    from swerex_c.providers.ray.runtime import ActorChannel

__all__ = ["RayDeployment", "RayDeploymentConfig"]


class RayDeployment(ProviderDeployment):
    """Deployment of an environment on a node of a Ray cluster.

        deployment = RayDeployment(num_cpus=2, environment=DockerDeploymentConfig(image="python:3.12"))

    The runtime is a `RayRuntime`. It raises a `SandboxLostError` when the environment is lost; the deployment can then
    be started again.
    """

    __signature__ = ConfigSignature("swerex_c.providers.ray.config:RayDeploymentConfig")

    def __init__(self, *, logger: logging.Logger | None = None, **kwargs: Unpack[RayKeywords]):
        """Take the fields of `RayDeploymentConfig` as keyword arguments."""
        super().__init__(logger=logger)
        self._config: RayDeploymentConfig = RayDeploymentConfig(**kwargs)
        self._channel: ActorChannel | None = None
        self._facts: dict[str, Any] = {}

    async def _start(self) -> None:
        from swerex_c.providers.ray.runtime import ActorChannel, RayRuntime

        await self._step("Waiting for a place in the cluster")
        membership = await in_thread(cluster.connect, self._config)
        spec = self._spec()

        def create() -> ActorChannel:
            # Set here, so that the actor is also ended if the start is cancelled meanwhile.
            self._channel = ActorChannel(cluster.new_actor(self._config, spec, membership), membership)
            return self._channel

        channel = await in_thread_to_its_end(create)
        try:
            async with asyncio.timeout(self._leave_limit()) as limit:
                self._facts = await channel.open()
        except TimeoutError:
            if not limit.expired():
                raise  # an error of the environment
            raise StartupTimeoutError(f"{self._late()}. {await in_thread(cluster.demand, self._config)}") from None
        self.logger.info(f"{channel.name} has started")
        await self._step("Starting runtime")
        self._runtime = RayRuntime(channel, logger=self.logger)
        if not (answer := await self._runtime.is_alive(timeout=self._seconds_left())):
            raise DeploymentStartupError(answer.message)

    def _spec(self) -> dict[str, Any]:
        from swerex_c.remote.server import auth

        environment, limit = self._config.environment, self._config.memory_limit
        if limit is not None and isinstance(environment, DockerDeploymentConfig):
            arguments = ["--memory", str(limit), *environment.docker_args]
            environment = environment.model_copy(update={"docker_args": arguments})
            limit = None
        return {
            "environment": environment.model_dump(mode="json"),
            "time_limit": self._config.time_limit,
            "memory_limit": limit,
            "key": auth.new(),
        }

    async def _end_sandbox(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.end()
