"""Programs in pods over the API's exec channel: bytes, ends, errors, and connections that break."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kubernetes_asyncio")

import aiohttp
from kubernetes_asyncio import config

from swerex_c.exceptions import InvalidInputError, SandboxLostError, SwerexException
from swerex_c.providers.kubernetes import exec_program
from swerex_c.providers.kubernetes.access import Access
from swerex_c.providers.kubernetes.backend import KubernetesBackend
from swerex_c.providers.kubernetes.cluster import Cluster
from swerex_c.providers.kubernetes.errors import UnreachableError, UnusableConfigError
from swerex_c.providers.kubernetes.exec_program import connect
from swerex_c.runtime.abstract import (
    BashAction,
    Command,
    CreateBashSessionRequest,
)
from swerex_c.runtime.sandbox import SandboxRuntime
from swerex_c.utils import background
from swerex_c.utils.background import run_blocking
from tests.support.direct_programs import collect, run, started
from tests.support.harness import needs
from tests.support.kubernetes_fixtures import server
from tests.support.kubernetes_server import ApiServer, status
from tests.support.sandboxes import lost, working
from tests.support.wait import DEADLINE, until, until_async

__all__ = ["server"]


@pytest.fixture
def pod(server: ApiServer) -> str:
    return server.start_pod()


@pytest.fixture
def backend(server: ApiServer, pod: str) -> Iterator[KubernetesBackend]:
    backend = KubernetesBackend(pod, kubeconfig=server.kubeconfig)
    yield backend
    run_blocking(backend.close())


def test_an_input_that_ends_late_is_not_ended_before(backend: KubernetesBackend) -> None:
    async def work() -> None:
        argv = ["bash", "-c", "read a; echo got $a; read b || echo end"]
        async with started(backend, *argv) as process:
            await process.send(b"one\n")
            assert await process.receive() == (1, b"got one\n")
            await process.end_input()
            outputs = {1: b"", 2: b""}
            assert (await collect(process, outputs), outputs[1]) == (0, b"end\n")

    run_blocking(work(), 60)


@pytest.mark.parametrize("protocol", ["v3.channel.k8s.io", "v4.channel.k8s.io"])
def test_a_server_that_is_too_old_is_told(server: ApiServer, pod: str, protocol: str) -> None:
    server.protocols = (protocol,)
    backend = KubernetesBackend(pod, kubeconfig=server.kubeconfig)
    done = run(backend, "true")
    assert done.returncode == 255 and b"Kubernetes 1.30 or later is needed" in done.stderr
    run_blocking(backend.close())


def test_a_program_that_is_not_there(server: ApiServer, pod: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The runtime's own words arrive, and no exit code is made up."""
    from tests.support.exec_program import ExecProgram

    async def refuse(self: Any) -> None:
        words = 'OCI runtime exec failed: exec: "nope": executable file not found in $PATH'
        await self.end(1, words, {"reason": "InternalError", "details": None})

    monkeypatch.setattr(ExecProgram, "run", refuse)
    backend = KubernetesBackend(pod, kubeconfig=server.kubeconfig)
    done = run(backend, "nope")
    assert done.returncode == 255 and b"executable file not found in $PATH" in done.stderr
    run_blocking(backend.close())


@pytest.mark.parametrize(
    ("code", "reason", "words"),
    [
        (403, "Forbidden", 'pods "x" is forbidden: User "a" cannot create resource "pods/exec"'),
        (404, "NotFound", 'pods "x" not found'),
        (400, "BadRequest", "container y is not valid for pod x"),
        (500, "InternalError", "error dialing backend: no agent available"),
    ],
)
def test_a_refusal_is_told_in_the_servers_words(
    server: ApiServer, pod: str, code: int, reason: str, words: str
) -> None:
    server.refusals.append(lambda request, _: status(code, reason, words) if "/exec" in request.path else None)
    backend = KubernetesBackend(pod, kubeconfig=server.kubeconfig)
    done = run(backend, "true")
    assert (done.returncode, done.stderr.decode()) == (255, f"The pod {pod} starts no program: {words}\n")
    assert server.programs == 0
    run_blocking(backend.close())


def test_a_server_that_is_busy_or_fails_is_asked_again(server: ApiServer, pod: str) -> None:
    answers = [status(429, "TooManyRequests", "slow down"), status(503, "ServiceUnavailable", "not yet")]

    def refuse(request: Any, _: Any) -> Any:
        return answers.pop() if "/exec" in request.path and answers else None

    server.refusals.append(refuse)
    backend = KubernetesBackend(pod, kubeconfig=server.kubeconfig)
    assert run(backend, "echo", "a").stdout == b"a\n" and not answers
    run_blocking(backend.close())


async def test_a_command_is_run_once_when_the_start_of_its_shell_is_repeated(server: ApiServer, pod: str) -> None:
    """When a connection breaks before its answer, a shell may have been started, which has got no command."""
    cuts = [1, 1]

    def cut(request: Any, _: Any) -> None:
        if "/exec" in request.path and cuts:
            cuts.pop()
            request.transport.abort()

    server.refusals.append(cut)  # type: ignore[arg-type]
    runtime = SandboxRuntime(KubernetesBackend(pod, kubeconfig=server.kubeconfig))
    ran = server.directory / "ran"
    await runtime.execute(Command(command=f"echo >>{ran}", shell=True))
    assert ran.read_text() == "\n" and not cuts
    await runtime.close()


def test_an_idle_connection_is_kept_busy(server: ApiServer, pod: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exec_program, "_QUIET_SECONDS", 0.1)
    backend = KubernetesBackend(pod, kubeconfig=server.kubeconfig)
    done = run(backend, "bash", "-c", "sleep 1.5; echo late; exit 4")
    assert (done.stdout, done.returncode) == (b"late\n", 4)
    run_blocking(backend.close())


def test_a_program_that_takes_its_input_late_is_not_given_up(
    server: ApiServer, pod: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it does, the server reads nothing, and so answers no ping."""
    monkeypatch.setattr(exec_program, "_QUIET_SECONDS", 0.1)
    backend = KubernetesBackend(pod, kubeconfig=server.kubeconfig)
    data = os.urandom(3_000_000)
    done = run(backend, "bash", "-c", "sleep 1.5; exec cat", input=data)
    assert (done.stdout == data, done.returncode) == (True, 0)
    run_blocking(backend.close())


def test_a_server_that_says_nothing_any_more_is_given_up(
    server: ApiServer, pod: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.support.exec_program import ExecProgram

    async def silent(self: Any) -> None:
        await asyncio.sleep(1000)

    monkeypatch.setattr(ExecProgram, "run", silent)
    monkeypatch.setattr(exec_program, "_QUIET_SECONDS", 0.1)
    backend = KubernetesBackend(pod, kubeconfig=server.kubeconfig)
    done = run(backend, "true")
    assert done.returncode == 255 and b"broke before its end was told: nothing was heard" in done.stderr
    run_blocking(backend.close())


@pytest.mark.parametrize("how", ["cut", "restart"])
async def test_a_connection_that_breaks_is_told_and_the_pod_goes_on(server: ApiServer, pod: str, how: str) -> None:
    begun = server.directory / "begun"
    runtime, waiting = await working(KubernetesBackend(pod, kubeconfig=server.kubeconfig), begun)
    if how == "cut":
        server.drop()
    else:
        await asyncio.to_thread(server.stop_serving)
        await asyncio.to_thread(server.refuse_one)
        await asyncio.to_thread(server.start_serving)
    await lost(waiting, kind=SwerexException)
    assert (await runtime.execute(Command(command="echo again", shell=True))).stdout == "again\n"
    assert begun.read_text() == "\n\n"  # nothing was run again
    await runtime.create_session(CreateBashSessionRequest(session="new", startup_timeout=60))
    assert (await runtime.run_in_session(BashAction(command="echo 1", session="new"))).output == "1\n"
    await runtime.close()


OOM = {"terminated": {"reason": "OOMKilled", "exitCode": 137}}


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("deleted", "is gone: it was deleted"),
        ("out of memory", r"has ended \(OOMKilled, exit code 137\)"),
        ("evicted", r"has ended \(Evicted: The node was low on resource: memory"),
        ("deadline", r"has ended \(DeadlineExceeded: Pod was active longer"),
        ("node", "The node node-1 of the pod .* is not there: Kubelet stopped posting"),
        ("node gone", "The node node-1 of the pod .* is gone"),
        ("recreated", "was deleted, and is not the one that it was"),
        ("no server", "out of reach, for the API says: .*cannot be reached"),
        ("locked out", "out of reach, for the API says: Unauthorized"),
    ],
)
async def test_a_pod_that_is_lost(server: ApiServer, pod: str, how: str, words: str) -> None:
    backend = KubernetesBackend(pod, kubeconfig=server.kubeconfig)
    runtime, waiting = await working(backend, server.directory / "begun")

    def lose() -> None:
        if how == "deleted":
            server.delete(pod)
        elif how == "out of memory":
            server.do(server.container(server.pod(pod), OOM, "Failed"))
        elif how == "evicted":
            words = "The node was low on resource: memory."
            server.change(pod, phase="Failed", reason="Evicted", message=words, containerStatuses=[])
        elif how == "deadline":
            words = "Pod was active longer than specified deadline"
            server.do(server.container(server.pod(pod), {"terminated": {"reason": "Error", "exitCode": 137}}, "Failed"))
            server.change(pod, reason="DeadlineExceeded", message=words)
        elif how.startswith("node"):
            server.change(pod, conditions=[{"type": "Ready", "status": "False"}])
            unknown = {"type": "Ready", "status": "Unknown", "message": "Kubelet stopped posting node status."}
            words = "error dialing backend: dial tcp 10.0.0.7:10250: i/o timeout"
            server.refusals.append(
                lambda request, _: status(500, "InternalError", words) if "/exec" in request.path else None
            )
            server.nodes = {} if how == "node gone" else {"node-1": {"status": {"conditions": [unknown]}}}
        elif how == "recreated":
            server.pod(pod)["metadata"]["uid"] = "another"
            server.do(server.container(server.pod(pod), server.waiting("ContainerCreating")))
        elif how == "locked out":
            server.tokens = {"new"}
        server.kill(pod)
        server.drop()
        if how == "no server":
            server.stop_serving()

    await asyncio.to_thread(lose)
    await lost(waiting)
    alive = await runtime.is_alive(timeout=30)
    assert not alive
    with pytest.raises(SandboxLostError, match=words):
        await runtime.execute(Command(command=["true"]))
    await runtime.close()


def test_which_container_and_whether_it_is_still_the_same(server: ApiServer) -> None:
    pod = server.start_pod("first", "second", **{"kubectl.kubernetes.io/default-container": "second"})

    def backend(**more: Any) -> KubernetesBackend:
        return KubernetesBackend(more.pop("pod", pod), **{"kubeconfig": server.kubeconfig, **more})

    plain, named = backend(), backend(container="first", context="tests", namespace="default")
    run_blocking(plain.open(), 60)
    run_blocking(named.open(), 60)
    assert (plain.container, named.container, run_blocking(plain.why_lost(), 60)) == ("second", "first", None)
    states = server.pod(pod)["status"]["containerStatuses"]
    states[0]["containerID"] = "test://another"
    assert "restarted" in (run_blocking(named.why_lost(), 60) or "") and run_blocking(plain.why_lost(), 60) is None
    states[0]["state"] = {"waiting": {"reason": "CrashLoopBackOff"}}
    for broken, words in (
        (backend(container="first"), "is not running: CrashLoopBackOff"),
        (backend(container="third"), "no container third, only first, second"),
        (backend(pod="nobody"), "is gone"),
        (backend(context="elsewhere"), "is gone"),
        (backend(context="none"), "cannot be used: .*none"),
        (backend(kubeconfig=str(server.directory / "none")), "There is no kubeconfig at"),
    ):
        with pytest.raises(SandboxLostError, match=words):
            run_blocking(broken.open(), 60)
        lost = run_blocking(broken.why_lost(), 60)
        assert lost is not None and len(lost) < 700
        run_blocking(broken.close())
    for name in ("--all", "a/b", "", "A"):
        with pytest.raises(InvalidInputError, match="not a name"):
            KubernetesBackend(name)
    run_blocking(plain.close())
    run_blocking(named.close())


def test_credentials_that_expire_are_read_again(server: ApiServer, pod: str) -> None:
    """As those that a cloud's program hands out, for some minutes each."""
    program = server.directory / "token"
    program.write_text("first")
    credential = '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"%s"}}'
    server.tokens = {"first"}
    path = server.write_kubeconfig()
    import json

    config = json.loads(Path(path).read_text())
    config["users"][0]["user"] = {
        "exec": {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": "sh",
            "args": ["-c", f"printf '{credential}' \"$(cat {program})\""],
            "interactiveMode": "Never",
        }
    }
    Path(path).write_text(json.dumps(config))
    backend = KubernetesBackend(pod, kubeconfig=path)
    run_blocking(backend.open(), 60)
    assert run(backend, "echo", "1").stdout == b"1\n"
    program.write_text("second\n")
    server.tokens = {"second"}
    assert run(backend, "echo", "2").stdout == b"2\n"
    assert run_blocking(backend.why_lost(), 60) is None
    server.tokens = {"third"}
    assert b"Unauthorized" in run(backend, "true").stderr
    run_blocking(backend.close())


def test_tls_and_its_certificates(tmp_path: Path) -> None:
    import tempfile

    needs("openssl")
    with ApiServer(tls=True) as server:
        pod = server.start_pod()
        before = set(os.listdir(tempfile.gettempdir()))
        backend = KubernetesBackend(pod, kubeconfig=server.kubeconfig)
        run_blocking(backend.open(), 60)
        data = os.urandom(300_000)
        assert run(backend, "cat", input=data).stdout == data
        # As most kubeconfigs have it: the certificate is in the file itself.
        import base64
        import json

        config = json.loads(Path(server.kubeconfig).read_text())
        path = config["clusters"][0]["cluster"].pop("certificate-authority")
        inline = base64.b64encode(Path(path).read_bytes()).decode()
        config["clusters"][0]["cluster"]["certificate-authority-data"] = inline
        other = tmp_path / "inline"
        other.write_text(json.dumps(config))
        for _ in range(2):
            second = KubernetesBackend(pod, kubeconfig=str(other))
            run_blocking(second.open(), 60)
            assert run(second, "cat", input=data).stdout == data
            run_blocking(second.close())
        left = {it for it in set(os.listdir(tempfile.gettempdir())) - before if it.startswith("swerex-c-")}
        assert not left
        del config["clusters"][0]["cluster"]["certificate-authority-data"]
        other.write_text(json.dumps(config))
        third = KubernetesBackend(pod, kubeconfig=str(other))
        with pytest.raises(SandboxLostError, match="CERTIFICATE_VERIFY_FAILED|certificate verify failed"):
            run_blocking(third.open(), 60)
        run_blocking(third.close())
        run_blocking(backend.close())


def test_connections_are_closed_with_their_last_user(server: ApiServer, pod: str) -> None:
    first, second = (KubernetesBackend(pod, kubeconfig=server.kubeconfig) for _ in range(2))
    run_blocking(first.open(), 60)
    run_blocking(second.open(), 60)
    assert first._cluster is second._cluster is not None
    run_blocking(first.close())
    assert run_blocking(second.why_lost(), 60) is None and Cluster._known
    run_blocking(second.close())
    run_blocking(second.close())
    assert not [it for it in Cluster._known.values() if it.access.kubeconfig == server.kubeconfig]


def test_a_program_that_is_closed_is_let_go(server: ApiServer, pod: str) -> None:
    backend = KubernetesBackend(pod, kubeconfig=server.kubeconfig)

    async def work() -> None:
        async with started(backend, "cat"):
            await until_async(lambda: server.programs == 1)
        await until_async(lambda: server.programs == 0)

    run_blocking(work(), 60)
    run_blocking(backend.close())


def test_many_at_once(server: ApiServer, pod: str) -> None:
    """More than the library's pool of connections holds, which are 100."""
    backend = KubernetesBackend(pod, kubeconfig=server.kubeconfig)

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
    run_blocking(backend.close())


def test_a_forked_process_keeps_no_connection_of_its_parents(server: ApiServer, pod: str) -> None:
    """One that outlives its parent would keep what runs in pods, as if somebody still wanted it."""
    backend = KubernetesBackend(pod, kubeconfig=server.kubeconfig)
    run_blocking(backend.open(), 60)
    sleeping = run_blocking(backend.exec(["sleep", "1000"], {}), 60)
    try:
        until(lambda: server.programs)
        assert _connections_to(server.port) >= 2
        child = os.fork()
        if child == 0:
            os._exit(_connections_to(server.port))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert _connections_to(server.port) >= 2 and run(backend, "echo", "a").stdout == b"a\n"
    finally:
        run_blocking(sleeping.close(), 60)
    run_blocking(backend.close())


def _connections_to(port: int) -> int:
    found = 0
    for each in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(each))) as connection:
            found += connection.getpeername()[1:2] == (port,)
    return found


def test_a_forked_process_has_connections_of_its_own(server: ApiServer, pod: str) -> None:
    """Also with what its parent has made; and the parent's connections stay as they were."""
    backend = KubernetesBackend(pod, kubeconfig=server.kubeconfig)
    run_blocking(backend.open(), 60)
    assert run(backend, "echo", "a").stdout == b"a\n"
    child = os.fork()
    if child == 0:
        try:
            fine = run(backend, "echo", "b").stdout == b"b\n" and run_blocking(backend.why_lost(), DEADLINE) is None
            run_blocking(backend.close())
            os._exit(0 if fine else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert run(backend, "echo", "c").stdout == b"c\n"
    assert run_blocking(backend.why_lost(), DEADLINE) is None
    run_blocking(backend.close())


def test_a_program_without_its_terminals_size_is_let_go(
    server: ApiServer, pod: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    abandoned: list[object] = []
    abandon = exec_program.ExecProgram.close

    async def resize(*_: object) -> None:
        raise ConnectionResetError("Cannot write to closing transport")

    async def noted(self: exec_program.ExecProgram) -> None:
        abandoned.append(self)
        await abandon(self)

    monkeypatch.setattr(exec_program.ExecProgram, "resize", resize)
    monkeypatch.setattr(exec_program.ExecProgram, "close", noted)
    backend = KubernetesBackend(pod, kubeconfig=server.kubeconfig)
    with pytest.raises(SandboxLostError, match="closing transport"):
        run_blocking(backend.exec(["cat"], {}, (24, 80)), 60)
    assert len(abandoned) == 1
    run_blocking(backend.close())


@pytest.mark.parametrize("kind", [aiohttp.WSMsgType.PING, None])
async def test_outputs_are_read_while_pings_wait_for_input_to_be_taken(
    kind: aiohttp.WSMsgType | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program may take more input only when its output is read."""
    monkeypatch.setattr(exec_program, "_PING_SECONDS", 0.1, raising=False)

    class Full:
        def __init__(self) -> None:
            self.messages = [aiohttp.WSMessage(aiohttp.WSMsgType.BINARY, b"\1out", None)]
            if kind is not None:
                self.messages.insert(0, aiohttp.WSMessage(kind, b"", None))
            self.quiet = kind is None

        async def receive(self, timeout: float) -> aiohttp.WSMessage:
            if self.quiet:
                self.quiet = False
                raise TimeoutError
            return self.messages.pop(0)

        async def ping(self, data: bytes) -> None:
            await asyncio.Event().wait()

        pong = ping

    program = exec_program.ExecProgram(Full(), "pod")  # type: ignore[arg-type]
    assert await asyncio.wait_for(program.receive(), DEADLINE) == (1, b"out")


async def test_a_flood_of_small_messages_leaves_others_their_turns() -> None:
    """Those that carry nothing too, which nobody behind it hears of."""
    over = time.thread_time() + 0.5

    class Flood:
        async def receive(self, timeout: float) -> aiohttp.WSMessage:
            more = turns <= 3 and time.thread_time() < over
            kind = aiohttp.WSMsgType.BINARY if more else aiohttp.WSMsgType.CLOSED
            return aiohttp.WSMessage(kind, b"", None)

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    turns = 0
    counting = asyncio.ensure_future(count())
    program = exec_program.ExecProgram(Flood(), "pod")  # type: ignore[arg-type]
    assert await program.receive() is None
    counting.cancel()
    assert turns > 3


@pytest.mark.parametrize("how", ["get", "dial"])
def test_what_is_asked_of_a_cluster_that_was_let_go_of_is_refused(server: ApiServer, how: str) -> None:
    async def ask() -> None:
        cluster = await Cluster.shared(Access(kubeconfig=server.kubeconfig))
        await cluster.release()
        if how == "get":
            await cluster.get("default", "pod")
        else:
            await connect(cluster, "default", "pod", "main", ["true"], tty=False, timeout=DEADLINE)

    with pytest.raises(UnusableConfigError, match="were closed"):
        background.run_blocking(ask(), DEADLINE)


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (TimeoutError(), UnreachableError, "did not answer within"),
        (ConnectionResetError("reset"), UnreachableError, "cannot be reached: reset"),
        (aiohttp.ServerDisconnectedError("gone"), UnreachableError, "cannot be reached: gone"),
        (aiohttp.ClientPayloadError("cut"), UnreachableError, "cannot be reached: cut"),
        (config.ConfigException("no token"), UnusableConfigError, "The kubeconfig .* cannot be used: no token"),
        (RuntimeError("Session is closed"), UnusableConfigError, "connections to the cluster were closed"),
        (ZeroDivisionError("ours"), ZeroDivisionError, "ours"),
    ],
)
def test_an_error_of_the_libraries_is_told_alike_whatever_was_asked(
    server: ApiServer, pod: str, monkeypatch: pytest.MonkeyPatch, error: Exception, kind: type[Exception], words: str
) -> None:
    """A request, a watch, and a program; before the answer and within it."""

    class Api:
        def __getattr__(self, name: str) -> Any:
            return self.call

        async def call(self, *args: Any, **kwargs: Any) -> Any:
            raise error

    class Answer:
        status = 200
        content = property(lambda self: self)

        async def read(self) -> bytes:
            raise error

        readline = read

        def release(self) -> None:
            pass

        close = release

    class LateApi(Api):
        async def call(self, *args: Any, **kwargs: Any) -> Any:
            return Answer()

    async def watched(cluster: Cluster) -> None:
        async for _ in cluster.watch("default", "pod", "1", 10.0):
            pass

    async def each() -> list[Exception]:
        cluster = await Cluster.shared(Access(kubeconfig=server.kubeconfig))
        users = cluster._users
        found = []
        try:
            for api in (Api(), LateApi()):
                monkeypatch.setattr(cluster, "request_api", api)
                monkeypatch.setattr(cluster, "socket_api", api)
                work = [cluster.get("default", pod), watched(cluster)]
                if type(api) is Api:
                    asked = {"tty": False, "timeout": 5.0}
                    work.append(connect(cluster, "default", pod, None, ["true"], **asked))  # type: ignore[arg-type]
                for one in work:
                    cluster._users = 0 if isinstance(error, RuntimeError) else users
                    with pytest.raises(type(error) if kind is ZeroDivisionError else kind, match=words) as caught:
                        await one
                    found.append(caught.value)
        finally:
            monkeypatch.undo()
            cluster._users = users
            await cluster.release()
        return found

    found = background.run_blocking(each(), 60)
    assert [type(it) for it in found] == [kind] * 5
    assert all(it is error or it.__cause__ is error for it in found)
