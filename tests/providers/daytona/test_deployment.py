"""DaytonaDeployment through the real SDK, in sandboxes of the server of `daytona_server`."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("daytona")

from swerex_c.deployment.config import DaytonaDeploymentConfig, get_deployment
from swerex_c.deployment.daytona import DaytonaDeployment, prune
from swerex_c.exceptions import (
    DeploymentStartupError,
    NotSupportedError,
    SandboxLostError,
    StartupTimeoutError,
    SwerexException,
)
from swerex_c.runtime.abstract import (
    BashAction,
    Command,
    CreateBashSessionRequest,
)
from tests.support.daytona_fixtures import KEY, DaytonaWorld, make, server, world
from tests.support.wait import DEADLINE, until_async

__all__ = ["make", "server", "world"]

Make = Callable[..., DaytonaDeployment]


@pytest.fixture
async def started(make: Make) -> DaytonaDeployment:
    deployment = make()
    await deployment.start()
    return deployment


async def session(deployment: DaytonaDeployment) -> None:
    await deployment.runtime.create_session(CreateBashSessionRequest(startup_timeout=60))


async def run(deployment: DaytonaDeployment, command: str, **kwargs: Any) -> str:
    return (await deployment.runtime.run_in_session(BashAction(command=command, **kwargs))).output


# ---- what is asked for


async def test_what_is_asked_for(world: DaytonaWorld, make: Make) -> None:
    deployment = make(image="debian:12", target="eu", container_timeout=601)
    await deployment.start()
    (asked,) = world.asked
    assert asked["buildInfo"]["dockerfileContent"].strip() == "FROM debian:12"
    assert asked["target"] == "eu"
    assert (asked["autoStopInterval"], asked["autoDeleteInterval"], asked["ttlMinutes"]) == (11, 0, 11)
    assert asked["labels"]["swerex_c.sandbox"] == "1"
    assert asked["labels"]["swerex_c"] == asked["name"]


async def test_a_key_of_the_configuration_comes_first(
    world: DaytonaWorld, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAYTONA_API_KEY", "wrong")
    await make(api_key=KEY).start()


def test_the_configuration_is_that_of_before() -> None:
    config = DaytonaDeploymentConfig(api_key="k", something="else")  # type: ignore[call-arg]
    assert "type" not in DaytonaDeploymentConfig.model_fields
    assert (config.port, config.container_timeout, config.runtime_timeout) == (8000, 900, 60)
    assert (config.image, config.target, config.server) == ("python:3.11", "us", None)
    deployment = get_deployment(config)
    assert isinstance(deployment, DaytonaDeployment) and deployment._config == config


async def test_what_is_logged(world: DaytonaWorld, make: Make, caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("test_daytona")
    caplog.set_level(logging.INFO, "test_daytona")
    deployment = make(logger=logger)
    await deployment.start()
    sandbox = world.all()[0].id
    await deployment.stop()
    text = caplog.text
    for words in (
        "Creating Daytona sandbox...",
        f"Created Daytona sandbox with ID: {sandbox}",
        "Runtime started in",
        f"Removing Daytona sandbox with ID: {sandbox}",
        "Daytona sandbox removed successfully",
    ):
        assert words in text


# ---- what goes wrong


@pytest.mark.parametrize(
    ("status", "message", "words"),
    [
        (401, "Invalid credentials", "refuses the key.*DAYTONA_API_KEY"),
        (403, "Total CPU limit exceeded. Maximum allowed: 10.", "quota.*Total CPU limit exceeded"),
        (429, "Too many requests", "rate limit is reached"),
        (400, "Region nowhere not found", "Region nowhere not found"),
        (503, "maintenance", "cannot be reached.*maintenance"),
    ],
)
async def test_a_refusal_is_told_in_a_sentence(
    world: DaytonaWorld, make: Make, status: int, message: str, words: str
) -> None:
    world.refusal = {"status": status, "message": message}
    deployment = make()
    with pytest.raises(DeploymentStartupError, match=words) as caught:
        await deployment.start()
    assert "\n" not in str(caught.value)
    world.refusal = None
    await deployment.start()


async def test_a_wrong_key_is_told(world: DaytonaWorld, make: Make) -> None:
    with pytest.raises(DeploymentStartupError, match="refuses the key"):
        await make(api_key="wrong").start()


async def test_no_key_is_told(world: DaytonaWorld, make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("DAYTONA_API_KEY")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DeploymentStartupError, match="DAYTONA_API_KEY"):
        await make().start()


async def test_an_api_that_does_not_answer_is_told(
    world: DaytonaWorld, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAYTONA_API_URL", "http://127.0.0.1:1/api")
    with pytest.raises(DeploymentStartupError, match="cannot be reached"):
        await make().start()


async def test_an_answer_that_the_library_cannot_read_is_told(
    world: DaytonaWorld,
    make: Make,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import daytona
    import pydantic

    async def create(*_: Any, **__: Any) -> None:
        pydantic.TypeAdapter(int).validate_python("html")

    monkeypatch.setattr(daytona.AsyncDaytona, "create", create)
    with pytest.raises(DeploymentStartupError, match="Daytona says: 1 validation error"):
        await make().start()


@pytest.mark.parametrize(
    ("image", "words"), [("missing:1", "manifest for this image not found"), ("broken:1", "the runner has no room")]
)
async def test_a_sandbox_that_fails_is_deleted(world: DaytonaWorld, make: Make, image: str, words: str) -> None:
    with pytest.raises(DeploymentStartupError, match=words):
        await make(image=image).start()
    assert not world.all()


async def test_an_image_without_bash_is_told(world: DaytonaWorld, make: Make) -> None:
    with pytest.raises(DeploymentStartupError, match="no bash"):
        await make(image="bare+sh,stty,cat,dd,base64").start()
    assert not world.all()


async def test_a_build_takes_its_time(world: DaytonaWorld, make: Make) -> None:
    world.build = 1.0
    deployment = make()
    await deployment.start()
    assert await deployment.is_alive()


async def test_a_start_that_takes_too_long_is_undone(world: DaytonaWorld, make: Make) -> None:
    world.build = 1000.0
    with pytest.raises(StartupTimeoutError, match="startup_timeout"):
        await make(startup_timeout=5).start()
    assert len(world.asked) == 1 and not world.all()


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("stopped", "was stopped"),
        ("archived", "was archived"),
        ("error", "has failed: disk full"),
        ("destroyed", "was deleted"),
        ("gone", "is gone"),
    ],
)
async def test_a_sandbox_that_ends_is_told(
    world: DaytonaWorld, started: DaytonaDeployment, state: str, words: str
) -> None:
    await session(started)
    running = asyncio.create_task(run(started, "echo >begun; sleep 1000"))
    await until_async((world.all()[0].directory / "begun").exists)
    world.lose(str(started._sandbox_id), state, "disk full" if state == "error" else None)
    with pytest.raises(SandboxLostError, match=words):
        await asyncio.wait_for(running, DEADLINE)
    with pytest.raises(SandboxLostError, match=words):
        await started.is_alive(timeout=DEADLINE)
    with pytest.raises(SandboxLostError, match=words):
        await started.runtime.execute(Command(command="true"))


async def test_a_connection_that_breaks_ends_the_session_and_not_the_sandbox(
    world: DaytonaWorld, started: DaytonaDeployment
) -> None:
    await session(started)
    running = asyncio.create_task(run(started, "echo >begun; sleep 1000"))
    await until_async((world.all()[0].directory / "begun").exists)
    world.cut(str(started._sandbox_id))
    with pytest.raises(SwerexException):
        await asyncio.wait_for(running, DEADLINE)
    assert await started.is_alive(timeout=DEADLINE)
    await started.runtime.create_session(CreateBashSessionRequest(session="next", startup_timeout=60))
    assert await run(started, "echo on", session="next") == "on\n"


# ---- starts and stops


@pytest.mark.parametrize("stage", ["library", "answer", "build", "shell", "ready"])
async def test_a_start_that_is_cancelled_leaves_nothing(world: DaytonaWorld, make: Make, stage: str) -> None:
    deployment = make(image="greeting" if stage == "shell" else "debian:12")
    if stage == "answer":
        world.delay = 2.0
    if stage == "build":
        world.build = 1000.0
    starting = asyncio.create_task(deployment.start())
    conditions: dict[str, Callable[[], Any]] = {
        "library": lambda: True,
        "answer": world.all,
        "build": lambda: world.all() and world.counts["GET /api/sandbox/{id}"],
        "shell": lambda: any(it.terminals for it in world.all()),
        "ready": lambda: starting.done(),
    }
    await until_async(conditions[stage])
    if starting.cancel():
        with pytest.raises(asyncio.CancelledError):
            await starting
    else:
        await deployment.stop()
    assert not world.all()
    assert deployment._daytona is None
    world.delay = 0.0
    world.build = 0.0
    await deployment.start()
    assert await deployment.is_alive()


async def test_a_sandbox_that_is_gone_already_is_no_error(
    world: DaytonaWorld, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    deployment = make()
    await deployment.start()
    world.lose(str(deployment._sandbox_id), "gone")
    await deployment.stop()
    assert "Failed" not in caplog.text


async def test_a_deletion_that_is_refused_is_tried_again(world: DaytonaWorld, make: Make) -> None:
    deployment = make()
    await deployment.start()
    world.refusal = {"status": 409, "message": "Sandbox state change in progress", "deletes": True}
    stopping = asyncio.ensure_future(deployment.stop())
    await until_async(lambda: world.counts["DELETE /api/sandbox/{id}"] > 1)
    world.refusal = None
    await stopping
    assert not world.all()


async def test_a_deletion_that_fails_is_told(world: DaytonaWorld, make: Make, caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("test_daytona")
    deployment = make(logger=logger)
    await deployment.start()
    sandbox = deployment._sandbox_id
    world.refusal = {"status": 403, "message": "not yours", "deletes": True}
    await deployment.stop()
    assert "Failed to remove Daytona sandbox: Daytona does not permit it, or a quota is exhausted: " in caplog.text
    assert str(sandbox) in caplog.text and "15 idle minutes" in caplog.text
    world.lose(str(sandbox), "gone")


def test_what_a_dead_process_left_is_pruned(world: DaytonaWorld) -> None:
    program = (
        "import asyncio, os\n"
        "from swerex_c.deployment.daytona import DaytonaDeployment\n"
        "deployments = [DaytonaDeployment() for _ in range(3)]\n"
        "async def main():\n"
        "    await asyncio.gather(*(it.start() for it in deployments))\n"
        "    os._exit(0)\n"
        "asyncio.run(main())\n"
    )
    mine = DaytonaDeployment()
    asyncio.run(mine.start())
    try:
        subprocess.run([sys.executable, "-c", program], check=True, timeout=DEADLINE)
        assert len(world.all()) == 4
        left = prune(dry_run=True)
        assert len(left) == 3 and all(it.owner.startswith("process ") and it.error is None for it in left)
        assert len(world.all()) == 4
        assert {it.id for it in prune()} == {it.id for it in left}
        assert [it.id for it in world.all()] == [mine._sandbox_id]
    finally:
        asyncio.run(mine.stop())
    assert prune() == []


def test_pruning_without_a_key_is_told(world: DaytonaWorld, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(DeploymentStartupError, match="refuses the key"):
        prune(api_key="wrong")


# ---- with a server


class WithCommand(DaytonaDeployment):
    def _get_command(self, *, token: str) -> str:  # as a subclass of SWE-ReX's class has it
        return "swerex-remote"


@pytest.mark.parametrize(("of", "kwargs"), [(DaytonaDeployment, {"server": True}), (WithCommand, {})])
async def test_a_server_is_refused(world: DaytonaWorld, make: Make, of: Any, kwargs: dict[str, Any]) -> None:
    with pytest.raises(NotSupportedError, match="runs no server"):
        await make(of, **kwargs).start()
    assert not world.all()
