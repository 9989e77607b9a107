"""Every kind of runtime and deployment that the contracts in tests/contracts are asked of, as the fixture `target`.

A contract uses the public API only. A target whose engine this machine lacks is skipped; SWX_MUST=1 makes it an error.
"""

from __future__ import annotations

import asyncio
import importlib.util
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from swerex_c import RemoteRuntime
from swerex_c.deployment.abstract import AbstractDeployment
from swerex_c.exceptions import SwerexException
from swerex_c.models import Command, CommandResponse
from swerex_c.runtime.abstract import AbstractRuntime
from tests.support import images, needs
from tests.support.results import WrongAnswer
from tests.support.session import Session
from tests.support.wait import DEADLINE, until_async


@dataclass
class Target:
    """A started runtime, and how to make another deployment of its kind.

    Args:
        root: directory of the sandbox in which a case may create new names.
        make: makes a deployment that is not started; None if no deployment leads to this runtime.
        left: names the sandboxes that the provider has.
        lose: ends the sandbox of such a name.
        live: whether streams yield output before the command ends.
        fake: whether sandboxes are played on this machine, where a process may leave them.
        patience: timeout of a command.
        variables: what a process's environment needs for its deployments to be of this kind, besides this process's.
    """

    name: str
    runtime: AbstractRuntime
    root: str
    make: Callable[[], AbstractDeployment] | None = None
    left: Callable[[], list[str]] = list
    lose: Callable[[str], object] | None = None
    live: bool = True
    fake: bool = False
    patience: float = DEADLINE
    variables: dict[str, str] = field(default_factory=dict)

    def new(self) -> str:
        """Return a path of the sandbox at which nothing exists."""
        return f"{self.root}/{token()}"

    async def execute(self, command: str | list[str], **fields: Any) -> CommandResponse:
        """Run a command outside of sessions; text is for the shell."""
        fields = {"shell": isinstance(command, str), "timeout": self.patience, **fields}
        return await self.runtime.execute(Command(command=command, **fields))

    async def says(self, command: str | list[str], **fields: Any) -> str:
        """Return the standard output of a command that succeeds and prints no error."""
        answer = await self.execute(command, **fields)
        if answer.exit_code != 0 or answer.stderr:
            raise WrongAnswer(f"{command!r:.200} gave {answer!r:.2000}")
        return answer.stdout

    async def sleeping(self, number: str) -> int:
        """Count the processes `sleep NUMBER` of the sandbox."""
        return int(await self.says(["bash", "-c", _COUNT, "bash", number]))

    async def end(self, number: str) -> None:
        """Kill the processes `sleep NUMBER` of the sandbox, if it is a played one, and wait until none is there."""
        if self.fake:
            await self.execute(["bash", "-c", _COUNT.replace("((n += 1))", "kill -9 ${p//[^0-9]}"), "bash", number])
        await self.until_sleeping(number, 0)

    async def until_sleeping(self, number: str, count: int) -> None:
        await until_async(lambda: self.is_sleeping(number, count))

    async def is_sleeping(self, number: str, count: int) -> bool:
        return await self.sleeping(number) == count


_COUNT = """n=0
for p in /proc/[1-9]*/cmdline; do
    w=()
    { mapfile -d '' -t w <"$p"; } 2>/dev/null
    [[ ${w[0]##*/} == sleep && ${w[1]} == "$1" || ${w[1]} == sleep && ${w[2]} == "$1" ]] && ((n += 1))
done
echo $n"""


def token() -> str:
    """Return letters that nothing else has in its name."""
    return secrets.token_hex(6)


def seconds() -> str:
    """Return a number of seconds that no other process sleeps for."""
    return f"86{secrets.randbelow(10**8):08d}"


# ---- the targets ----------------------------------------------------------------------------------------------------

Get = Callable[[str], Any]
"""`request.getfixturevalue`."""

_KINDS: dict[str, tuple[Callable[[Get], Iterator[Target]], list[pytest.MarkDecorator]]] = {}
ALL: list[str] = []
"""All targets that any case may be asked of, SWE-ReX among them, which is asked only where a case says so."""

DEPLOYMENTS: list[str] = []
"""The targets that a deployment leads to."""

LOST: list[str] = []
"""Those of them whose sandbox can be ended by others than this process."""


def _kind(
    name: str, *marks: pytest.MarkDecorator, deployment: bool = True, lost: bool = False, named: bool = False
) -> Callable[[Any], None]:
    def register(begin: Callable[[Get], Iterator[Target]]) -> None:
        if not named:  # else only the cases that name it are asked of it
            ALL.append(name)
        _KINDS[name] = begin, [pytest.mark.xdist_group(f"target-{name}"), *marks]
        if deployment:
            DEPLOYMENTS.append(name)
        if lost:
            LOST.append(name)

    return register


SERVER = pytest.mark.needs(name="server")
"""Of the targets that the gate asks in a step of their own, so that the README's tests take less time."""


def _engine(name: str, **more: Any) -> Callable[[Any], None]:
    """Register a target that needs more than the README's tests do."""
    return _kind(name, pytest.mark.needs(name=name), **more)


@contextmanager
def running(deployment: AbstractDeployment) -> Iterator[AbstractRuntime]:
    """Start a deployment for cases whose loops are other ones."""
    asyncio.run(deployment.start())
    try:
        yield deployment.runtime
    finally:
        asyncio.run(deployment.stop())


def _started(name: str, make: Callable[[], AbstractDeployment], root: str | Path, **fields: Any) -> Iterator[Target]:
    with running(make()) as runtime:
        yield Target(name, runtime, str(root), make, **fields)


def _directory(get: Get) -> Path:
    """Make a directory for one target."""
    path: Path = get("tmp_path_factory").mktemp("target")
    return path


# On this machine


@_kind("local")
def _local(get: Get) -> Iterator[Target]:
    from swerex_c import LocalDeployment

    yield from _started("local", LocalDeployment, _directory(get))


@_engine("isolated")
def _isolated(get: Get) -> Iterator[Target]:
    from swerex_c.deployment.config import IsolationConfig
    from swerex_c.deployment.local import LocalDeployment

    get("bwrap")
    root = str(_directory(get))
    view = IsolationConfig(writable=[root], directory=root)
    yield from _started("isolated", lambda: LocalDeployment(isolation=view, startup_timeout=DEADLINE), root)


def _here(name: str, root: Path, **variables: str) -> Iterator[Target]:
    """This machine as a sandbox that client programs reach."""
    from swerex_c.runtime.sandbox import SandboxRuntime
    from tests.support.local_backend import Here

    runtime = SandboxRuntime(Here(**variables))
    asyncio.run(runtime.open())
    yield Target(name, runtime, str(root))
    asyncio.run(runtime.close())


@_kind("cat", SERVER, deployment=False, named=True)
def _cat(get: Get) -> Iterator[Target]:
    """A sandbox whose loaders run many scripts, which only commands are asked of."""
    yield from _here("cat", _directory(get))


@_kind("no-cat", SERVER, deployment=False, named=True)
def _no_cat(get: Get) -> Iterator[Target]:
    """A sandbox whose loaders find no cat and run one script each, which only commands are asked of."""
    from swerex_c.sandbox import loader
    from tests.support.local_backend import NO_CAT

    with mock.patch.object(loader, "_LOADER", loader._LOADER.replace(*NO_CAT)):
        for target in _here("no-cat", _directory(get)):
            assert not any(it.reusable for it in target.runtime.sandbox._shells._idle)  # type: ignore[attr-defined]
            yield target


@_kind("no-tar", SERVER, deployment=False, named=True)
def _no_tar(get: Get) -> Iterator[Target]:
    """A sandbox that has no tar, which only files are asked of."""
    from swerex_c.sandbox import file_scripts

    programs = _directory(get)
    for program in Path("/usr/bin").iterdir():
        if program.name not in ("tar", "busybox"):
            (programs / program.name).symlink_to(program)
    with mock.patch.object(file_scripts, "_PATH", str(programs)):
        yield from _here("no-tar", _directory(get), PATH=str(programs))


# Our server


@_kind("frames", SERVER)
def _frames(get: Get) -> Iterator[Target]:
    """Each deployment has a server of its own, since one that stops ends all that its server runs."""
    from swerex_c import RemoteDeployment
    from tests.support.server_process import KEY, serving

    directory = _directory(get)
    with ExitStack() as servers:

        def make() -> RemoteDeployment:
            server = servers.enter_context(serving(directory / f"log-{token()}"))
            return RemoteDeployment(auth_token=KEY, host=server.url, timeout=DEADLINE)

        yield from _started("frames", make, directory)


@_kind("json", SERVER, deployment=False)
def _json(get: Get) -> Iterator[Target]:
    yield from _served(get, "json", live=False, wire="json")


@_kind("unix", pytest.mark.slow, deployment=False)
def _unix(get: Get) -> Iterator[Target]:
    yield from _served(get, "unix")


def _served(get: Get, name: str, live: bool = True, **fields: Any) -> Iterator[Target]:
    from tests.support.server_process import KEY, serving

    directory = _directory(get)
    socket = f"/tmp/swx-{token()}"  # a socket's path has at most 107 bytes
    with serving(directory / "log", *(["--unix", socket] if name == "unix" else [])) as server:
        host = f"unix://{socket}" if name == "unix" else server.url
        yield from _remote(name, directory, live, auth_token=KEY, host=host, **fields)


def _remote(
    name: str, directory: Path, live: bool = True, patience: float = DEADLINE, **fields: Any
) -> Iterator[Target]:
    runtime = RemoteRuntime(timeout=DEADLINE, **fields)
    yield Target(name, runtime, str(directory), live=live, patience=patience)
    asyncio.run(runtime.close())


@_kind("stdio", pytest.mark.slow, deployment=False)
def _stdio(get: Get) -> Iterator[Target]:
    from tests.support.server_process import REMOTE

    yield from _remote("stdio", _directory(get), auth_token="", command=[*REMOTE, "--stdio"])


@_engine("original", deployment=False)
def _original(get: Get) -> Iterator[Target]:
    from tests.support.server_process import KEY, serving_original

    directory = _directory(get)
    with serving_original(directory / "log") as server:
        yield from _remote("original", directory, False, 5.0, auth_token=KEY, host=server.url, wire="json")


# Engines and hosts


@_engine("docker", lost=True)
def _docker(get: Get) -> Iterator[Target]:
    yield from _docker_containers(get, "docker", image=get("bash_min"))


@_engine("docker-server", lost=True)
def _docker_server(get: Get) -> Iterator[Target]:
    fields = {"image": get("debian_py"), "server": True, "docker_args": ["--network", "host"]}
    yield from _docker_containers(get, "docker-server", **fields)


@_engine("podman", lost=True)
def _podman(get: Get) -> Iterator[Target]:
    podman = get("podman")
    fields = {"image": images.provide(podman.run, "bash-min"), "docker_args": ["--network", "none", "--ulimit", "host"]}
    with pytest.MonkeyPatch.context() as patch:
        podman.lead(patch)
        yield from _containers("podman", podman.run, container_runtime="podman", **fields)


def _docker_containers(get: Get, name: str, **fields: Any) -> Iterator[Target]:
    engine = get("docker")
    with pytest.MonkeyPatch.context() as patch:
        engine.lead(patch)
        yield from _containers(name, engine.docker, **fields)


def _containers(name: str, engine: Callable[..., str], **fields: Any) -> Iterator[Target]:
    from swerex_c import DockerDeployment

    label = ("ps", "-a", "--filter", "label=swerex_c", "--format", "{{.Names}}")
    fields = {"pull": "never", "docker_args": ["--network", "none"], "startup_timeout": DEADLINE, **fields}
    yield from _started(
        name, lambda: DockerDeployment(**fields), "/tmp", left=lambda: engine(*label).split(),
        lose=lambda container: engine("kill", container),
    )  # fmt: skip


@_engine("ssh")
def _ssh(get: Get) -> Iterator[Target]:
    from swerex_c import SSHDeployment

    sshd = get("sshd")
    fields = {"host": sshd.name, "config_file": str(sshd.config), "startup_timeout": DEADLINE}
    yield from _started("ssh", lambda: SSHDeployment(**fields), _directory(get))


@_engine("kubectl", deployment=False)
def _kubectl(get: Get) -> Iterator[Target]:
    from swerex_c.runtime.sandbox import SandboxRuntime
    from tests.support.sandboxes import kubectl_backend

    cluster = get("kubernetes")
    pod = cluster.start_pod()
    runtime = SandboxRuntime(kubectl_backend(cluster, pod))
    yield Target("kubectl", runtime, str(_directory(get)))
    asyncio.run(runtime.close())
    cluster.delete(pod)


# Clouds and clusters, by their own libraries and the tests' servers


def _need(module: str, extra: str) -> None:
    if importlib.util.find_spec(module) is None:
        needs.skip(needs.Lacking(f"{module} (the extra {extra})"))


@_engine("kubernetes", lost=True)
def _kubernetes(get: Get) -> Iterator[Target]:
    _need("kubernetes_asyncio", "kubernetes")
    from tests.support.kubernetes_server import ApiServer, deployment

    with ApiServer() as server:
        yield from _started(
            "kubernetes", lambda: deployment(server), _directory(get), fake=True,
            left=lambda: [name for _, name in server.pods], lose=server.delete,
            variables={"KUBECONFIG": server.kubeconfig},
        )  # fmt: skip


@_engine("modal", lost=True)
def _modal(get: Get) -> Iterator[Target]:
    _need("modal", "modal")
    from swerex_c import ModalDeployment
    from tests.support.modal_fixtures import modal

    with modal() as world:
        yield from _started(
            "modal", lambda: ModalDeployment(image="debian:12", startup_timeout=DEADLINE), _directory(get), fake=True,
            left=world.running, lose=lambda sandbox: world.end(sandbox, "FAILURE", code=3),
        )  # fmt: skip


@_engine("daytona", lost=True)
def _daytona(get: Get) -> Iterator[Target]:
    _need("daytona", "daytona")
    from swerex_c import DaytonaDeployment
    from tests.support.daytona_fixtures import daytona

    with daytona(_directory(get)) as world:
        yield from _started(
            "daytona", DaytonaDeployment, _directory(get), fake=True, left=lambda: list(world.sandboxes),
            lose=lambda sandbox: world.lose(sandbox, "stopped"),
        )  # fmt: skip


@_engine("fargate", lost=True)
def _fargate(get: Get) -> Iterator[Target]:
    _need("moto", "fargate, and moto")
    from tests.support import aws_fixtures

    directory = _directory(get)
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        world = stack.enter_context(aws_fixtures.world(directory, patch))
        yield from _started(
            "fargate", aws_fixtures.deployment, directory, fake=True,
            left=lambda: [task.arn for task in world.processes()], lose=world.end,
        )  # fmt: skip


@_engine("ray")
def _ray(get: Get) -> Iterator[Target]:
    _need("ray", "ray")
    from swerex_c import RayDeployment
    from tests.support.ray_cluster import actors

    variables = {"RAY_ADDRESS": get("nodes").address}
    fields: dict[str, Any] = {"num_cpus": 0.1, "startup_timeout": DEADLINE}
    yield from _started("ray", lambda: RayDeployment(**fields), _directory(get), left=actors, variables=variables)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each case on every target, or on those that its attribute `targets` or its module's `TARGETS` names."""
    if "target" in metafunc.fixturenames:
        ours = [name for name in ALL if name != "original"]
        names = getattr(metafunc.function, "targets", getattr(metafunc.module, "TARGETS", ours))
        kinds = [pytest.param(name, marks=_KINDS[name][1]) for name in names]
        metafunc.parametrize("target", kinds, indirect=True, scope="module")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        name = getattr(item, "callspec", None) and item.callspec.params.get("target")  # type: ignore[attr-defined]
        marks = [mark for mark in item.iter_markers("known") if name in mark.args[2]]
        reasons = [f"issue {mark.args[0]}: {mark.args[1]}" for mark in marks]
        if name == "original":
            reasons += [str(mark.args[0]) for mark in item.iter_markers("wrong_in_original")]
        if reasons:
            item.add_marker(pytest.mark.xfail(strict=True, reason="; ".join(reasons)))


@pytest.fixture(scope="module")
def target(request: pytest.FixtureRequest) -> Iterator[Target]:
    """A started runtime of each kind, one for the cases of a file."""
    yield from _KINDS[request.param][0](request.getfixturevalue)


@pytest.fixture
async def session(target: Target) -> AsyncIterator[Session]:
    """A new session, which must still answer when the case has ended."""
    session = Session(target.runtime, patience=target.patience)
    await session.create()
    yield session
    if not session.ended and target.name != "original":
        await session.synced()
    with suppress(SwerexException):
        await session.close()
