"""A deployment on a node of a Ray cluster.

    driver                                          a node that Ray has chosen
    RayDeployment ── Ray: create, watch, kill ────> actor (a worker process of Ray's)
         │                                            └── keeper ── server ── sessions, commands, docker exec ...
    RayRuntime ───── commands: our frames, TCP ──────────────────────┘
         └────────── files: Ray's object store ─────> actor

Ray places the actor by the resources that the configuration asks for, and tells when it has died. The environment is in
processes of its own below the actor, see `swerex_c.runtime._ray_keeper`: they end when the actor does, and the actor
ends when the driver does, whatever kills them. An actor is never restarted and no call is repeated, so that no command
runs twice: a lost environment is a `PlaceLostError`, and whoever holds it starts another.

The connection for commands crosses the network as Ray's own traffic does by default, unencrypted; the server takes
only who knows a key that is drawn anew for each environment and goes there by way of Ray.
"""

from __future__ import annotations

import logging
import socket
from typing import TYPE_CHECKING, Any, ClassVar, Self

from swerex_c.deployment import _ray_cluster as cluster
from swerex_c.deployment._exec import Effort, PlaceDeployment
from swerex_c.deployment.config import DockerDeploymentConfig, RayDeploymentConfig
from swerex_c.exceptions import DeploymentStartupError, StartupTimeoutError
from swerex_c.exec.threads import in_thread

if TYPE_CHECKING:
    from swerex_c.runtime._ray_link import ActorLink
    from swerex_c.runtime._ray_session import Membership
    from swerex_c.runtime.ray import RayRuntime

__all__ = ["RayDeployment", "RayDeploymentConfig"]

_LOOK = 0.05
"""Seconds between two looks at whether the start was given up."""

_LOOK_AT_CLUSTER = 2.0
"""Seconds between two looks at whether the cluster can still have the environment."""

_KNOCK_SECONDS = 3.0
"""How long the node may take to let a connection in."""

_RECONNECT_SECONDS = 10.0
"""How long a command waits for a connection that broke, where Ray does not say that the environment is gone."""

_END_SECONDS = 50.0


class RayDeployment(PlaceDeployment):
    """Starts an environment on a node of a Ray cluster: a `RayRuntime`.

        deployment = RayDeployment(num_cpus=2, environment=DockerDeploymentConfig(image="python:3.12"))

    When the environment is lost the runtime says so by a `PlaceLostError`; this can then be started again.
    """

    _startup_timeout: ClassVar[float] = 180.0

    def __init__(self, *, logger: logging.Logger | None = None, **kwargs: Any):
        """The keyword arguments are the fields of `RayDeploymentConfig`."""
        super().__init__(logger=logger)
        self._config: RayDeploymentConfig = RayDeploymentConfig(**kwargs)
        self._link: ActorLink | None = None
        self._facts: dict[str, Any] = {}
        self._spec_now: dict[str, Any] = {}

    @classmethod
    def from_config(cls, config: RayDeploymentConfig) -> Self:
        return cls(**config.model_dump())

    async def _start(self, effort: Effort) -> None:
        self._hooks.on_custom_step("Waiting for a place in the cluster")
        facts = self._facts = await self._in_thread(effort, self._place_or_tell, effort)
        self._hooks.on_custom_step("Starting runtime")
        runtime = await self._connect(facts, effort)
        self._runtime = runtime
        if not (answer := await runtime.is_alive(timeout=effort.check())):
            raise DeploymentStartupError(answer.message)

    def _spec(self) -> dict[str, Any]:
        from swerex_c.remote import key

        environment = self._config.environment
        limit = self._config.memory_limit
        if limit is not None and isinstance(environment, DockerDeploymentConfig):
            arguments = ["--memory", str(limit), *environment.docker_args]
            environment = environment.model_copy(update={"docker_args": arguments})
        return {
            "environment": environment.model_dump(mode="json"),
            "time_limit": self._config.time_limit,
            "memory_limit": limit,
            "key": key.new(),
        }

    def _place_or_tell(self, effort: Effort) -> dict[str, Any]:
        membership = cluster.connect(self._config, effort)
        try:
            return self._place(effort, membership)
        except Exception as error:
            if (why := membership.over()) is not None and not isinstance(error, DeploymentStartupError):
                raise DeploymentStartupError(f"{why} during the start") from error
            raise
        except SystemExit:  # what Ray raises in threads that wait when it is shut down; it would end the event loop
            raise DeploymentStartupError("Ray was shut down in this process during the start") from None

    def _place(self, effort: Effort, membership: Membership) -> dict[str, Any]:
        """Have Ray start the actor, and the actor the environment; where it is. Blocks."""
        import ray

        from swerex_c.runtime._ray_link import ActorLink

        effort.check()
        if error := cluster.impossible(self._config):
            raise error
        self._spec_now = self._spec()
        link = ActorLink(cluster.new_actor(self._config, self._spec_now, membership), membership)
        self._link = link
        ref = link.send("open")
        looks = 0
        while not ray.wait([ref], timeout=_LOOK)[0]:
            link.check_ray()
            try:
                effort.check()
            except StartupTimeoutError as late:
                raise cluster.full(self._config, late) if _waits(link) else late from None
            looks += 1
            if looks % int(_LOOK_AT_CLUSTER / _LOOK) == 0 and _waits(link):
                if error := cluster.impossible(self._config):
                    raise error
        facts: dict[str, Any] = link.answer(ref)
        link.opened(facts)
        self.logger.info(f"{link.name} has started")
        return facts

    async def _connect(self, facts: dict[str, Any], effort: Effort) -> RayRuntime:
        """The runtime, over a connection to the node if that can be."""
        from swerex_c.runtime._ray_calls import CallsRuntime
        from swerex_c.runtime.ray import RayRuntime

        link = self._link
        assert link is not None
        if self._config.connection != "ray":
            problem = await in_thread(_knock, (facts["ip"], facts["port"]), min(_KNOCK_SECONDS, effort.check()))
            if problem is None:
                return RayRuntime(self._direct(facts), link, logger=self.logger)
            where = f"{facts['ip']}, port {facts['port']}"
            if self._config.connection == "direct":
                raise DeploymentStartupError(f"The environment's node cannot be reached at {where}: {problem}")
            self.logger.warning(f"The node lets no connection in at {where} ({problem}): commands go through Ray")
        return RayRuntime(CallsRuntime(link), link, logger=self.logger)

    def _direct(self, facts: dict[str, Any]) -> Any:
        from swerex_c.runtime.remote import RemoteRuntime

        ip = facts["ip"]
        return RemoteRuntime(
            host=f"http://[{ip}]" if ":" in ip else f"http://{ip}",
            port=facts["port"],
            auth_token=self._spec_now["key"],
            wire="msgpack",
            reconnect_timeout=_RECONNECT_SECONDS,
            logger=self.logger,
        )

    def _end(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.end(_END_SECONDS)


def _waits(link: ActorLink) -> bool:
    """Whether the actor is in Ray's queue; that it may be, if Ray does not say."""
    try:
        from ray._private.state import actors  # the public way needs Ray's dashboard

        state = actors(link.actor_id).get("State")
    except Exception:
        return True
    return state in (None, "DEPENDENCIES_UNREADY", "PENDING_CREATION")


def _knock(address: tuple[str, int], seconds: float) -> str | None:
    """Why no connection can be made; None if one can."""
    try:
        socket.create_connection(address, seconds).close()
    except OSError as error:
        return str(error)
    return None
