"""Connect to a Ray cluster and create an environment's actor on a suitable node."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

from swerex_c._version import __version__
from swerex_c.exceptions import DeploymentStartupError, StartupTimeoutError
from swerex_c.providers.ray._compat import has_autoscaler
from swerex_c.providers.ray.membership import Membership
from swerex_c.utils import background
from swerex_c.utils.threads import in_thread

if TYPE_CHECKING:
    from swerex_c.providers.ray.config import RayDeploymentConfig

__all__ = ["requested_resources", "connect", "queue_timeout", "unsatisfiable", "new_actor"]

_connecting = threading.Lock()
"""Lock for connecting, so that only one of several deployments that start at once connects this process."""


def _environment_class() -> Any:
    """Return the actor's class.

    The class is made in a function so that Ray sends its code to the worker: it can then report that the worker lacks
    the package or has another version of it. All other code is the worker's own.
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
                from swerex_c.providers.ray.actor import Host

                self._host = Host(spec)
            except ImportError as error:
                self._problem = f"{where} does not have swerex-c ({error}): {advice}"

        async def do(self, name: str, *args: Any) -> tuple[str, Any]:
            if self._host is None:
                kind = "swerex.exceptions.DeploymentStartupError"
                return "failed", {"message": self._problem, "class_path": kind, "traceback": "", "extra_info": {}}
            answer: tuple[str, Any] = await self._host.do(name, *args)
            return answer

    return SwerexEnvironment


def connect(config: RayDeploymentConfig) -> Membership:
    """Connect this process to a cluster, and return its membership. Blocks.

    A process that is already in a cluster stays in that one.

    Raises:
        DeploymentStartupError: if Ray cannot be imported, there is no such cluster, or it needs Ray's client (ray://).
        concurrent.futures.CancelledError: if the call was cancelled, because the cluster did not respond in time.
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
            background.run_blocking(in_thread(work))
    except (ConnectionError, RuntimeError, ValueError, OSError, AssertionError, ray.exceptions.RayError) as error:
        if isinstance(error, DeploymentStartupError):
            raise
        where = config.address or "that the environment or this machine says"
        raise DeploymentStartupError(f"The Ray cluster {where} cannot be used: {error}") from None
    if (membership := Membership.now()) is None:
        raise DeploymentStartupError("Ray was shut down in this process during the start")
    return membership


def requested_resources(config: RayDeploymentConfig) -> dict[str, float]:
    """Return the resources that an environment requests, by Ray's names."""
    wanted = {"CPU": config.num_cpus, "GPU": config.num_gpus, "memory": float(config.memory or 0), **config.resources}
    return {name: amount for name, amount in wanted.items() if amount}


def new_actor(config: RayDeploymentConfig, spec: dict[str, Any], membership: Membership) -> Any:
    """Create an actor and return its handle.

    Ray never restarts the actor or retries its calls. The actor ends with its driver.

    Raises:
        DeploymentStartupError: if Ray rejects the configuration, or this process has left the cluster.
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
        "enable_task_events": False,  # keep this load off the head node
        "memory": config.memory or None,
        "resources": config.resources or None,
        "runtime_env": config.runtime_env or None,
    }
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
    """Return the live nodes that match the configuration's node id and labels."""
    import ray

    return [
        node
        for node in ray.nodes()
        if node["Alive"]
        and config.node_id in (None, node["NodeID"])
        and config.node_labels.items() <= node.get("Labels", {}).items()
    ]


def unsatisfiable(config: RayDeploymentConfig) -> DeploymentStartupError | None:
    """Return an error if no node has the requested resources, else None. Blocks.

    Resources that are in use count too. The result is None for a placement group, and for an autoscaling cluster, which
    may still get such a node.
    """
    if config.placement_group is not None or has_autoscaler():
        return None
    wanted, nodes = requested_resources(config), _nodes(config)
    if any(all(node["Resources"].get(name, 0) >= amount for name, amount in wanted.items()) for node in nodes):
        return None
    return DeploymentStartupError(f"No node of the Ray cluster can have this environment: {_demand(config)}")


def queue_timeout(config: RayDeploymentConfig, late: StartupTimeoutError) -> StartupTimeoutError:
    """Return the error of a start that waited too long in Ray's queue. Blocks.

    Its message has the requested, existing and free resources, if Ray reports them; otherwise the error is `late`.
    """
    with contextlib.suppress(Exception):
        return StartupTimeoutError(f"{late}, because Ray has not found a place for it so far: {_demand(config)}")
    return late


def _demand(config: RayDeploymentConfig) -> str:
    import ray

    free = ray.available_resources()
    has = [
        f"{node['NodeManagerAddress']} ({node['NodeID'][:8]}) has {_amounts(node['Resources'])}"
        for node in ray.nodes()
        if node["Alive"]
    ]
    rule = config.model_dump(include={"node_id", "node_labels", "placement_group"}, exclude_defaults=True)
    wanted = _amounts(requested_resources(config)) + (f" with {rule}" if rule else "")
    return f"it asks for {wanted}; {'; '.join(has)}; free are {_amounts(free)}"


def _amounts(resources: dict[str, float]) -> str:
    shown = [
        f"{amount:g} {name}"
        for name, amount in sorted(resources.items())
        if not name.startswith("node:") and name != "object_store_memory"
    ]
    return ", ".join(shown) or "nothing"
