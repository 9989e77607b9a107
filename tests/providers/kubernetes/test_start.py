"""Pods as deployments: what is asked for, why they do not start, and that nothing is left of them."""

from __future__ import annotations

import asyncio
import datetime
import json
import re
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kubernetes_asyncio")

from swerex_c.deployment.config import KubernetesDeploymentConfig
from swerex_c.deployment.kubernetes import KubernetesDeployment
from swerex_c.exceptions import InvalidInputError, PodStartupError, PodStartupTimeoutError, StartupTimeoutError
from swerex_c.providers.kubernetes import client, pod_spec, readiness
from swerex_c.runtime.abstract import Command
from swerex_c.utils.free_port import find_free_port
from tests.support.harness import needs
from tests.support.kubernetes_server import ApiServer, Pod, deployment, server, status
from tests.support.processes import cpu_seconds
from tests.support.wait import DEADLINE, until_async

__all__ = ["server"]


# What is asked for

FULL: dict[str, Any] = {
    "image": "registry.example:5000/team/Tool_x:1.2@sha256:" + "0" * 64,
    "command": ["bash", "-c", "sleep infinity"],
    "environment": {"A": "1", "T": "ours"},
    "requests": {"cpu": "500m", "memory": "1Gi"},
    "limits": {"memory": "2Gi"},
    "image_pull_policy": "Always",
    "image_pull_secrets": ["registry"],
    "container_name": "work",
    "labels": {"team": "a"},
    "annotations": {"example.org/note": "any text: ü"},
    "node_selector": {"kubernetes.io/arch": "amd64"},
    "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
    "namespace": "other",
    "service_account": "agents",
    "mount_service_account_token": True,
    "runtime_class": "gvisor",
    "time_to_live": 90.4,
    "grace_period": 5,
    "pod_template": {
        "metadata": {"labels": {"team": "template", "more": "x"}, "name": "not-ours"},
        "spec": {
            "restartPolicy": "Always",
            "hostname": "box",
            "securityContext": {"runAsNonRoot": True},
            "volumes": [{"name": "v", "emptyDir": {"sizeLimit": "1Gi"}}],
            "initContainers": [{"name": "first", "image": "i", "command": ["true"]}],
            "tolerations": [{"key": "spot", "operator": "Exists"}],
            "containers": [
                {"name": "side", "image": "s"},
                {
                    "name": "work",
                    "image": "not-ours",
                    "args": ["x"],
                    "env": [{"name": "T", "value": "template"}, {"name": "B", "value": "2"}],
                    "resources": {"limits": {"nvidia.com/gpu": "1"}},
                    "volumeMounts": [{"name": "v", "mountPath": "/v"}],
                },
            ],
        },
    },
}


async def test_every_field_is_in_the_manifest(server: ApiServer) -> None:
    """The server refuses what the library's model of a pod does not know, or knows otherwise."""
    made = deployment(server, **FULL)
    await made.start()
    assert made.pod_name is not None and made.namespace == "other"
    pod = server.pod(made.pod_name, "other")
    spec, metadata = pod["spec"], pod["metadata"]
    work = spec["containers"][1]
    assert [it["name"] for it in spec["containers"]] == ["side", "work"]
    assert (work["image"], work["command"], "args" in work) == (FULL["image"], FULL["command"], False)
    assert {it["name"]: it["value"] for it in work["env"]} == {"A": "1", "T": "ours", "B": "2"}
    assert work["resources"] == {"requests": FULL["requests"], "limits": {"nvidia.com/gpu": "1", "memory": "2Gi"}}
    assert (work["imagePullPolicy"], work["volumeMounts"]) == ("Always", [{"name": "v", "mountPath": "/v"}])
    assert spec["restartPolicy"] == "Never" and spec["automountServiceAccountToken"] is True
    assert (spec["activeDeadlineSeconds"], spec["serviceAccountName"], spec["runtimeClassName"]) == (
        90,
        "agents",
        "gvisor",
    )
    assert [it["key"] for it in spec["tolerations"]] == ["spot", "gpu"]
    assert (spec["imagePullSecrets"], spec["hostname"]) == ([{"name": "registry"}], "box")
    assert spec["nodeSelector"] == FULL["node_selector"] and spec["initContainers"][0]["name"] == "first"
    assert metadata["name"].startswith("tool-x-1-2-") and metadata["name"] == metadata["labels"]["swerex_c"]
    assert (metadata["labels"]["team"], metadata["labels"]["more"]) == ("a", "x")
    assert metadata["annotations"]["example.org/note"] == "any text: ü"
    answer = await made.runtime.execute(Command(command="echo $T", shell=True))
    assert answer.stdout == "ours\n"
    await made.stop()
    assert server.pod(metadata["name"], "other")["metadata"]["deletionTimestamp"]  # it has its 5 seconds


def test_default_manifest() -> None:
    spec = pod_spec.manifest(KubernetesDeploymentConfig(), "x")["spec"]
    (container,) = spec.pop("containers")
    assert spec == {"restartPolicy": "Never", "automountServiceAccountToken": False, "activeDeadlineSeconds": 86400}
    assert set(container) == {"name", "image", "command"}


def test_templates_from_files_and_invalid_ones(tmp_path: Path) -> None:
    file = tmp_path / "pod.yaml"
    file.write_text("apiVersion: v1\nkind: Pod\nspec:\n  priorityClassName: low\n")
    config = KubernetesDeploymentConfig(pod_template=str(file))
    assert pod_spec.manifest(config, "x")["spec"]["priorityClassName"] == "low"
    template: dict[str, Any] = {"spec": {"containers": [{"name": "main"}]}}
    pod_spec.manifest(KubernetesDeploymentConfig(pod_template=template), "x")
    assert template == {"spec": {"containers": [{"name": "main"}]}}  # the caller's own stays as it is
    for wrong in (
        {"kind": "Deployment"},
        {"template": {}},
        {"spec": []},
        {"spec": {"containers": [{}]}},
        {"spec": {"containers": 5}},
        {"metadata": {"labels": [1]}},
        {"metadata": {"annotations": {"day": datetime.date(2024, 1, 1)}}},
        "a\0b",
        str(tmp_path / "none"),
    ):
        with pytest.raises(InvalidInputError):
            pod_spec.manifest(KubernetesDeploymentConfig(pod_template=wrong), "x")
    for field in ({"time_to_live": 0.5}, {"grace_period": -1}, {"nodeselector": {}}):
        with pytest.raises(ValueError):
            KubernetesDeploymentConfig(**field)


@pytest.mark.parametrize("image", ["", "a", "UPPER/Case:Tag", "x" * 300, "-._", "reg:5000/a/b@sha256:abc"])
def test_pod_names_are_valid_and_unique(image: str) -> None:
    names = {pod_spec.name_for(image) for _ in range(50)}
    assert len(names) == 50
    assert all(re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", it) for it in names)


def test_the_default_command_sleeps_and_ends_on_sigterm() -> None:
    """With nothing but bash, and without a standard input."""
    bash = needs("bash")
    with subprocess.Popen([bash, "-c", pod_spec._WAIT], stdin=subprocess.DEVNULL, env={"PATH": ""}) as waiting:
        subprocess.run([bash, "-c", "for ((i = 0; i < 300000; i++)); do :; done"], check=True)  # which takes a while
        assert waiting.poll() is None and cpu_seconds(waiting.pid) < 0.2
        waiting.terminate()
        assert waiting.wait(20) == 0


# Why it does not start


async def starts(server: ApiServer) -> None:
    """Start a deployment, and stop it."""
    async with deployment(server):
        pass


async def fails(
    server: ApiServer, words: str, kind: type[PodStartupError] = PodStartupError, **fields: Any
) -> PodStartupError:
    """Return the error of a start, after which there is no pod."""
    with pytest.raises(PodStartupError, match=words) as caught:
        await deployment(server, **fields).start()
    assert type(caught.value) is kind and not server.pods
    return caught.value


def scripted(*states: dict[str, Any], **status: Any) -> Any:
    """Return a kubelet that shows states of the container, and then a status of the pod."""

    async def kubelet(server: ApiServer, pod: Pod) -> None:
        await server.schedule(pod)
        for state in states:
            await server.container(pod, state, status.get("phase", "Pending"))
        if status:
            await server.update(pod, **status)

    return kubelet


wait = ApiServer.waiting

PULL = 'failed to pull and unpack image "x": docker.io/x: not found: manifest unknown'
NO_BASH = 'failed to create shim task: exec: "bash": executable file not found in $PATH'


def exited(code: int, reason: str, **more: str) -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "reason": reason, **more}}


def failed(reason: str, message: str) -> Any:
    return scripted(phase="Failed", reason=reason, message=message)


NEVER: dict[str, tuple[Any, str, str, str, int | None]] = {
    "pull": (
        scripted(wait("ErrImagePull", PULL), wait("ImagePullBackOff", 'Back-off pulling image "x"')),
        "image", "ErrImagePull|ImagePullBackOff", "manifest unknown", None,
    ),
    "pull, seen late": (
        scripted(wait("ImagePullBackOff", 'Back-off pulling image "tests"')),
        "image", "ImagePullBackOff", "Back-off.*: Failed to pull image.*pull access denied", None,
    ),
    "name": (
        scripted(wait("InvalidImageName", "couldn't parse x")), "image", "InvalidImageName", "couldn't parse", None
    ),
    "never": (scripted(wait("ErrImageNeverPull", "not present")), "image", "ErrImageNeverPull", "not present", None),
    "secret": (
        scripted(wait("CreateContainerConfigError", 'secret "s" not found')),
        "configuration", "CreateContainerConfigError", 'secret "s" not found', None,
    ),
    "bash": (
        scripted(exited(128, "StartError", message=NO_BASH), phase="Failed"),
        "command", "StartError", "executable file not found", 128,
    ),
    "cri-o": (
        scripted(wait("CreateContainerError", NO_BASH)), "command", "CreateContainerError", "executable file", None
    ),
    "again": (
        scripted(initContainerStatuses=[{"name": "first", "state": wait("CrashLoopBackOff", "back-off 10s restarting"),
                                         "lastState": exited(2, "Error")}]),
        "command", "CrashLoopBackOff", "CrashLoopBackOff: its container first.*code 2\nIts last output:\nline 80\n", 2,
    ),
    "exit": (scripted(exited(3, "Error"), phase="Failed"), "command", "Error", "has ended with exit code 3", 3),
    "done": (scripted(exited(0, "Completed"), phase="Succeeded"), "command", "Completed", "exit code 0", 0),
    "oom": (scripted(exited(137, "OOMKilled"), phase="Failed"), "out-of-memory", "OOMKilled", "exit code 137", 137),
    "evicted": (failed("Evicted", "The node was low on resource: memory."), "evicted", "Evicted", "low on", None),
    "node": (failed("NodeLost", "Node node-1 is unresponsive"), "node", "NodeLost", "is unresponsive", None),
    "full": (failed("OutOfmemory", "Node didn't have enough resource"), "node", "OutOfmemory", "enough", None),
    "deadline": (failed("DeadlineExceeded", "Pod was active longer"), "deadline", "DeadlineExceeded", "longer", None),
}  # fmt: skip


@pytest.mark.parametrize("name", NEVER)
async def test_a_final_failure_has_its_cause(server: ApiServer, name: str) -> None:
    server.kubelet, cause, reason, words, code = NEVER[name]
    server.logs[""] = "".join(f"line {i}\n" for i in range(100))
    if name == "pull, seen late":
        server.note("Failed", 'Failed to pull image "tests": pull access denied, repository does not exist')
    error = await fails(server, words)
    assert (error.cause, error.exit_code) == (cause, code) and re.fullmatch(reason, error.reason)
    if cause in ("command", "out-of-memory"):
        assert error.log.splitlines() == [f"line {i}" for i in range(80, 100)]


async def test_an_error_has_the_end_of_a_long_line(server: ApiServer) -> None:
    server.kubelet = scripted(exited(3, "Error"), phase="Failed")
    server.logs[""] = "x" * 1_000_000 + "why"
    error = await fails(server, "xwhy$")
    assert error.log.endswith("xwhy") and len(str(error)) < 30_000


async def test_a_temporary_failure_is_waited_for(server: ApiServer) -> None:
    """A registry that is slow, a secret that is on its way, a node that is about to come."""

    async def kubelet(server: ApiServer, pod: Pod) -> None:
        await server.update(pod, conditions=[{**UNSCHEDULABLE, "message": "0/3 nodes"}])
        await server.until_told()
        await server.schedule(pod)
        for state in (
            wait("ErrImagePull", "toomanyrequests: rate limit"),
            wait("ImagePullBackOff", "Back-off"),
            wait("CreateContainerConfigError", "failed to sync configmap cache: timed out waiting for the condition"),
        ):
            await server.container(pod, state)
            await server.until_told()
        await server.run(pod)

    server.kubelet = kubelet
    await starts(server)


UNSCHEDULABLE = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
MOUNT = 'MountVolume.SetUp failed for volume "v": secret "s" not found'
LATE: dict[str, tuple[Any, str, str]] = {
    "unschedulable": (
        scripted(conditions=[{**UNSCHEDULABLE, "message": "0/3 nodes are available: 3 Insufficient cpu."}]),
        "unschedulable", r"Unschedulable: 0/3 nodes are available: 3 Insufficient cpu",
    ),
    "pull": (
        scripted(wait("ErrImagePull", "dial tcp: i/o timeout"), wait("ImagePullBackOff", 'Back-off pulling image "x"')),
        "image", r'ImagePullBackOff: Back-off pulling image "x": .*dial tcp: i/o timeout',
    ),
    "volume": (scripted(), "volume", f"FailedMount: {MOUNT}"),
    "nothing": (scripted(), "unknown", "has not been started yet"),
}  # fmt: skip


@pytest.mark.parametrize("name", LATE)
async def test_a_timeout_has_its_cause(server: ApiServer, name: str) -> None:
    server.kubelet, cause, words = LATE[name]
    if name == "volume":
        server.note("FailedMount", MOUNT)
    error = await fails(server, words, PodStartupTimeoutError, startup_timeout=4.0)
    assert error.cause == cause and isinstance(error, StartupTimeoutError)


async def test_a_failing_registry_is_given_up(server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "_PERSISTS_SECONDS", 0.3)
    monkeypatch.setattr(readiness, "_WATCH_SECONDS", 0.1)
    server.kubelet = scripted(wait("ErrImagePull", "dial tcp: i/o timeout"))
    assert (await fails(server, "i/o timeout")).cause == "image"


REFUSALS = [
    (403, "Forbidden", 'pods "x" is forbidden: exceeded quota: q, requested: pods=1, used: pods=4, limited: pods=4',
     "quota"),
    (403, "Forbidden", 'pods is forbidden: User "a" cannot create resource "pods" in API group ""', "forbidden"),
    (403, "Forbidden", 'pods "x" is forbidden: error looking up service account a/b: serviceaccount "b" not found',
     "forbidden"),
    (403, "Forbidden", 'pods "x" is forbidden: violates PodSecurity "restricted:latest"', "forbidden"),
    (400, "BadRequest", 'admission webhook "v.example" denied the request: no tags', "refused"),
    (422, "Invalid", 'Pod "x" is invalid: spec.containers[0].resources.requests: must be less than limit', "refused"),
    (403, "Forbidden", 'unable to create new content in namespace a because it is being terminated', "namespace"),
    (404, "NotFound", 'namespaces "none" not found', "namespace"),
    (401, "Unauthorized", "Unauthorized", "credentials"),
]  # fmt: skip


@pytest.mark.parametrize(("code", "reason", "words", "cause"), REFUSALS)
async def test_a_refused_creation(server: ApiServer, code: int, reason: str, words: str, cause: str) -> None:
    server.refusals.append(lambda request, body: status(code, reason, words) if body else None)
    error = await fails(server, re.escape(words))
    assert (error.cause, error.reason, "have expired" in str(error)) == (cause, reason, code == 401)
    assert not [it for it in server.asked if not it.startswith("POST")]  # nothing is waited for, nothing is deleted


async def test_a_creation_is_repeated_while_the_server_is_busy(server: ApiServer) -> None:
    """Also one whose answer was lost after it had made the pod."""
    answers = [
        status(409, "Conflict", 'Operation cannot be fulfilled on resourcequotas "q": the object has been modified'),
        status(429, "TooManyRequests", "slow down", **{"Retry-After": "1"}),
    ]
    server.refusals.append(lambda request, body: answers.pop() if body and answers else None)
    lost = [True]

    async def lose() -> None:
        if lost.pop() if lost else False:
            raise RuntimeError("lost")

    server.after_create = lose
    made = deployment(server)
    await made.start()
    assert len(server.pods) == 1 and not answers and not lost
    await made.stop()
    assert not server.pods


async def test_unusable_kubeconfigs(server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_MORE_PATIENCE", 0.5)
    config = json.loads(Path(server.kubeconfig).read_text())
    path = tmp_path / "config"
    for address in (f"http://127.0.0.1:{find_free_port()}", "http://a..b", "http://a:99999", "http://[::1"):
        config["clusters"][0]["cluster"]["server"] = address
        path.write_text(json.dumps(config))
        error = await fails(server, "Cannot create the pod tests-.*: http.* cannot be reached", kubeconfig=str(path))
        assert error.cause == "unreachable"
    for text in ("", "[]", "a: [", "{}", '{"current-context": "x", "contexts": [], "clusters": []}'):
        path.write_text(text)
        assert (await fails(server, "cannot be used", kubeconfig=str(path))).cause == "credentials"
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    await fails(server, "There is no kubeconfig", kubeconfig=None)
    await fails(server, "service account cannot be used", kubeconfig=None, in_cluster=True)
    monkeypatch.setenv("KUBECONFIG", server.kubeconfig)
    await fails(server, "cannot be used: .*none", kubeconfig=None, context="none")
    async with KubernetesDeployment(image="tests", context="elsewhere") as made:
        assert made.namespace == "other"


async def test_the_service_account_of_a_pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the token of the pod's own service account, which its node renews, and in the pod's namespace."""
    from kubernetes_asyncio.config import incluster_config

    needs("openssl")
    with ApiServer(tls=True) as server:
        token, server.tokens = tmp_path / "token", {"first"}
        token.write_text("first\n")
        (tmp_path / "namespace").write_text("other")
        monkeypatch.setattr(client, "_SERVICE_ACCOUNT", tmp_path)
        monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(token))
        monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(server.authority))
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(server.port))
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.delenv("KUBECONFIG", raising=False)
        made = KubernetesDeployment(image="tests")
        await made.start()
        assert made.namespace == "other" and list(server.pods) == [("other", made.pod_name)]
        token.write_text("second")
        server.tokens = {"second"}
        assert (await made.runtime.execute(Command(command="echo 1", shell=True))).stdout == "1\n"
        await made.stop()
        assert not server.pods


# The watch


@pytest.mark.parametrize("how", ["silent", "forbidden", "restart", "too old"])
async def test_a_pod_whose_watch_fails_is_read(server: ApiServer, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    go = threading.Event()

    async def kubelet(server: ApiServer, pod: Pod) -> None:
        await server.schedule(pod)
        await until_async(go.is_set)
        if how != "too old":
            await server.run(pod)
            return
        names = [{"name": "main", "state": {"running": {}}, "containerID": "x"}]
        pod["status"] = {**pod["status"], "phase": "Running", "containerStatuses": names}  # which nobody is told
        (server.directory / pod["metadata"]["name"]).mkdir()
        await server.forget_history()

    def refuse(request: Any, body: Any) -> Any:
        words = 'pods is forbidden: User "a" cannot list resource "pods"'
        return status(403, "Forbidden", words) if request.path.endswith("/pods") and not body else None

    server.kubelet = kubelet
    if how in ("silent", "too old"):
        server.silent_watch = how == "silent"
        monkeypatch.setattr(readiness, "_WATCH_SECONDS", 0.5 if how == "silent" else 1000.0)
    elif how == "forbidden":
        server.refusals.append(refuse)
    starting = asyncio.ensure_future(starts(server))
    await until_async(lambda: server.asked.count("GET /api/v1/namespaces/default/pods"))  # a watch
    if how in ("restart", "too old"):
        await until_async(lambda: server.watching)
    if how == "restart":
        await asyncio.to_thread(server.restart)
    go.set()
    await asyncio.wait_for(starting, DEADLINE)


LAST: list[dict[str, Any]] = [
    {},
    {"phase": "Failed", "reason": "Evicted", "message": "The node was low on memory"},
    {"phase": "Running", "containerStatuses": [{"name": "main", "state": {"running": {}}}]},
]


@pytest.mark.parametrize("last", LAST)
async def test_a_pod_that_is_deleted_while_it_starts(server: ApiServer, last: dict[str, Any]) -> None:
    """Why it has ended says more than that it is gone; and what is gone does not run."""

    async def kubelet(server: ApiServer, pod: Pod) -> None:
        await server.schedule(pod)
        await until_async(lambda: server.watching)
        pod["status"] |= last
        await server._remove("default", pod["metadata"]["name"])

    server.kubelet = kubelet
    cause, words = ("evicted", "low on memory") if "reason" in last else ("deleted", "it was deleted")
    assert (await fails(server, words)).cause == cause
