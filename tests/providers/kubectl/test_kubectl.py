"""Pods reached by the real kubectl, whose server is the tests' own."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from swerex_c.exceptions import ConnectionLostError, InvalidInputError, SandboxLostError, SessionDiedError
from swerex_c.models import Command
from swerex_c.providers.kubernetes.kubectl import KubectlBackend
from swerex_c.utils.background import run_blocking
from tests.support import needs
from tests.support.harness import write_script
from tests.support.kubernetes_server import ApiServer, kubectl
from tests.support.sandboxes import kubectl_backend, lost, working
from tests.support.targets import Session

POD = '{"metadata": {}, "spec": {"containers": [%s]}}'


def test_an_error_has_the_last_line_of_kubectl(tmp_path: Path) -> None:
    log = 'E1122 19:42:03.825635   18071 memcache.go:265] "Unhandled Error" err="refused"'
    client = write_script(tmp_path / "kubectl", f"echo '{log}' >&2; echo 'The connection was refused' >&2; exit 1")
    why = run_blocking(KubectlBackend("one", command=[client]).why_lost(), 60)
    assert why == "The pod one is out of reach. kubectl says: The connection was refused"


@pytest.mark.parametrize("printed", ["no", "{}", "[]", *(POD % containers for containers in ("", '{"name": "a"}'))])
def test_an_invalid_description_of_a_pod(tmp_path: Path, printed: str) -> None:
    backend = KubectlBackend("one", command=[write_script(tmp_path / "kubectl", f"echo '{printed}'")])
    with pytest.raises(SandboxLostError, match="The pod one has a description that is not valid|does not run"):
        run_blocking(backend.open(), 60)
    assert run_blocking(backend.why_lost(), 60)


@pytest.mark.parametrize(
    ("lose", "words"),
    [
        (ApiServer.delete, "is gone: it was deleted"),
        (lambda cluster, _: cluster.stop_serving(), "out of reach. kubectl says: .*refused"),
    ],
)
async def test_a_pod_that_is_lost(lose: Callable[[ApiServer, str], object], words: str) -> None:
    with needs.else_skipped():
        kubectl()
    with ApiServer() as cluster:
        pod = cluster.start_pod()
        runtime, waiting = await working(kubectl_backend(cluster, pod), cluster.directory / "begun")
        await asyncio.to_thread(lose, cluster, pod)
        await lost(waiting)
        assert not await runtime.is_alive(timeout=60)
        with pytest.raises(SandboxLostError, match=words):
            await runtime.execute(Command(command=["true"]))
        await runtime.close()


async def test_the_exit_code_that_kubectl_itself_has(kubernetes: ApiServer) -> None:
    """After a lost connection, it is not reported as the command's."""
    pod = kubernetes.start_pod()
    runtime, waiting = await working(kubectl_backend(kubernetes, pod), kubernetes.directory / "begun-lost")
    kubernetes.drop()
    kubernetes.kill(pod)
    await lost(waiting, kind=ConnectionLostError)
    with pytest.raises(SessionDiedError, match="as after a lost connection.*exit code of its command is unknown"):
        await waiting[1]
    session = Session(runtime)
    await session.create()
    said = await session.run("exit 1")
    assert said.exit_code == 1 and "status 1" in said.failure_reason
    await runtime.close()
    kubernetes.delete(pod)


def test_the_selection_of_pod_and_container(kubernetes: ApiServer) -> None:
    pod = kubernetes.start_pod("first", "second", **{"kubectl.kubernetes.io/default-container": "second"})

    def backend(name: str = pod, **more: object) -> KubectlBackend:
        return kubectl_backend(kubernetes, name, **more)

    plain, named = backend(), backend(container="first", context="tests", namespace="default")
    for each, container in ((plain, "second"), (named, "first")):
        run_blocking(each.open(), 60)
        assert each.container == container and run_blocking(each.why_lost(), 60) is None
    argv = named.command(["true"], [], False)
    assert subprocess.run(argv, env=named.environment(), capture_output=True, timeout=60).stderr == b""
    kubernetes.pod(pod)["status"]["containerStatuses"][0]["containerID"] = "tests://another"
    assert "restarted" in (run_blocking(named.why_lost(), 60) or "")
    for broken, words in (
        (backend("nobody"), "is gone"),
        (backend(namespace="elsewhere"), "is gone"),
        (backend(context="none"), "out of reach. kubectl says: .*context"),
        (backend(command=["no-such-kubectl"]), "command 'no-such-kubectl' cannot be run"),
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
