"""Test starts and stops of deployments at the same time, and a few odd images and hosts."""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import socket
from pathlib import Path

import pytest

from swerex_c.deployment.docker import DockerDeployment
from swerex_c.exceptions import DeploymentStartupError, DockerPullError, RuntimeClosedError
from swerex_c.providers.ssh.backend import SSHBackend
from swerex_c.utils import background
from swerex_c.utils.background import run_blocking
from tests.support import hosts, needs
from tests.support.docker_deployments import Make, make, names, reach
from tests.support.docker_engine import Engine
from tests.support.harness import write_script
from tests.support.session import says
from tests.support.wait import until

__all__ = ["make", "reach"]


# Start and stop at the same time


async def test_of_two_starts_at_once_the_second_ends_the_first(make: Make, reach: Engine) -> None:
    deployment = make()
    first, second = await asyncio.gather(deployment.start(), deployment.start(), return_exceptions=True)
    assert isinstance(first, RuntimeClosedError) and second is None
    assert names(reach) == [deployment.container_name]
    assert await says(deployment, "echo hi") == "hi\n"
    await deployment.stop()
    assert names(reach) == []


async def test_a_stop_just_when_a_start_is_over(make: Make, reach: Engine) -> None:
    """The stop comes after the last step of the start, before the state changes to STARTED."""

    class Stopped(DockerDeployment):
        async def _start(self) -> None:
            await super()._start()
            self.stopping = asyncio.ensure_future(self._stop())

        async def stopped(self) -> None:
            await self.stopping

    deployment = make(Stopped)
    await deployment.start()
    await background.run(deployment.stopped())  # type: ignore[attr-defined]
    assert names(reach) == [] and deployment.container_name is None


def test_a_loop_that_ends_during_a_stop_does_not_keep_the_container(make: Make, reach: Engine) -> None:
    """`asyncio.run` cancels all tasks at once, including those of the stop."""
    deployment = make()
    asyncio.run(deployment.start())

    async def leave() -> None:
        asyncio.ensure_future(deployment.stop())
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    asyncio.run(leave())
    assert names(reach) == []


async def test_a_client_that_hangs_does_not_keep_a_stop(
    make: Make, reach: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, number = needs.program("docker", "docker.io"), f"1000.{os.getpid()}"
    write_script(tmp_path / "docker", f'if [ "$1" = run ]; then exec sleep {number}; fi\nexec {real} "$@"')
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    deployment = make()
    starting = asyncio.ensure_future(deployment.start())
    await asyncio.to_thread(until, lambda: needs.mentioning(f"sleep\0{number}\0"))
    await deployment.stop()
    with pytest.raises(RuntimeClosedError):
        await starting
    assert names(reach) == [] and not needs.mentioning(f"sleep\0{number}\0")


# Images


def test_an_image_for_another_platform_is_missing(
    make: Make, reach: Engine, bash_only: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It is pulled, as `docker run --platform` does."""
    mine = {"x86_64": "linux/amd64", "aarch64": "linux/arm64"}.get(platform.machine(), "linux/unknown")
    other = next(name for name in ("linux/arm64/v8", "linux/amd64") if not name.startswith(mine))
    caplog.set_level(logging.INFO, "rex-deploy-platforms")
    reach.docker("tag", bash_only, "127.0.0.1:1/platforms")
    logger = logging.getLogger("rex-deploy-platforms")
    for wanted in (mine, None):
        deployment = make(image="127.0.0.1:1/platforms", platform=wanted, pull="missing", logger=logger)
        deployment._pull_image()
        asyncio.run(deployment.start())
        asyncio.run(deployment.stop())
    assert "Pulling" not in caplog.text
    with pytest.raises(DockerPullError, match="Failed to pull image 127.0.0.1:1/platforms"):
        asyncio.run(make(image="127.0.0.1:1/platforms", platform=other, pull="missing", logger=logger).start())
    with pytest.raises(DeploymentStartupError, match="platform"):
        asyncio.run(make(image="127.0.0.1:1/platforms", platform=other).start())
    with pytest.raises(DockerPullError):
        make(image="127.0.0.1:1/platforms", platform=other, pull="always")._pull_image()
    reach.docker("rmi", "127.0.0.1:1/platforms")


# Hosts


def test_a_connection_that_was_never_there_is_ended_without_a_wait(
    sshd: hosts.Sshd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swerex_c.providers.ssh.backend._END_SECONDS", 1e6)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        options, port = ["ConnectTimeout=1000000"], silent.getsockname()[1]
        backend = SSHBackend(sshd.name, config_file=str(sshd.config), port=port, options=options)
        with pytest.raises(TimeoutError):
            run_blocking(backend.open(), 0.1)
