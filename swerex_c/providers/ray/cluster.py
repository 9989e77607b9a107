"""Connect to a Ray cluster, and create an environment's actor on a suitable node.

After Ray was shut down in a process, the next call of most of Ray's functions connects the process again, or starts a
cluster on this machine (auto-init), in which the earlier objects do not exist. Code that creates something in a cluster
therefore keeps the `Membership` of that time and checks it before each call.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from swerex_c.exceptions import DeploymentStartupError
from swerex_c.utils.load import load_library

if TYPE_CHECKING:
    from swerex_c.providers.ray.config import RayDeploymentConfig

__all__ = ["LEFT", "Membership", "connect", "demand", "membership", "new_actor"]

LEFT = "Ray was shut down in this process"

_connecting = threading.Lock()
"""Lock for connecting, so that only one of several deployments that start at once connects this process."""


Membership = tuple[str, str]
"""One connection of this process to a cluster, from `ray.init` to `ray.shutdown`.

These are the ids of the node through which the process is connected, which each cluster generates, and of the job that
it is or works for, of which a process that connects again gets another one."""


def membership() -> Membership | None:
    """Return the current membership of this process, or None if it is in no cluster. Thread-safe."""
    import ray

    if not ray.is_initialized():
        return None
    try:
        context = ray.get_runtime_context()
        return context.get_node_id(), context.get_job_id()
    except Exception:
        if ray.is_initialized():
            raise
        return None  # the process has left just now


def connect(config: RayDeploymentConfig) -> Membership:
    """Connect this process to a cluster, and return its membership. Blocks.

    A process that is already in a cluster stays in that one.

    Raises:
        NotAvailableError: if Ray cannot be imported.
        DeploymentStartupError: if there is no such cluster, or it needs Ray's client (ray://).
    """
    ray = load_library("ray", "ray")
    if (config.address or "").startswith("ray://") or ray.util.client.ray.is_connected():
        raise DeploymentStartupError(
            "Environments cannot be reached by Ray's client (ray://...): run this on a node of the cluster, or submit "
            "it as a job"
        )

    try:
        with _connecting:
            if not ray.is_initialized():
                ray.init(address=config.address, namespace=config.namespace, log_to_driver=False)
    except (ConnectionError, RuntimeError, ValueError, OSError, AssertionError, ray.exceptions.RayError) as error:
        where = config.address or "of RAY_ADDRESS or of this machine"
        raise DeploymentStartupError(f"The Ray cluster {where} cannot be used: {error}") from None
    if (now := membership()) is None:
        raise DeploymentStartupError(f"{LEFT} during the start")
    return now


def new_actor(config: RayDeploymentConfig, spec: dict[str, Any], since: Membership) -> Any:
    """Create an actor and return its handle.

    Ray never restarts the actor or retries its calls. The actor ends with its driver.

    Raises:
        DeploymentStartupError: if Ray rejects the configuration, or this process has left the cluster.
    """
    import ray

    from swerex_c.providers.ray.actor import EnvironmentActor

    if membership() != since:
        raise DeploymentStartupError(f"{LEFT} during the start")
    options: dict[str, Any] = {
        **config.actor_options,
        "num_cpus": config.num_cpus,
        "num_gpus": config.num_gpus,
        "memory": config.memory or None,
        "resources": config.resources or None,
        "runtime_env": config.runtime_env or None,
        "max_restarts": 0,
        "max_task_retries": 0,
        "max_concurrency": 1000,
        "enable_task_events": False,  # keep this load off the head node
    }
    try:
        return ray.remote(EnvironmentActor).options(**options).remote(spec)
    except (ray.exceptions.RayError, ValueError, TypeError, OSError, RuntimeError) as error:
        raise DeploymentStartupError(f"Ray rejects the options of this environment: {error}") from None


def demand(config: RayDeploymentConfig) -> str:
    """Return a sentence with the resources that the environment requests, that nodes have, and that are available."""
    import ray

    wanted = {"CPU": config.num_cpus, "GPU": config.num_gpus, "memory": config.memory or 0, **config.resources}
    has = [
        f"{node['NodeManagerAddress']} ({node['NodeID'][:8]}) has {_amounts(node['Resources'])}"
        for node in ray.nodes()
        if node["Alive"]
    ]
    options = f" with {config.actor_options}" if config.actor_options else ""
    available = _amounts(ray.available_resources())
    return f"It requests {_amounts(wanted)}{options}; {'; '.join(has)}; available: {available}"


def _amounts(resources: dict[str, float]) -> str:
    shown = [
        f"{amount:g} {name}"
        for name, amount in sorted(resources.items())
        if amount and not name.startswith("node:") and name != "object_store_memory"
    ]
    return ", ".join(shown) or "nothing"
