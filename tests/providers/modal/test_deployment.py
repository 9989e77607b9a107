"""ModalDeployment, through the real SDK, in sandboxes of the server of `modal_server`; and its images."""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import re
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

pytest.importorskip("modal")

import modal
from modal.client import _Client

from swerex_c.deployment.hooks.status import SetStatusDeploymentHook
from swerex_c.deployment.modal import ModalDeployment, _ImageBuilder, find_owned
from swerex_c.exceptions import (
    ConnectionLostError,
    DeploymentNotStartedError,
    DeploymentStartupError,
    InvalidInputError,
    NotSupportedError,
    SandboxLostError,
    StartupTimeoutError,
    SwerexException,
)
from swerex_c.models import Command
from swerex_c.providers import orphans
from swerex_c.providers.modal import tags
from swerex_c.providers.modal.backend import ModalBackend
from swerex_c.runtime.sandbox import SandboxRuntime
from swerex_c.sandbox.sandbox import Sandbox
from swerex_c.utils import background
from tests.support import direct_programs
from tests.support.modal_fixtures import ModalWorld, modal_world, world
from tests.support.processes import written_when_stuck
from tests.support.sandboxes import lost, working
from tests.support.targets import Session
from tests.support.wait import DEADLINE, cancel, settle, until_async, until_dead

__all__ = ["modal_world", "world"]

Make = Callable[..., ModalDeployment]


@pytest.fixture
async def make(world: ModalWorld) -> AsyncIterator[Make]:
    made: list[ModalDeployment] = []

    def make(kind: type[ModalDeployment] = ModalDeployment, **kwargs: Any) -> ModalDeployment:
        made.append(kind(**{"image": "debian:12", **kwargs}))
        return made[-1]

    yield make
    world.faults.clear()
    await asyncio.gather(*(it.stop() for it in made))


@pytest.fixture
async def started(make: Make) -> ModalDeployment:
    deployment = make()
    await deployment.start()
    return deployment


@pytest.fixture
def home(world: ModalWorld, started: ModalDeployment) -> Path:
    """The directory in which the programs of the sandbox begin."""
    return world.sandboxes[started.sandbox.object_id].directory


@pytest.fixture
def backend(started: ModalDeployment) -> Iterator[ModalBackend]:
    backend = ModalBackend(started.sandbox)
    yield backend
    background.run_blocking(backend.close())


async def test_connections_that_break_are_made_again(world: ModalWorld, started: ModalDeployment, home: Path) -> None:
    session = Session(started.runtime)
    await session.create()
    running = asyncio.ensure_future(session.run("for i in 1 2 3 4 5 6; do echo $i | tee $i; sleep 0.3; done"))
    await until_async((home / "3").exists)
    world.break_connections()
    assert (await running).output == "1\n2\n3\n4\n5\n6\n"
    await session.gives("echo after", "after\n")


# How sandboxes end


@pytest.mark.parametrize("v2", ["1", "0"])
@pytest.mark.parametrize(
    ("status", "told"),
    [("TIMEOUT", "its time limit was reached"), ("TERMINATED", "was terminated"), ("FAILURE", "exit code 3")],
)
async def test_the_end_of_a_sandbox_has_its_reason(
    world: ModalWorld, make: Make, monkeypatch: pytest.MonkeyPatch, v2: str, status: str, told: str
) -> None:
    """Of both kinds of sandboxes that Modal has."""
    monkeypatch.setenv("MODAL_SANDBOX_V2", v2)
    deployment = make()
    await deployment.start()
    world.end(deployment.sandbox.object_id, status, code=3)
    with pytest.raises(SandboxLostError, match="Container process terminated.*" + told):
        await until_dead(deployment, DEADLINE)
    with pytest.raises(SandboxLostError, match=told):
        await deployment.runtime.execute(Command(command=["true"]))


async def test_commands_end_when_the_machine_of_a_sandbox_is_lost(
    world: ModalWorld, backend: ModalBackend, home: Path
) -> None:
    """Its worker answers nothing any more; what is asked of it would never end."""
    runtime, waiting = await working(backend, home / "begun")
    world.vanish(backend.sandbox.object_id)
    await lost(waiting, kind=SwerexException)
    await runtime.close()


@pytest.mark.parametrize(
    ("problem", "kind", "told"),
    [
        ("NOT_FOUND", SandboxLostError, "is gone"),
        ("UNAVAILABLE", ConnectionLostError, "unknown whether the sandbox .* still exists.*as ordered"),
        (OSError("Network is unreachable"), ConnectionLostError, "cannot be reached.*Network is unreachable"),
        (modal.exception.SandboxTerminatedError("ended"), SandboxLostError, "is gone.*ended"),
    ],
)
async def test_an_unreadable_state_is_not_taken_for_a_loss(
    world: ModalWorld, backend: ModalBackend, problem: str | Exception, kind: type[Exception], told: str
) -> None:
    """A sandbox that cannot be asked for is not taken for one that is gone."""
    with pytest.MonkeyPatch.context() as patch:
        if isinstance(problem, str):
            world.fault("SandboxWaitV2", status=problem, times=20)
        else:
            patch.setattr(backend, "sandbox", mock.Mock(**{"poll.aio": mock.AsyncMock(side_effect=problem)}))
        error = await background.run(Sandbox(backend).lost())
        assert type(error) is kind and re.search(told, str(error)), repr(error)
        assert not (answer := await SandboxRuntime(backend).is_alive()) and re.search(told, answer.message)
    world.faults.clear()
    assert await background.run(backend.why_lost()) is None


async def test_a_loss_has_the_output_of_the_sandbox(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swerex_c.deployment.modal._WAIT", "echo some words; echo others >&2; read -t 2 <>go; exit 3")
    deployment = make()
    with pytest.raises(SwerexException, match=r"(?s)exit code 3.*stdout:\nsome words\n.*stderr:\nothers\n"):
        await deployment.start()
        await until_dead(deployment, DEADLINE)


# Starting and stopping


async def test_attributes_steps_and_log_are_those_of_swe_rex(
    world: ModalWorld, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """Attributes, steps, and lines of the log; and a second start is ignored."""
    caplog.set_level(logging.INFO)
    steps: list[str] = []
    deployment = make(logger=logging.getLogger("here"))
    deployment.add_hook(SetStatusDeploymentHook("a", lambda _, step: steps.append(step)))
    assert not world.requests
    with pytest.raises(DeploymentNotStartedError):
        deployment.sandbox  # noqa: B018
    with pytest.raises(DeploymentNotStartedError):
        await deployment.get_modal_log_url()
    await deployment.start()
    assert steps == ["Starting modal sandbox", "Starting runtime"]
    runtime, sandbox = deployment.runtime, deployment.sandbox
    assert deployment.app.name == "swe-rex" and deployment._app is deployment.app
    assert deployment._sandbox is sandbox and deployment._image.object_id.startswith("im-")
    assert (deployment._startup_timeout, deployment._runtime_timeout) == (180.0, 3600.0)
    assert (deployment._user, deployment._modal_kwargs, deployment._deployment_timeout) == ("default", {}, 3600)
    task = await sandbox._get_task_id.aio()
    url = f"https://modal.com/apps/default/main/deployed/swe-rex?activeTab=logs&taskId={task}"
    assert await deployment.get_modal_log_url() == url
    await deployment.start()
    assert deployment.runtime is runtime and deployment.sandbox is sandbox
    for words in (
        "Starting modal sandbox",
        "created in",
        f"Check sandbox logs at {url}",
        "Runtime started",
        "Deployment is already started. Ignoring duplicate start() call.",
    ):
        assert words in caplog.text


async def test_the_request_for_a_sandbox(world: ModalWorld, make: Make) -> None:
    """The image as it is; and the arguments of the caller, which come first."""
    with pytest.raises(InvalidInputError, match="deployment_timeout has to be a number of seconds: inf"):
        make(deployment_timeout=math.inf)
    await make(image="debian:12", deployment_timeout=8.5).start()
    kwargs = {"tags": {"mine": "1"}, "workdir": "/tmp", "timeout": 77, "memory": 512}
    await make(modal_sandbox_kwargs=kwargs | {"secrets": [modal.Secret.from_dict({"A": "b"})]}).start()
    image = world.calls("ImageGetOrCreate")[0]["image"]
    assert image["dockerfile_commands"] == ["FROM debian:12"]
    plain, request = world.calls("SandboxCreateV2")
    assert plain["definition"]["timeout_secs"] == 9 and len(plain["tags"]) == 6
    assert request["definition"]["timeout_secs"] == 77 and request["definition"]["workdir"] == "/tmp"
    assert {"tag_name": "mine", "tag_value": "1"} in request["tags"] and len(request["tags"]) == 7
    assert request["secret_sources"] == [{"env": {"contents": {"A": "b"}}}]
    assert kwargs["tags"] == {"mine": "1"}


Outside = Callable[[ModalWorld, pytest.MonkeyPatch], object]


def fault(method: str, **how: Any) -> Outside:
    return lambda world, _: world.fault(method, **how)


def variables(**values: str) -> Outside:
    def prepare(_: ModalWorld, patch: pytest.MonkeyPatch) -> None:
        for name, value in values.items():
            patch.setenv(f"MODAL_{name}", value)
        patch.setattr(_Client, "_client_from_env", None)  # the SDK keeps its client

    return prepare


def no_image(_: ModalWorld, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(modal.Image, "from_registry", mock.Mock(side_effect=modal.exception.InvalidError("no such image")))


class WithCommand(ModalDeployment):
    def _start_swerex_cmd(self, token: str) -> str:  # as a subclass of SWE-ReX's class has it
        return "swerex-remote"


NEVER: dict[str, tuple[Outside | None, dict[str, Any], str]] = {
    "app": (fault("AppGetOrCreate", status="PERMISSION_DENIED", message="not yours"), {}, "not permit it: not yours"),
    "build": (fault("build", message="apt failed"), {}, "could not build the image: .*apt failed"),
    "quota": (fault("SandboxCreateV2", status="RESOURCE_EXHAUSTED", message="quota of 5"), {}, "quota.*quota of 5"),
    "region": (fault("SandboxCreateV2", status="INVALID_ARGUMENT", message="no such region"), {}, "no such region"),
    "exec": (fault("TaskExecStart", status="INVALID_ARGUMENT", message="no exec here", times=9), {}, "no exec here"),
    "image": (no_image, {}, "Modal says: no such image"),
    "wrong": (variables(TOKEN_SECRET="as-wrong"), {}, "refuses the credentials.*Token validation failed.*modal setup"),
    "missing": (variables(TOKEN_SECRET="", TOKEN_ID=""), {}, "Modal refuses the credentials.*Token missing"),
    "away": (variables(SERVER_URL="http://127.0.0.1:1"), {"startup_timeout": 2}, "did not start within 2 seconds"),
    "slow": (fault("TaskExecStart", delay=1000, times=99), {"startup_timeout": 2}, "No shell has started|startup_time"),
    "argument": (None, {"modal_sandbox_kwargs": {"no_such_thing": 1}}, "no_such_thing"),
    "server": (None, {"server": True}, "runs no server"),
    "command": (None, {"kind": WithCommand}, "runs no server"),
}


@pytest.mark.parametrize("name", NEVER)
async def test_a_failed_start_has_its_reason_in_one_line(world: ModalWorld, make: Make, name: str) -> None:
    """And nothing is left; what comes from outside keeps no later start from being one."""
    outside, fields, told = NEVER[name]
    deployment = make(**{"image": f"debian:{name}", **fields})
    with pytest.MonkeyPatch.context() as patch:
        if outside:
            outside(world, patch)
        with pytest.raises(NotSupportedError if "server" in told else DeploymentStartupError, match=told) as raised:
            await deployment.start()
    assert "\n" not in str(raised.value)
    assert isinstance(raised.value, StartupTimeoutError) is ("startup_timeout" in fields)
    world.faults.clear()
    assert not world.running()
    if not fields:
        await deployment.start()
        assert await deployment.is_alive()


STAGES = ["AppGetOrCreate", "ImageGetOrCreate", "build", "SandboxCreateV2", "TaskExecStart"]
ROOM = "SandboxGetTaskId"
"""What is asked again and again while a sandbox of the first kind waits for room."""


@pytest.mark.parametrize(("stage", "after"), [*itertools.product(STAGES, (False, True)), (ROOM, False)])
async def test_a_cancelled_start_leaves_no_sandbox(
    world: ModalWorld, make: Make, monkeypatch: pytest.MonkeyPatch, stage: str, after: bool
) -> None:
    """While a request is under way, before it is carried out and before its answer; nothing is left."""
    world.fault(stage, after=after, **({"delay": 1000, "times": 99} if stage == ROOM else {"delay": 3}))
    if stage == ROOM:
        monkeypatch.setenv("MODAL_SANDBOX_V2", "0")
        monkeypatch.setattr("swerex_c.deployment.modal._SETTLE_SECONDS", 0.5)
    deployment = make(image=f"debian:{stage}-{after}".lower())
    starting = asyncio.ensure_future(deployment.start())
    name = "ImageGetOrCreate" if stage == "build" else stage
    await until_async(lambda: world.calls(name) or starting.done())
    assert world.running() or stage != ROOM
    await cancel(starting)
    if stage == ROOM:
        await until_async(lambda: not world.running())
    world.faults.clear()
    assert not world.running()
    await deployment.start()
    assert await deployment.is_alive()


@pytest.mark.parametrize("own_app", [False, True])
async def test_a_sandbox_whose_answer_was_lost_is_ended(world: ModalWorld, make: Make, own_app: bool) -> None:
    """Whether it was made is only known by its tags; also in an app of the caller's."""
    kwargs: dict[str, Any] = {}
    if own_app:
        app = await background.run(modal.App.lookup.aio("others", create_if_missing=True))
        kwargs = {"app": app, "tags": None, "secrets": None}
    world.fault("SandboxCreateV2", status="INTERNAL", after=True, times=99)
    with pytest.raises(DeploymentStartupError):
        await make(modal_sandbox_kwargs=kwargs).start()
    assert world.calls("SandboxCreateV2")
    assert not world.running()


async def test_a_start_that_is_cancelled_twice_leaves_nothing(
    world: ModalWorld, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer of the request for a sandbox comes when nobody waits for the start any more."""
    monkeypatch.setattr(tags, "_LOOK_AGAIN_SECONDS", (0.0,))
    count = len(world.sandboxes)
    world.fault("SandboxCreateV2", delay=2)
    starting = asyncio.ensure_future(make().start())
    await until_async(lambda: world.calls("SandboxCreateV2"))
    for _ in range(2):
        starting.cancel()
        await settle()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await until_async(lambda: len(world.sandboxes) > count)
    await until_async(lambda: not world.running())


async def test_a_sandbox_that_could_not_be_terminated_is_named(
    world: ModalWorld, started: ModalDeployment, caplog: pytest.LogCaptureFixture
) -> None:
    sandbox = started.sandbox.object_id
    world.fault("SandboxTerminateV2", status="PERMISSION_DENIED", times=99)
    await started.stop()
    assert f"Cannot terminate the sandbox {sandbox}; Modal ends it after 3600 s" in caplog.text
    world.end(sandbox, "TERMINATED")


async def test_a_program_that_is_closed_gets_the_end_of_its_input(backend: ModalBackend, home: Path) -> None:
    """So that a shell there that waits for its next script ends too."""

    async def work() -> None:
        async with direct_programs.started(backend, "sh", "-c", "echo >began; cat; echo >ended"):
            await until_async((home / "began").exists)
        await until_async((home / "ended").exists)

    await background.run(work())


async def test_unread_output_blocks_the_program(backend: ModalBackend, home: Path) -> None:
    """What is on its way is bounded at every step: 64 MB by the SDK's connection, 8 MB by the tests' server."""

    async def work() -> None:
        async with direct_programs.started(backend, "sh", "-c", "yes & echo $! >new; mv new pid; wait") as process:
            assert (await process.receive() or (1, b""))[1].startswith(b"y\ny\n")
            await until_async((home / "pid").exists)
            assert await asyncio.to_thread(written_when_stuck, int((home / "pid").read_text())) < 100_000_000

    await background.run(work())


ECR = "123456789012.dkr.ecr.eu-west-1.amazonaws.com/a:1"


# Images


def built(world: ModalWorld, image: Any) -> dict[str, Any]:
    """Return the first request to Modal for an image's build."""
    world.begin()
    image.build(modal.App.lookup("swe-rex", create_if_missing=True))
    first, *others = (dict(request["image"]) for request in world.calls("ImageGetOrCreate"))
    assert all(it["dockerfile_commands"] == ["FROM base"] for it in others)  # what Modal adds to a Dockerfile
    return first


def test_an_image_of_a_dockerfile(world: ModalWorld, tmp_path: Path) -> None:
    file = tmp_path / "Dockerfile"
    file.write_text("FROM debian:12\nCOPY a /a\nRUN true")
    (tmp_path / "a").write_text("content of a")
    builder = _ImageBuilder(install_pipx=False)
    for image in (builder.auto(file), builder.auto(str(file)), builder.from_file(file, build_context=tmp_path)):
        asked = built(world, image)
        assert asked["dockerfile_commands"] == ["FROM debian:12", "COPY a /a", "RUN true"]
        assert asked["context_mount_id"]
    assert world.calls("MountGetOrCreate")[0]["files"][0]["filename"] == "/a"


def test_an_image_that_is_one() -> None:
    image = modal.Image.from_registry("debian:12")
    assert _ImageBuilder(install_pipx=False).auto(image) is image
    assert ModalDeployment(image=image)._image is image


@pytest.mark.parametrize(
    ("name", "kind", "variables", "secret"),
    [
        (
            "registry.example.org/a:1", "STATIC_CREDS",
            {"DOCKER_USERNAME": "somebody", "DOCKER_PASSWORD": "secret"},
            {"REGISTRY_USERNAME": "somebody", "REGISTRY_PASSWORD": "secret"},
        ),
        (
            ECR, "AWS",
            {"AWS_ACCESS_KEY_ID": "AK", "AWS_SECRET_ACCESS_KEY": "SK", "AWS_SESSION_TOKEN": "ST"},
            {"AWS_ACCESS_KEY_ID": "AK", "AWS_SECRET_ACCESS_KEY": "SK", "AWS_SESSION_TOKEN": "ST",
             "AWS_REGION": "eu-west-1"},
        ),
    ],
)  # fmt: skip
def test_an_image_of_a_registry_that_wants_credentials(
    world: ModalWorld, monkeypatch: pytest.MonkeyPatch, name: str, kind: str, variables: dict[str, str],
    secret: dict[str, str],
) -> None:  # fmt: skip
    pytest.importorskip("boto3")
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    asked = built(world, _ImageBuilder(install_pipx=False).auto(name))
    assert asked["dockerfile_commands"] == [f"FROM {name}"]
    config = asked["image_registry_config"]
    assert config["registry_auth_type"] == f"REGISTRY_AUTH_TYPE_{kind}"
    assert world.secrets[config["secret_id"]] == secret


def test_ecr_without_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    boto3 = pytest.importorskip("boto3")
    with monkeypatch.context() as patch:
        patch.setattr(boto3.Session, "get_credentials", lambda self: None)
        with pytest.raises(ValueError, match="AWS credentials not found. Please configure your AWS credentials."):
            _ImageBuilder().auto(ECR)
    monkeypatch.setenv("AWS_PROFILE", "nobodys")
    with pytest.raises(SwerexException, match="nobodys.*could not be found"):
        _ImageBuilder().auto(ECR)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    for take in (_ImageBuilder().auto, lambda image: ModalDeployment(image=image)):
        with pytest.raises(FileNotFoundError, match="does not exist"):
            take(tmp_path / "Dockerfile")


# What dead processes leave


def test_prune_reports_why_it_fails(world: ModalWorld) -> None:
    world.fault("AppGetOrCreate", status="PERMISSION_DENIED", message="not yours")
    with pytest.raises(DeploymentStartupError, match="not yours"):
        orphans.prune(find_owned())
    world.fault("AppGetOrCreate", status="NOT_FOUND")  # nobody has ever started one
    assert orphans.prune(find_owned()) == []
