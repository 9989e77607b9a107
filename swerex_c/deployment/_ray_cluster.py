"""What a deployment asks of Ray: a cluster to be in, and an actor in a place that fits."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from swerex_c._version import __version__
from swerex_c.exceptions import DeploymentStartupError, StartupTimeoutError
from swerex_c.runtime._ray_session import Membership

if TYPE_CHECKING:
    from swerex_c.deployment._exec import Effort
    from swerex_c.deployment.config import RayDeploymentConfig

__all__ = ["asked", "connect", "full", "impossible", "new_actor"]

T = TypeVar("T")

_LOOK = 0.05
"""Seconds between two looks at whether a start is given up."""

_connecting = threading.Lock()
"""Of several deployments that start at once, one connects this process."""


def _environment_class() -> Any:
    """The actor's class.

    It is made here, in a function, so that Ray carries its code along: it can then say so if the worker has not the
    package, or another version of it. All the rest is the worker's own.
    """

    class SwerexEnvironment:
        def __init__(self, version: str, spec: dict[str, Any]) -> None:
            import sys

            where = f"The Python of the cluster's workers ({sys.executable})"
            advice = f"install swerex-c {version} there, or name it in the runtime_env"
            self._host: Any = None
            self._problem = ""
            try:
                from swerex_c._version import __version__ as found

                if found != version:
                    self._problem = f"{where} has swerex-c {found}, and this process has {version}: {advice}"
                    return
                from swerex_c.runtime._ray_host import Host

                self._host = Host(spec)
            except ImportError as error:
                self._problem = f"{where} does not have swerex-c ({error}): {advice}"

        async def do(self, name: str, *args: Any) -> tuple[str, Any]:
            if self._host is None:
                kind = "swerex.exceptions.DeploymentStartupError"
                return "failed", {"message": self._problem, "class_path": kind, "traceback": "", "extra_info": {}}
            answer: tuple[str, Any] = await self._host.do(name, *args)
            return answer

        async def stream(self, payload: dict[str, Any]) -> Any:
            async for item in self._host.stream(payload):
                yield item

    return SwerexEnvironment


def connect(config: RayDeploymentConfig, effort: Effort) -> Membership:
    """Have this process be in a cluster, if it is in none; as what it is there. Blocks.

    Raises:
        DeploymentStartupError: if there is no Ray, or no such cluster, or it is one that has to be reached by Ray's
            client.
        StartupTimeoutError: if it does not answer in time.
    """
    try:
        import ray
    except ImportError as error:
        msg = f"This needs Ray, which cannot be imported ({error}): pip install 'swerex-c[ray]'"
        raise DeploymentStartupError(msg) from None
    if (config.address or "").startswith("ray://") or ray.util.client.ray.is_connected():
        raise DeploymentStartupError(
            "Environments are not reached by Ray's client (ray://...): run this on a node of the cluster, or as a job "
            "that is submitted to it"
        )

    def work() -> None:
        with _connecting:
            if not ray.is_initialized():
                ray.init(address=config.address, namespace=config.namespace, log_to_driver=False)

    try:
        if not ray.is_initialized():
            _patiently(work, effort)
    except (ConnectionError, RuntimeError, ValueError, OSError, AssertionError, ray.exceptions.RayError) as error:
        if isinstance(error, DeploymentStartupError):
            raise
        where = config.address or "that the environment or this machine says"
        raise DeploymentStartupError(f"The Ray cluster {where} cannot be used: {error}") from None
    if (membership := Membership.now()) is None:
        raise DeploymentStartupError("Ray was shut down in this process during the start")
    return membership


def _patiently(work: Callable[[], None], effort: Effort) -> None:
    """Do what cannot be interrupted, in a thread that is left alone if nobody waits for it any more."""
    errors: list[BaseException] = []
    done = threading.Event()

    def run() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)
        done.set()

    threading.Thread(target=run, name="swerex-ray-connect", daemon=True).start()
    while not done.wait(_LOOK):
        effort.check()
    if errors:
        raise errors[0]


def asked(config: RayDeploymentConfig) -> dict[str, float]:
    """The resources that an environment asks for, by Ray's names."""
    wanted = {"CPU": config.num_cpus, "GPU": config.num_gpus, "memory": float(config.memory or 0), **config.resources}
    return {name: amount for name, amount in wanted.items() if amount}


def new_actor(config: RayDeploymentConfig, spec: dict[str, Any], membership: Membership) -> Any:
    """Ask Ray for an actor; its handle. It is never restarted, no call of it is repeated, and it ends with its driver.

    Raises:
        DeploymentStartupError: if the configuration asks for what Ray does not know, or this process has left.
    """
    import ray

    if (why := membership.over()) is not None:
        raise DeploymentStartupError(f"{why} during the start")
    options: dict[str, Any] = {
        "num_cpus": config.num_cpus,
        "num_gpus": config.num_gpus,
        "max_restarts": 0,
        "max_task_retries": 0,
        "max_concurrency": 1000,
        "scheduling_strategy": _strategy(config),
        "enable_task_events": False,  # the head node has enough to do
    }
    if config.memory:
        options["memory"] = config.memory
    if config.resources:
        options["resources"] = config.resources
    if config.runtime_env:
        options["runtime_env"] = config.runtime_env
    try:
        return ray.remote(_environment_class()).options(**options).remote(__version__, spec)
    except (ray.exceptions.RayError, ValueError, TypeError, OSError, RuntimeError) as error:
        raise DeploymentStartupError(f"Ray does not take the options of this environment: {error}") from None


def _strategy(config: RayDeploymentConfig) -> Any:
    import ray
    from ray.util import scheduling_strategies as strategies

    if config.node_id is not None:
        return strategies.NodeAffinitySchedulingStrategy(config.node_id, soft=False)
    if config.node_labels:
        return strategies.NodeLabelSchedulingStrategy(
            {name: strategies.In(value) for name, value in config.node_labels.items()}
        )
    if config.placement_group is not None:
        try:
            group = ray.util.get_placement_group(config.placement_group)
        except ValueError as error:
            raise DeploymentStartupError(f"There is no such placement group: {error}") from None
        return strategies.PlacementGroupSchedulingStrategy(group, config.bundle)
    return config.scheduling_strategy


def _nodes(config: RayDeploymentConfig) -> list[dict[str, Any]]:
    """The living nodes that the configuration does not exclude by name or label."""
    import ray

    return [
        node
        for node in ray.nodes()
        if node["Alive"]
        and config.node_id in (None, node["NodeID"])
        and config.node_labels.items() <= node.get("Labels", {}).items()
    ]


def impossible(config: RayDeploymentConfig) -> DeploymentStartupError | None:
    """The error, if no node of the cluster has what is asked for, however long one waits. Blocks.

    A cluster that grows by itself may come to have it, and is waited for.
    """
    if config.placement_group is not None or _grows():
        return None
    wanted, nodes = asked(config), _nodes(config)
    if any(all(node["Resources"].get(name, 0) >= amount for name, amount in wanted.items()) for node in nodes):
        return None
    return DeploymentStartupError(f"No node of the Ray cluster can have this environment: {_told(config)}")


def full(config: RayDeploymentConfig, late: StartupTimeoutError) -> StartupTimeoutError:
    """The error of a start that was too long in Ray's queue. Blocks."""
    with contextlib.suppress(Exception):
        return StartupTimeoutError(f"{late}, because Ray has not found a place for it so far: {_told(config)}")
    return late


def _told(config: RayDeploymentConfig) -> str:
    import ray

    free = ray.available_resources()
    has = [
        f"{node['NodeManagerAddress']} ({node['NodeID'][:8]}) has {_amounts(node['Resources'])}"
        for node in ray.nodes()
        if node["Alive"]
    ]
    where = ""
    if config.node_id is not None:
        where = f" on node {config.node_id}"
    elif config.node_labels:
        where = f" on a node with the labels {config.node_labels}"
    elif config.placement_group is not None:
        where = f" in the placement group {config.placement_group}"
    return f"it asks for {_amounts(asked(config))}{where}; {'; '.join(has)}; free are {_amounts(free)}"


def _amounts(resources: dict[str, float]) -> str:
    shown = [
        f"{amount:g} {name}"
        for name, amount in sorted(resources.items())
        if not name.startswith("node:") and name != "object_store_memory"
    ]
    return ", ".join(shown) or "nothing"


def _grows() -> bool:
    """Whether the cluster has an autoscaler with more to give."""
    with contextlib.suppress(Exception):
        from ray._private.state import state

        return state.get_max_resources_from_cluster_config() is not None
    return False
