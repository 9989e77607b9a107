"""DaytonaDeployment through the real SDK, in sandboxes of the server of `daytona_server`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("daytona")

from swerex_c.deployment.daytona import DaytonaDeployment, find_owned
from swerex_c.exceptions import DeploymentStartupError, NotSupportedError, SandboxLostError, SwerexException
from swerex_c.models import Command
from swerex_c.providers import orphans
from tests.support.daytona_fixtures import KEY, DaytonaWorld, server, world
from tests.support.targets import Session
from tests.support.wait import DEADLINE, cancel, until_async, until_dead

__all__ = ["server", "world"]

Make = Callable[..., DaytonaDeployment]


@pytest.fixture
async def make(world: DaytonaWorld) -> AsyncIterator[Make]:
    """Makes deployments, which are stopped when the test has ended."""
    made: list[DaytonaDeployment] = []

    def make(kind: type[DaytonaDeployment] = DaytonaDeployment, **kwargs: Any) -> DaytonaDeployment:
        made.append(kind(**kwargs))
        return made[-1]

    yield make
    for each in made:
        await each.stop()


@pytest.fixture
async def started(make: Make) -> DaytonaDeployment:
    deployment = make(logger=logging.getLogger("test_daytona"))
    await deployment.start()
    return deployment


# ---- what is asked for


async def test_the_request_for_a_sandbox_and_the_log(
    world: DaytonaWorld, make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A key of the configuration comes before that of the environment."""
    monkeypatch.setenv("DAYTONA_API_KEY", "wrong")
    caplog.set_level(logging.INFO, "test_daytona")
    logger = logging.getLogger("test_daytona")
    deployment = make(image="debian:12", target="eu", container_timeout=601, api_key=KEY, logger=logger)
    await deployment.start()
    (asked,) = world.asked
    assert asked["buildInfo"]["dockerfileContent"].strip() == "FROM debian:12"
    assert asked["target"] == "eu"
    assert (asked["autoStopInterval"], asked["autoDeleteInterval"], asked["ttlMinutes"]) == (11, 0, 11)
    assert asked["labels"]["swerex_c.sandbox"] == "1"
    assert asked["labels"]["swerex_c"] == asked["name"]
    sandbox = world.all()[0].id
    await deployment.stop()
    for words in (
        "Creating Daytona sandbox...",
        f"Created Daytona sandbox with ID: {sandbox}",
        "Runtime started in",
        f"Removing Daytona sandbox with ID: {sandbox}",
        "Daytona sandbox removed successfully",
    ):
        assert words in caplog.text


# ---- what goes wrong


class WithCommand(DaytonaDeployment):
    def _get_command(self, *, token: str) -> str:  # as a subclass of SWE-ReX's class has it
        return "swerex-remote"


def refused(status: int, message: str) -> dict[str, Any]:
    return {"refusal": {"status": status, "message": message}}


NEVER: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    (refused(401, "Invalid credentials"), {}, "refuses the key.*DAYTONA_API_KEY"),
    (refused(403, "Total CPU limit exceeded. Maximum allowed: 10."), {}, "quota.*Total CPU limit exceeded"),
    (refused(429, "Too many requests"), {}, "rate limit is reached"),
    (refused(400, "Region nowhere not found"), {}, "Region nowhere not found"),
    (refused(503, "maintenance"), {}, "cannot be reached.*maintenance"),
    (refused(200, "no sandbox"), {}, "Daytona says: .*validation errors"),
    ({}, {"api_key": "wrong"}, "refuses the key"),
    ({"DAYTONA_API_KEY": ""}, {}, "DAYTONA_API_KEY"),
    ({"DAYTONA_API_URL": "http://127.0.0.1:1/api"}, {}, "cannot be reached"),
    ({}, {"image": "missing:1"}, "manifest for this image not found"),
    ({}, {"image": "broken:1"}, "the runner has no room"),
    ({}, {"server": True}, "runs no server"),
    ({}, {"kind": WithCommand}, "runs no server"),
]
"""What Daytona answers or the environment has, fields, and words of the error."""


@pytest.mark.parametrize(("outside", "fields", "words"), NEVER)
async def test_a_failed_start_has_its_reason_in_one_line(
    world: DaytonaWorld, make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    outside: dict[str, Any], fields: dict[str, Any], words: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)  # the library looks for files there
    world.refusal = outside.get("refusal")
    for name in outside.keys() - {"refusal"}:
        monkeypatch.setenv(name, outside[name])
    deployment = make(**fields)
    with pytest.raises(NotSupportedError if "server" in words else DeploymentStartupError, match=words) as caught:
        await deployment.start()
    assert "\n" not in str(caught.value) and not world.all()
    if world.refusal:
        world.refusal = None
        await deployment.start()


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
    world: DaytonaWorld, started: DaytonaDeployment, caplog: pytest.LogCaptureFixture, state: str, words: str
) -> None:
    """And it is no error that it need not be deleted."""
    world.lose(str(started._sandbox_id), state, "disk full" if state == "error" else None)
    with pytest.raises(SandboxLostError, match=words):
        await until_dead(started, DEADLINE)
    with pytest.raises(SandboxLostError, match=words):
        await started.runtime.execute(Command(command="true"))
    await started.stop()
    assert "Failed" not in caplog.text


async def test_a_connection_that_breaks_ends_the_session_and_not_the_sandbox(
    world: DaytonaWorld, started: DaytonaDeployment
) -> None:
    session, other = Session(started.runtime), Session(started.runtime)
    await session.create()
    running = asyncio.ensure_future(session.run("echo >begun; sleep 1000"))
    await until_async((world.all()[0].directory / "begun").exists)
    world.cut(str(started._sandbox_id))
    # It depends on whether the command's start was reported, and whether the shell still existed.
    why = "connection to a terminal of the sandbox .* ended|nothing shows that it ran|its command is unknown"
    with pytest.raises(SwerexException, match=why):
        await asyncio.wait_for(running, DEADLINE)
    assert await started.is_alive(timeout=DEADLINE)
    await other.create()
    await other.gives("echo on", "on\n")


# ---- starts and stops


@pytest.mark.parametrize("stage", ["library", "answer", "build", "shell"])
async def test_a_start_that_is_cancelled_leaves_nothing(world: DaytonaWorld, make: Make, stage: str) -> None:
    """And the next one waits until the image is built."""
    deployment = make(image="greeting" if stage == "shell" else "debian:12")
    world.delay = 2.0 if stage == "answer" else 0.0
    world.build = 1000.0 if stage == "build" else 0.0
    starting = asyncio.create_task(deployment.start())
    conditions: dict[str, Callable[[], Any]] = {
        "library": lambda: True,
        "answer": world.all,
        "build": lambda: world.all() and world.counts["GET /api/sandbox/{id}"],
        "shell": lambda: any(it.terminals for it in world.all()),
    }
    await until_async(conditions[stage])
    await cancel(starting)
    assert not world.all()
    assert deployment._daytona is None
    world.delay, world.build = 0.0, min(world.build, 1.0)
    await deployment.start()
    assert await deployment.is_alive()


async def test_a_deletion_that_is_refused_is_tried_again(world: DaytonaWorld, started: DaytonaDeployment) -> None:
    world.refusal = {"status": 409, "message": "Sandbox state change in progress", "deletes": True}
    stopping = asyncio.ensure_future(started.stop())
    await until_async(lambda: world.counts["DELETE /api/sandbox/{id}"] > 1)
    world.refusal = None
    await stopping
    assert not world.all()


async def test_a_failed_deletion_is_logged(
    world: DaytonaWorld, started: DaytonaDeployment, caplog: pytest.LogCaptureFixture
) -> None:
    sandbox = str(started._sandbox_id)
    world.refusal = {"status": 403, "message": "not yours", "deletes": True}
    await started.stop()
    assert "Failed to remove Daytona sandbox: Daytona does not permit it, or a quota is exhausted: " in caplog.text
    assert sandbox in caplog.text and "15 idle minutes" in caplog.text
    world.lose(sandbox, "gone")


async def test_prune_reports_why_it_fails(world: DaytonaWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAYTONA_API_KEY", "wrong")
    with pytest.raises(DeploymentStartupError, match="refuses the key"):
        await asyncio.to_thread(lambda: orphans.prune(find_owned()))
