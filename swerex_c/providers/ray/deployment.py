"""Deployment on a node of a Ray cluster.

    driver                                          a node that Ray has chosen
    RayDeployment ── Ray: create, watch, kill ────> actor (a worker process of Ray)
         │                                            └── supervisor ── server ── sessions, commands, docker exec ...
    RayRuntime ───── commands and files: frames over TCP ────────────────┘

Ray places the actor by the resources in the configuration, and reports when it has died. The environment runs in its
own processes below the actor, see `supervisor`: they end when the actor does, and the actor ends when the driver does,
whatever kills them. Ray never restarts an actor or retries a call, so that no command runs twice: calls of a lost
environment raise a `SandboxLostError`, and the caller starts another environment.

Where the node accepts no connection from the driver, calls of the actor carry the bytes, see `forward`. The connection
is unencrypted, as Ray's own traffic is by default. The server accepts only clients with its key, which is generated for
each environment and sent through Ray.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import TYPE_CHECKING, Any, ClassVar, Unpack

from swerex_c.exceptions import DeploymentStartupError, StartupTimeoutError
from swerex_c.providers.docker.config import DockerDeploymentConfig
from swerex_c.providers.local.config import LocalDeploymentConfig
from swerex_c.providers.ray import cluster as cluster
from swerex_c.providers.ray._compat import actor_state
from swerex_c.providers.ray.config import RayDeploymentConfig, RayKeywords
from swerex_c.providers.sandbox_deployment import ProviderDeployment
from swerex_c.utils import background
from swerex_c.utils.load import ConfigSignature
from swerex_c.utils.threads import in_thread

if TYPE_CHECKING:
    from swerex_c.providers.ray.forward import PortForward
    from swerex_c.providers.ray.link import ActorConnection
    from swerex_c.providers.ray.runtime import RayRuntime

__all__ = ["RayDeployment", "RayDeploymentConfig"]

_CLUSTER_POLL = 2.0
"""Seconds between checks whether the cluster can still run the environment."""

_CONNECT_SECONDS = 3.0
"""Timeout in seconds of the test connection to the node."""

_RECONNECT_SECONDS = 10.0
"""Seconds that a command waits for a broken connection, unless Ray reports that the environment is lost."""

_END_SECONDS = 50.0


class RayDeployment(ProviderDeployment):
    """Deployment of an environment on a node of a Ray cluster.

        deployment = RayDeployment(num_cpus=2, environment=DockerDeploymentConfig(image="python:3.12"))

    The runtime is a `RayRuntime`. It raises a `SandboxLostError` when the environment is lost; the deployment can then
    be started again.
    """

    _startup_timeout: ClassVar[float] = 180.0

    __signature__ = ConfigSignature("swerex_c.providers.ray.config:RayDeploymentConfig")

    def __init__(self, *, logger: logging.Logger | None = None, **kwargs: Unpack[RayKeywords]):
        """Take the fields of `RayDeploymentConfig` as keyword arguments."""
        super().__init__(logger=logger)
        self._config: RayDeploymentConfig = RayDeploymentConfig(**kwargs)
        self._link: ActorConnection | None = None
        self._forward: PortForward | None = None
        self._facts: dict[str, Any] = {}
        self._current_spec: dict[str, Any] = {}

    async def _start(self) -> None:
        await self._step("Waiting for a place in the cluster")
        self._facts = await self._in_thread(self._place)
        await self._step("Starting runtime")
        self._runtime = await self._connect(self._facts)
        if not (answer := await self._runtime.is_alive(timeout=self._leave_limit())):
            raise DeploymentStartupError(answer.message)

    def _spec(self) -> dict[str, Any]:
        from swerex_c.remote.server import auth

        environment = self._config.environment
        limit = self._config.memory_limit
        if limit is not None and isinstance(environment, DockerDeploymentConfig):
            arguments = ["--memory", str(limit), *environment.docker_args]
            environment = environment.model_copy(update={"docker_args": arguments})
        return {
            "environment": environment.model_dump(mode="json"),
            "time_limit": self._config.time_limit,
            "memory_limit": limit,
            "key": auth.new(),
        }

    def _place(self) -> dict[str, Any]:
        """Create the actor, have it start the environment, and return what `Host.open` returns. Blocks."""
        from swerex_c.providers.ray.link import ActorConnection

        membership = cluster.connect(self._config)
        if error := cluster.unsatisfiable(self._config):
            raise error
        self._current_spec = self._spec()
        link = ActorConnection(cluster.new_actor(self._config, self._current_spec, membership), membership)
        self._link = link
        try:
            try:
                limit = self._leave_limit()  # which may raise, and then no coroutine is made that nothing awaits
                facts: dict[str, Any] = background.run_blocking(self._open(link), limit)
            except TimeoutError:
                self._seconds_left()  # raises the start's own error if that is why
                raise
        except StartupTimeoutError as late:
            link.check_ray()
            raise cluster.queue_timeout(self._config, late) if _is_queued(link) else late from None
        link.opened(facts)
        self.logger.info(f"{link.name} has started")
        return facts

    async def _open(self, link: ActorConnection) -> dict[str, Any]:
        """Have the actor start the environment; raise an error when the cluster can no longer have the actor."""
        opening = asyncio.ensure_future(link.ask("open"))
        try:
            while not (await asyncio.wait((opening,), timeout=_CLUSTER_POLL))[0]:
                link.check_ray()
                queued = await in_thread(_is_queued, link)
                if queued and (error := await in_thread(cluster.unsatisfiable, self._config)):
                    raise error
            facts: dict[str, Any] = opening.result()
            return facts
        finally:
            opening.cancel()

    async def _connect(self, facts: dict[str, Any]) -> RayRuntime:
        """Return the runtime, over a direct connection to the node if the configuration and the node allow it."""
        from swerex_c.providers.ray.forward import PortForward
        from swerex_c.providers.ray.runtime import RayRuntime

        link = self._link
        assert link is not None
        ip, port = facts["ip"], facts["port"]
        direct = self._config.connection != "ray"
        seconds = min(_CONNECT_SECONDS, self._seconds_left())
        if direct and (problem := await in_thread(_connection_problem, (ip, port), seconds)) is not None:
            where = f"{ip}, port {port}"
            if self._config.connection == "direct":
                raise DeploymentStartupError(f"The environment's node cannot be reached at {where}: {problem}")
            self.logger.warning(
                f"The node lets no connection in at {where} ({problem}): the connection goes through Ray"
            )
            direct = False
        if not direct:
            self._forward = PortForward(link)
            ip, port = "127.0.0.1", self._forward.port
        environment = self._config.environment
        on_node = isinstance(environment, LocalDeploymentConfig) and environment.isolation is None
        return RayRuntime(
            link,
            None if on_node else facts["directory"],
            host=f"http://[{ip}]" if ":" in ip else f"http://{ip}",
            port=port,
            auth_token=self._current_spec["key"],
            wire="msgpack",
            reconnect_timeout=_RECONNECT_SECONDS,
            logger=self.logger,
        )

    def _end(self) -> None:
        link, self._link = self._link, None
        forward, self._forward = self._forward, None
        if forward is not None:
            forward.close()
        if link is not None:
            link.end(_END_SECONDS)


def _is_queued(link: ActorConnection) -> bool:
    """Check whether the actor is in Ray's queue; return True if Ray does not say."""
    try:
        state = actor_state(link.actor_id)
    except Exception:
        return True
    return state in (None, "DEPENDENCIES_UNREADY", "PENDING_CREATION")


def _connection_problem(address: tuple[str, int], seconds: float) -> str | None:
    """Return why no connection to `address` can be made, or None if one can."""
    try:
        socket.create_connection(address, seconds).close()
    except OSError as error:
        return str(error)
    return None
