"""Programs in pods over the API's exec channel: bytes, ends, errors, and connections that break."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

pytest.importorskip("kubernetes_asyncio")

import aiohttp

from swerex_c.exceptions import SandboxLostError, SwerexException
from swerex_c.models import BashAction, Command, CreateBashSessionRequest
from swerex_c.providers.kubernetes import backend as backend_module
from swerex_c.providers.kubernetes import client
from swerex_c.providers.kubernetes.backend import ExecProgram, KubernetesBackend
from swerex_c.providers.kubernetes.client import Access, Cluster
from swerex_c.runtime.sandbox import SandboxRuntime
from swerex_c.utils.background import run_blocking
from tests.support import exec_program
from tests.support.direct_programs import run, started
from tests.support.harness import in_forked_child, needs
from tests.support.kubernetes_server import ApiServer, credential_program, server, status
from tests.support.processes import file_of_descriptor
from tests.support.sandboxes import lost, working
from tests.support.server_process import connections_to
from tests.support.wait import DEADLINE, until, until_async

__all__ = ["server"]


@pytest.fixture
def pod(server: ApiServer) -> str:
    return server.start_pod()


@contextlib.contextmanager
def opened(pod: str, kubeconfig: str, container: str = "main") -> Iterator[KubernetesBackend]:
    cluster = run_blocking(Cluster.shared(Access(kubeconfig=kubeconfig)), DEADLINE)
    try:
        backend = KubernetesBackend(cluster, "default", pod, container)
        run_blocking(backend.open(), DEADLINE)
        yield backend
    finally:
        run_blocking(cluster.release(), DEADLINE)


@pytest.fixture
def backend(server: ApiServer, pod: str) -> Iterator[KubernetesBackend]:
    with opened(pod, server.kubeconfig) as backend:
        yield backend


def refuse_exec(server: ApiServer, code: int, reason: str, words: str) -> None:
    server.refusals.append(lambda request, _: status(code, reason, words) if "/exec" in request.path else None)


def test_a_program_that_cannot_start_has_the_message_of_the_runtime(
    backend: KubernetesBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = 'OCI runtime exec failed: exec: "nope": executable file not found in $PATH'

    async def not_there(program: exec_program.ExecProgram) -> None:
        await program.end(1, words, {"reason": "InternalError", "details": None})

    monkeypatch.setattr(exec_program.ExecProgram, "run", not_there)
    done = run(backend, "nope")
    assert done.returncode == 255 and words in done.stderr.decode()


@pytest.mark.parametrize("protocol", ["v3.channel.k8s.io", "v4.channel.k8s.io"])
def test_a_server_without_the_protocol_is_refused(server: ApiServer, backend: KubernetesBackend, protocol: str) -> None:
    server.protocols = (protocol,)
    done = run(backend, "true")
    assert done.returncode == 255 and b"Kubernetes 1.30 or later is needed" in done.stderr


@pytest.mark.parametrize(
    ("code", "reason", "words"),
    [
        (403, "Forbidden", 'pods "x" is forbidden: User "a" cannot create resource "pods/exec"'),
        (400, "BadRequest", "container y is not valid for pod x"),
        (500, "InternalError", "error dialing backend: no agent available"),
    ],
)
def test_a_refusal_has_the_message_of_the_server(
    server: ApiServer, backend: KubernetesBackend, code: int, reason: str, words: str
) -> None:
    refuse_exec(server, code, reason, words)
    done = run(backend, "true")
    assert (done.returncode, done.stderr.decode()) == (255, f"The {backend.name} did not start the program: {words}\n")
    assert server.programs == 0


def test_a_silent_server_times_out(
    server: ApiServer, backend: KubernetesBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "_TIMEOUT", 0.1)
    server.passes.clear()
    words = f"out of reach. The API says: http://127.0.0.1:{server.port} did not answer within 0.1 seconds"
    assert words in (run_blocking(backend.why_lost(), DEADLINE) or "")


async def test_a_command_is_run_once_when_the_start_of_its_shell_is_repeated(
    server: ApiServer, backend: KubernetesBackend
) -> None:
    """When a connection breaks before its answer, a shell may have been started, which has got no command."""
    cuts = [1, 1]

    def cut(request: Any, _: Any) -> None:
        if "/exec" in request.path and cuts:
            cuts.pop()
            request.transport.abort()

    server.refusals.append(cut)  # type: ignore[arg-type]
    runtime = SandboxRuntime(backend)
    ran = server.directory / "ran"
    await runtime.execute(Command(command=f"echo >>{ran}", shell=True))
    assert ran.read_text() == "\n" and not cuts
    await runtime.close()


def test_an_idle_connection_is_kept(backend: KubernetesBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend_module, "_QUIET_SECONDS", 0.1)
    websocket = aiohttp.ClientWebSocketResponse

    async def work() -> int:
        async with started(backend, "bash", "-c", "read a; exit $a") as program:
            receiving = asyncio.ensure_future(program.receive())
            await until_async(lambda: ping.call_count > 5)
            await program.send(b"4\n")
            assert await receiving is None
            return await program.wait()

    with mock.patch.object(websocket, "ping", autospec=True, side_effect=websocket.ping) as ping:
        assert run_blocking(work(), DEADLINE) == 4


@pytest.mark.parametrize("how", ["cut", "restart"])
async def test_a_broken_connection_ends_commands_but_not_the_runtime(
    server: ApiServer, backend: KubernetesBackend, how: str
) -> None:
    begun = server.directory / "begun"
    runtime, waiting = await working(backend, begun)
    if how == "cut":
        server.drop()
    else:
        await asyncio.to_thread(server.restart)
    await lost(waiting, kind=SwerexException)
    assert (await runtime.execute(Command(command="echo again", shell=True))).stdout == "again\n"
    assert begun.read_text() == "\n\n"  # nothing was run again
    await runtime.create_session(CreateBashSessionRequest(session="new", startup_timeout=DEADLINE))
    assert (await runtime.run_in_session(BashAction(command="echo 1", session="new"))).output == "1\n"
    await runtime.close()


def oom(server: ApiServer, pod: str) -> None:
    server.do(server.container(server.pod(pod), {"terminated": {"reason": "OOMKilled", "exitCode": 137}}, "Failed"))


def lose_node(server: ApiServer, pod: str, **nodes: Any) -> None:
    server.do(server.update(server.pod(pod), conditions=[{"type": "Ready", "status": "False"}]))
    refuse_exec(server, 500, "InternalError", "error dialing backend: dial tcp 10.0.0.7:10250: i/o timeout")
    server.nodes = nodes


def lose_nodes_status(server: ApiServer, pod: str) -> None:
    unknown = {"type": "Ready", "status": "Unknown", "message": "Kubelet stopped posting node status."}
    lose_node(server, pod, **{"node-1": {"status": {"conditions": [unknown]}}})


def recreate(server: ApiServer, pod: str) -> None:
    server.pod(pod)["metadata"]["uid"] = "another"
    server.do(server.container(server.pod(pod), server.waiting("ContainerCreating")))


LOSSES: dict[str, tuple[Callable[[ApiServer, str], object], str]] = {
    "deleted": (ApiServer.delete, "is gone: it was deleted"),
    "out of memory": (oom, "does not run: OOMKilled: its container main has ended with exit code 137"),
    "node": (lose_nodes_status, "The node node-1 of the pod .* is not ready: Kubelet stopped posting"),
    "node gone": (lose_node, "The node node-1 of the pod .* is gone"),
    "recreated": (recreate, "was deleted; another pod has its name now"),
    "no server": (lambda server, _: server.stop_serving(), "out of reach. The API says: .*cannot be reached"),
    "locked out": (lambda server, _: setattr(server, "tokens", {"new"}), "The API says: Unauthorized"),
}


@pytest.mark.parametrize("how", LOSSES)
async def test_a_pod_that_is_lost(server: ApiServer, pod: str, backend: KubernetesBackend, how: str) -> None:
    lose, words = LOSSES[how]
    runtime, waiting = await working(backend, server.directory / "begun")
    await asyncio.to_thread(lose, server, pod)
    await asyncio.to_thread(server.kill, pod)
    await asyncio.to_thread(server.drop)
    await lost(waiting)
    assert not await runtime.is_alive(timeout=DEADLINE)
    with pytest.raises(SandboxLostError, match=words):
        await runtime.execute(Command(command=["true"]))
    await runtime.close()


def test_a_container_is_one_that_runs_and_stays_the_same(server: ApiServer) -> None:
    pod = server.start_pod("first", "second")
    first, second = server.pod(pod)["status"]["containerStatuses"]
    first["state"] = server.waiting("CrashLoopBackOff", "x" * 1000)
    with opened(pod, server.kubeconfig, "second") as backend:
        assert run_blocking(backend.why_lost(), DEADLINE) is None
        second["containerID"] = "test://another"
        assert "restarted" in (run_blocking(backend.why_lost(), DEADLINE) or "")
    for name, container, words in (
        (pod, "first", "container first of the pod .* does not run: CrashLoopBackOff"),
        (pod, "third", "no container third, only first, second"),
        ("nobody", "first", "is gone"),
    ):
        with pytest.raises(SandboxLostError, match=words) as caught, opened(name, server.kubeconfig, container):
            pass
        assert len(str(caught.value)) < 700


def test_credentials_that_expire_are_read_again(server: ApiServer, pod: str) -> None:
    """As those that a cloud's program hands out, for some minutes each."""
    token = server.directory / "token"
    token.write_text("first")
    server.tokens = {"first"}
    with opened(pod, server.write_kubeconfig(exec=credential_program(token))) as backend:
        assert run(backend, "echo", "1").stdout == b"1\n"
        token.write_text("second\n")
        server.tokens = {"second"}
        assert run(backend, "echo", "2").stdout == b"2\n"
        assert run_blocking(backend.why_lost(), DEADLINE) is None
        server.tokens = {"third"}
        assert b"Unauthorized" in run(backend, "true").stderr


def test_tls_and_its_certificates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the certificate is in the file itself, as in most kubeconfigs; no copy of it is left or open."""
    needs("openssl")
    data = os.urandom(300_000)
    with ApiServer(tls=True) as server:
        pod = server.start_pod()
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        config = json.loads(Path(server.kubeconfig).read_text())
        cluster = config["clusters"][0]["cluster"]
        inline, none = tmp_path / "inline", tmp_path / "none"
        authority = Path(cluster.pop("certificate-authority")).read_bytes()
        none.write_text(json.dumps(config))
        cluster["certificate-authority-data"] = base64.b64encode(authority).decode()
        inline.write_text(json.dumps(config))
        for kubeconfig in (server.kubeconfig, str(inline), str(inline)):
            with opened(pod, kubeconfig) as backend:
                assert run(backend, "cat", input=data).stdout == data
        assert set(os.listdir(tmp_path)) == {"inline", "none"}
        assert not [it for it in map(file_of_descriptor, os.listdir("/proc/self/fd")) if it.startswith(str(tmp_path))]
        untrusted = pytest.raises(SandboxLostError, match="CERTIFICATE_VERIFY_FAILED|certificate verify failed")
        with untrusted, opened(pod, str(none)):
            pass


def test_connections_are_closed_with_their_last_user(server: ApiServer, pod: str) -> None:
    with opened(pod, server.kubeconfig) as first:
        with opened(pod, server.kubeconfig):
            assert connections_to(server.port) == 1
        assert run_blocking(first.why_lost(), DEADLINE) is None
    until(lambda: connections_to(server.port) == 0)


def test_closing_a_program_ends_it(server: ApiServer, backend: KubernetesBackend) -> None:
    async def work() -> None:
        async with started(backend, "cat"):
            await until_async(lambda: server.programs == 1)
        await until_async(lambda: server.programs == 0)

    run_blocking(work(), DEADLINE)


def test_many_at_once(backend: KubernetesBackend) -> None:
    """More than the library's pool of connections holds, which are 100."""

    async def run_all() -> list[int]:
        programs = await asyncio.gather(*(backend.exec(["bash", "-c", "read a; exit $a"], {}) for _ in range(110)))
        codes = []
        for i, program in enumerate(programs):
            await program.send(b"%d\n" % i)
            assert await program.receive() is None
            codes.append(await program.wait())
            await program.close()
        return codes

    assert run_blocking(run_all(), DEADLINE) == list(range(110))


def test_a_forked_process_has_connections_of_its_own(server: ApiServer, backend: KubernetesBackend) -> None:
    """It keeps none of its parent's, so that what runs in pods ends with the parent; and the parent's stay."""

    def use() -> None:
        assert connections_to(server.port) == 0 and run(backend, "echo", "b").stdout == b"b\n"
        assert run_blocking(backend.why_lost(), DEADLINE) is None

    sleeping = run_blocking(backend.exec(["sleep", "1000"], {}), DEADLINE)
    try:
        until(lambda: server.programs)
        assert connections_to(server.port)
        in_forked_child(use)
        assert connections_to(server.port) and run(backend, "echo", "a").stdout == b"a\n"
        assert run_blocking(backend.why_lost(), DEADLINE) is None
    finally:
        run_blocking(sleeping.close(), DEADLINE)


def message(kind: aiohttp.WSMsgType, data: bytes = b"") -> aiohttp.WSMessage:
    return aiohttp.WSMessage(kind, data, None)


class Messages:
    """A WebSocket with these messages; None is a time without one. Pings and pongs wait behind unread input."""

    def __init__(self, *messages: aiohttp.WSMessage | None) -> None:
        self.messages = iter(messages)
        self.sent: list[str] = []

    async def receive(self, timeout: float) -> aiohttp.WSMessage:
        if (found := next(self.messages)) is None:
            raise TimeoutError
        return found

    async def ping(self) -> None:
        self.sent.append("ping")
        await asyncio.Event().wait()

    async def pong(self, data: bytes) -> None:
        self.sent.append("pong")
        await asyncio.Event().wait()


OUT = message(aiohttp.WSMsgType.BINARY, b"\1out")
SILENCES: dict[str, tuple[list[aiohttp.WSMessage | None], bool, list[str]]] = {
    "once": ([None, OUT], True, ["ping"]),
    "asked": ([message(aiohttp.WSMsgType.PING), OUT], True, ["pong"]),
    "short": ([*[None] * 3, message(aiohttp.WSMsgType.PONG), *[None] * 3, OUT], True, ["ping"] * 6),
    "long": ([None] * 4, False, ["ping"] * 3),
}
"""Messages of a server, whether the output behind them is read, and what the server is sent."""


@pytest.mark.parametrize("name", SILENCES)
async def test_a_server_is_pinged_while_its_program_reads_no_input(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program may take more input only when its output is read, and a server that is silent is given up."""
    monkeypatch.setattr(backend_module, "_PING_SECONDS", 0.01)
    messages, is_read, sent = SILENCES[name]
    socket = Messages(*messages)
    program = ExecProgram(socket, "pod")  # type: ignore[arg-type]
    assert await asyncio.wait_for(program.receive(), DEADLINE) == ((1, b"out") if is_read else None)
    assert socket.sent == sent
    if not is_read:
        with pytest.raises(SandboxLostError, match="before its exit status arrived: .* sent nothing for 60 seconds"):
            await program.wait()


async def test_each_message_leaves_others_a_turn() -> None:
    """One that carries nothing too, which nobody behind it hears of."""
    turn = asyncio.Event()
    asyncio.get_running_loop().call_soon(turn.set)
    socket = Messages(message(aiohttp.WSMsgType.BINARY), message(aiohttp.WSMsgType.CLOSED))
    assert await ExecProgram(socket, "pod").receive() is None  # type: ignore[arg-type]
    assert turn.is_set()
