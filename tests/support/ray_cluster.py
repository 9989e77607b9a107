"""A Ray cluster of several nodes on this machine, for tests, and looks at what runs here."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable
from typing import Any

from swerex_c.deployment.ray import RayDeployment
from swerex_c.runtime.abstract import CreateBashSessionRequest
from tests.support.needs import mentioning
from tests.support.processes import command_line

os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

Made = Callable[..., RayDeployment]
"""`made(**fields)` is a deployment that is stopped after the test."""

STORE = 80 << 20
"""Bytes of a node's object store: the least that Ray takes."""


class Nodes:
    """`with Nodes() as nodes:` has a head with two cores and connects this process; `add` makes more nodes."""

    def __init__(self) -> None:
        self._others: list[Any] = []

    def __enter__(self) -> Nodes:
        import ray
        from ray.cluster_utils import Cluster

        self.cluster = Cluster(
            initialize_head=True,
            head_node_args={"num_cpus": 2, "include_dashboard": False, "object_store_memory": STORE},
        )
        self.address: str = self.cluster.address
        ray.init(address=self.address, log_to_driver=False)
        return self

    def __exit__(self, *_: object) -> None:
        import ray

        ray.shutdown()
        for node in [*self._others, self.cluster.head_node]:
            with contextlib.suppress(Exception):
                self.cluster.remove_node(node, allow_graceful=False)

    def add(self, **resources: float) -> Any:
        """Add a node with two cores and these resources of its own."""
        node = self.cluster.add_node(num_cpus=2, resources=resources, object_store_memory=STORE)
        self._others.append(node)
        return node


def actors() -> list[str]:
    """Return the ids of the actors that have not ended."""
    from ray._private.state import actors

    return [str(each["ActorID"]) for each in actors().values() if each["State"] != "DEAD"]


def running(text: str) -> list[int]:
    """Return the processes of this machine with this text among their arguments."""
    pids = (int(name) for name in os.listdir("/proc") if name.isdigit())
    return [pid for pid in pids if text in command_line(pid) and pid != os.getpid()]


def with_variable(text: str) -> list[int]:
    """Return the processes of this machine that have this variable and value, but for Ray's idle workers."""
    idle = running("ray::IDLE")
    return [pid for pid in mentioning(text) if pid not in idle]


def new_session(**fields: Any) -> CreateBashSessionRequest:
    """Return a request for a session that has time to start on a busy machine."""
    return CreateBashSessionRequest(**{"startup_timeout": 30.0, **fields})


async def raised(work: Awaitable[Any]) -> BaseException:
    """Return the exception that an awaitable raises."""
    (error,) = await asyncio.gather(work, return_exceptions=True)
    assert isinstance(error, BaseException), f"it gave {error!r}"
    return error
