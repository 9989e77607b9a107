"""What is seen of pods that start, and what must not be missed of it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

pytest.importorskip("kubernetes_asyncio")

from swerex_c.deployment.kubernetes import KubernetesDeployment
from swerex_c.exceptions import PodStartupError
from swerex_c.providers.kubernetes import readiness
from tests.support.kubernetes_fixtures import deployment, server
from tests.support.kubernetes_server import ApiServer, Pod
from tests.support.wait import DEADLINE, until_async

__all__ = ["server"]


@pytest.fixture
def only_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pods are asked for once: what a watch misses is missed."""
    monkeypatch.setattr(readiness, "_WATCH_SECONDS", 1000.0)


async def start_and_stop(made: KubernetesDeployment) -> None:
    await made.start()
    await made.stop()


@pytest.mark.usefixtures("only_watched")
async def test_what_happens_before_the_pod_is_waited_for_is_seen(server: ApiServer) -> None:

    async def late_answer() -> None:
        await until_async(lambda: any(pod["status"].get("phase") == "Running" for pod in server.pods.values()))

    server.after_create = late_answer
    await start_and_stop(deployment(server, startup_timeout=DEADLINE))


def ended(**status: Any) -> Pod:
    metadata = {"name": "p", "uid": "1", "resourceVersion": "7"}
    return {"metadata": metadata, "spec": {"containers": [{"name": "main"}]}, "status": status}


@pytest.mark.parametrize(
    ("status", "cause"),
    [
        ({"phase": "Failed", "reason": "Evicted", "message": "The node was low on memory"}, "evicted"),
        ({"phase": "Running", "containerStatuses": [{"name": "main", "state": {"running": {}}}]}, "deleted"),
    ],
)
async def test_a_pod_that_has_ended_and_is_deleted_at_once(status: dict[str, Any], cause: str) -> None:
    """Why it has ended says more than that it is gone; and what is gone does not run."""

    class Cluster:
        async def get(self, namespace: str, name: str) -> Pod:
            return ended(phase="Pending")

        async def watch(self, *_: object) -> AsyncIterator[tuple[str, Pod]]:
            yield "DELETED", ended(**status)

    wait = readiness.PodWait(Cluster(), "default", "p", "main")  # type: ignore[arg-type]
    with pytest.raises(PodStartupError) as caught:
        await wait.ready(time.monotonic() + 5)
    assert caught.value.cause == cause
