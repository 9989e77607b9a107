"""Pods as deployments: their log, and that nothing is left of them, however they end."""

from __future__ import annotations

import asyncio
import copy
import os
import subprocess
import threading
from typing import Any

import pytest

pytest.importorskip("kubernetes_asyncio")

from swerex_c.exceptions import DeploymentNotStartedError, PodStartupError
from swerex_c.providers import orphans
from swerex_c.providers.kubernetes.deployment import find_owned
from tests.support.kubernetes_server import ApiServer, Pod, credential_program, deployment, server, status
from tests.support.wait import DEADLINE, settle, until_async

__all__ = ["server"]


async def test_logs(server: ApiServer) -> None:
    made = deployment(server)
    await made.start()
    server.logs[str(made.pod_name)] = "1\n2\n3\n"
    assert await made.logs() == "1\n2\n3\n" and await made.logs(tail=1) == "3\n"
    await made.stop()
    with pytest.raises(DeploymentNotStartedError):
        await made.logs()


@pytest.mark.parametrize("stage", ["create", "created", "schedule", "runtime"])
async def test_a_cancelled_start_leaves_no_pod(server: ApiServer, stage: str) -> None:
    reached = threading.Event()

    def note(request: Any, body: Any) -> None:
        if (stage == "create" and body) or (stage == "runtime" and "/exec" in request.path):
            reached.set()
            server.passes.clear()

    async def created() -> None:
        if stage == "created":  # it is made, and nobody knows
            server.passes.clear()
            reached.set()
            await server.passes.wait()

    async def let_pass() -> None:
        server.passes.set()

    async def kubelet(server: ApiServer, pod: Pod) -> None:
        await server.schedule(pod)
        if stage == "schedule":
            reached.set()
        else:
            await server.run(pod)

    server.refusals.append(note)  # type: ignore[arg-type]
    server.after_create = created
    server.kubelet = kubelet
    made = deployment(server)
    starting = asyncio.ensure_future(made.start())
    await until_async(reached.is_set)
    starting.cancel()
    await settle()  # it is under way
    await asyncio.to_thread(server.do, let_pass())
    with pytest.raises(asyncio.CancelledError):
        await starting
    await until_async(lambda: not server.creating)
    assert not server.pods and made.pod_name is None


async def test_a_cancelled_start_without_a_server_has_no_pod_to_delete(
    server: ApiServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swerex_c.providers.kubernetes.client._MORE_PATIENCE", 1.0)
    made = deployment(server)
    made.logger.addHandler(caplog.handler)
    await asyncio.to_thread(server.stop_serving)
    starting = asyncio.ensure_future(made.start())
    await until_async(lambda: made.pod_name is not None)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert "Failed to delete" not in caplog.text


async def test_a_failed_deletion_is_logged(server: ApiServer, caplog: pytest.LogCaptureFixture) -> None:
    made = deployment(server)
    made.logger.addHandler(caplog.handler)
    await made.start()
    name = str(made.pod_name)
    words = 'pods "x" is forbidden: User "a" cannot delete resource "pods"'
    server.refusals.append(
        lambda request, body: status(403, "Forbidden", words) if request.method == "DELETE" else None
    )
    await made.stop()
    assert f"Failed to delete pod {name} in default: {words}. It ends after 86400 seconds" in caplog.text
    assert "`swerex-c prune --cloud kubernetes` deletes it" in caplog.text
    assert server.pods


async def test_a_hanging_credential_program_does_not_block_a_stop(
    server: ApiServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the program that gives them waits for somebody to log in."""
    monkeypatch.setattr("swerex_c.providers.kubernetes.deployment._END_SECONDS", 1.0)
    token = server.directory / "token"
    token.write_text("first")
    server.tokens = {"first"}
    made = deployment(server, kubeconfig=server.write_kubeconfig(exec=credential_program(token)))
    made.logger.addHandler(caplog.handler)
    await made.start()
    token.unlink()
    os.mkfifo(token)
    server.tokens = {"second"}
    await asyncio.wait_for(made.stop(), DEADLINE)
    assert "Failed to delete pod" in caplog.text


async def test_pods_of_dead_processes_are_pruned(server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", server.kubeconfig)
    with subprocess.Popen(["true"]) as dead:
        pass

    async def pruned(namespace: str | None = None, dry_run: bool = False) -> list[orphans.OwnedSandbox]:
        return await asyncio.to_thread(orphans.prune, find_owned(namespace), dry_run=dry_run)

    async with deployment(server) as mine:
        lives = str(mine.pod_name)
        for name in ("left", "copied"):
            pod = server.pods["default", name] = copy.deepcopy(server.pod(lives))
            pod["metadata"]["name"] = name
            pod["metadata"]["annotations"]["swerex_c.pid"] = str(dead.pid)
            pod["metadata"]["labels"]["swerex_c"] = "left"  # the other is somebody's copy of it
        (found,) = await pruned(dry_run=True)
        assert (found.name, found.error) == ("left", None) and len(server.pods) == 3
        assert found.about == "image tests, in namespace default, Running"
        assert not await pruned("other")
        assert [it.name for it in await pruned("default")] == ["left"]
        assert {name for _, name in server.pods} == {"copied", lives}
    server.refusals.append(lambda request, body: status(403, "Forbidden", "no"))
    with pytest.raises(PodStartupError, match="no"):
        await pruned()
