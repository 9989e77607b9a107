"""Pods reached by the real kubectl, whose server is the tests' own."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import pytest

from swerex_c.exceptions import InvalidInputError, SandboxLostError, SessionDiedError
from swerex_c.providers.kubernetes.kubectl import KubectlBackend
from swerex_c.runtime.abstract import (
    BashAction,
    Command,
)
from swerex_c.utils.background import run_blocking
from tests.support import needs
from tests.support.kubernetes_server import ApiServer, kubectl
from tests.support.sandboxes import kubectl_backend, lost, working


def test_of_what_kubectl_says_the_last_line_is_told(tmp_path: Path) -> None:
    client = tmp_path / "kubectl"
    log = 'E1122 19:42:03.825635   18071 memcache.go:265] "Unhandled Error" err="refused"'
    client.write_text(f"#!/bin/sh\necho '{log}' >&2; echo 'The connection was refused' >&2; exit 1\n")
    client.chmod(0o755)
    why = run_blocking(KubectlBackend("one", command=[str(client)]).why_lost(), 60)
    assert why == "The pod one is out of reach, for kubectl says: The connection was refused"


@pytest.mark.parametrize("printed", ["no pod", "{}", "[]", '{"metadata": {}, "spec": {"containers": [{"name": "a"}]}}'])
def test_what_describes_no_pod(tmp_path: Path, printed: str) -> None:
    client = tmp_path / "kubectl"
    client.write_text(f"#!/bin/sh\necho '{printed}'\n")
    client.chmod(0o755)
    backend = KubectlBackend("one", command=[str(client)])
    with pytest.raises(SandboxLostError, match="The pod one is not described as pods are|does not run"):
        run_blocking(backend.open(), 60)
    assert run_blocking(backend.why_lost(), 60)


@pytest.mark.parametrize("how", ["deleted", "container killed", "server gone"])
async def test_a_pod_that_is_lost(how: str) -> None:
    try:
        kubectl()
    except needs.Lacking as lack:
        needs.skip(lack)
    with ApiServer() as cluster:
        pod = cluster.start_pod()
        runtime, waiting = await working(kubectl_backend(cluster, pod), cluster.directory / "begun")
        if how == "deleted":
            words = "is gone: it was deleted"
            await asyncio.to_thread(cluster.delete, pod)
        elif how == "container killed":
            words = "does not run: OOMKilled: its container main has ended with exit code 137"
            ended = {"terminated": {"reason": "OOMKilled", "exitCode": 137}}
            cluster.pod(pod)["status"]["containerStatuses"][0]["state"] = ended
            await asyncio.to_thread(cluster.kill, pod)
        else:
            words = "out of reach, for kubectl says: .*refused"
            await asyncio.to_thread(cluster.stop_serving)
        await lost(waiting)
        assert not await runtime.is_alive(timeout=60)
        with pytest.raises(SandboxLostError, match=words):
            await runtime.execute(Command(command=["true"]))
        with pytest.raises((SandboxLostError, SessionDiedError)):
            await runtime.run_in_session(BashAction(command="true", timeout=60))
        await runtime.close()


def test_which_container_and_whether_it_is_still_the_same(kubernetes: ApiServer) -> None:
    pod = kubernetes.start_pod("first", "second", **{"kubectl.kubernetes.io/default-container": "second"})

    def backend(**more: object) -> KubectlBackend:
        return kubectl_backend(kubernetes, pod, **more)

    plain = backend()
    run_blocking(plain.open(), 60)
    assert plain.container == "second" and run_blocking(plain.why_lost(), 60) is None
    named = backend(container="first", context="tests", namespace="default")
    run_blocking(named.open(), 60)
    assert named.container == "first"
    argv = named.command(["true"], [], False)
    assert subprocess.run(argv, env=named.environment(), capture_output=True, timeout=60).stderr == b""
    states = kubernetes.pod(pod)["status"]["containerStatuses"]
    states[0]["containerID"] = "tests://another"
    assert "restarted" in (run_blocking(named.why_lost(), 60) or "") and run_blocking(plain.why_lost(), 60) is None
    kubernetes.pod(pod)["metadata"]["uid"] = "another"
    assert "was deleted, and is not the one that it was" in (run_blocking(plain.why_lost(), 60) or "")
    states[0]["state"] = {"waiting": {"reason": "CrashLoopBackOff"}}
    for broken, words in (
        (backend(container="first"), "does not run: CrashLoopBackOff"),
        (backend(container="third"), "no container third, only first, second"),
        (kubectl_backend(kubernetes, "nobody"), "is gone"),
        (backend(namespace="elsewhere"), "is gone"),
        (backend(context="none"), "out of reach, for kubectl says: .*context"),
        (backend(command=["no-such-kubectl"]), "no command 'no-such-kubectl'"),
    ):
        with pytest.raises(SandboxLostError, match=words):
            run_blocking(broken.open(), 60)
        why = run_blocking(broken.why_lost(), 60)
        assert why is not None and len(why) < 700
    with pytest.raises(InvalidInputError, match="not a name"):
        KubectlBackend("--all")
    kubernetes.tokens = set()
    try:
        with pytest.raises(SandboxLostError, match="logged in"):
            run_blocking(backend().open(), 60)
    finally:
        kubernetes.tokens = None
    kubernetes.delete(pod)
