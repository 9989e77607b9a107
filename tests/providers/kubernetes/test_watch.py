"""What is seen of pods that start, and what must not be missed of it."""

from __future__ import annotations

import asyncio
import contextlib
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
    """Pods are not asked for, but at the end of their time: what a watch misses is missed for so long."""
    monkeypatch.setattr(readiness, "_READ_SECONDS", 1000.0)


async def start_and_stop(made: KubernetesDeployment) -> None:
    await made.start()
    await made.stop()


@pytest.mark.usefixtures("only_watched")
async def test_what_happens_before_the_pod_is_waited_for_is_seen(server: ApiServer) -> None:
    """The watch is there already, for another pod."""

    async def never(server: ApiServer, pod: Pod) -> None:
        await server.schedule(pod)

    server.kubelets["never"] = never
    starting = asyncio.ensure_future(deployment(server, image="never").start())
    try:
        await until_async(lambda: server.watching)

        async def late_answer() -> None:
            await asyncio.sleep(1)

        server.after_create = late_answer
        await start_and_stop(deployment(server, startup_timeout=DEADLINE))
    finally:
        starting.cancel()
        await asyncio.wait([starting])


def ended(**status: Any) -> Pod:
    return {"metadata": {"name": "p", "uid": "1"}, "spec": {"containers": [{"name": "main"}]}, "status": status}


@pytest.mark.parametrize(
    ("status", "cause"),
    [
        ({"phase": "Failed", "reason": "Evicted", "message": "The node was low on memory"}, "evicted"),
        ({"phase": "Running", "containerStatuses": [{"name": "main", "state": {"running": {}}}]}, "deleted"),
    ],
)
async def test_a_pod_that_has_ended_and_is_deleted_at_once(
    monkeypatch: pytest.MonkeyPatch, status: dict[str, Any], cause: str
) -> None:
    """Why it has ended says more than that it is gone; and what is gone does not run."""
    wait = readiness.PodWait(None, "default", "p", "main")  # type: ignore[arg-type]
    wait.show(ended(**status))
    wait.show(ended(**status), deleted=True)

    @contextlib.asynccontextmanager
    async def watching(*_: object) -> AsyncIterator[None]:
        yield

    monkeypatch.setattr(readiness, "watching", watching)
    with pytest.raises(PodStartupError) as caught:
        await wait.ready(time.monotonic() + 5)
    assert caught.value.cause == cause
