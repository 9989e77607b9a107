"""Test the backends of Docker and Podman with real engines."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from swerex_c.providers.docker.backend import DockerBackend, PodmanBackend
from swerex_c.providers.docker.engine import Engine as Client
from swerex_c.utils.background import run_blocking
from tests.support import hosts, images
from tests.support.docker_engine import Engine
from tests.support.harness import write_script

SECONDS = 60


@pytest.fixture(params=["docker", "podman"])
def backend(request: pytest.FixtureRequest) -> Iterator[DockerBackend]:
    """A container of each engine that waits; `engine` runs a command of the engine."""
    if request.param == "docker":
        docker: Engine = request.getfixturevalue("docker")
        image = request.getfixturevalue("bash_only")
        name = request.getfixturevalue("container")(image)
        yield DockerBackend(name, environment=docker.environment)
        return
    podman: hosts.Podman = request.getfixturevalue("podman")
    name = podman.start(images.provide(podman.run, "bash-only"))
    yield PodmanBackend(name, command=podman.argv, environment=podman.environment)
    podman.run("rm", "-f", "-t", "0", name, check=False)


def engine(backend: DockerBackend, *words: str) -> str:
    done = subprocess.run(
        [*backend._command, *words], env=backend.environment(), check=True, capture_output=True, timeout=SECONDS
    )
    return done.stdout.decode()


def test_the_state_of_a_container_is_reported(backend: DockerBackend) -> None:
    assert run_blocking(backend.why_lost(), SECONDS) is None
    engine(backend, "pause", backend.container)
    reason, is_final = run_blocking(backend.inspect(), SECONDS)
    assert reason and "is paused" in reason and not is_final
    engine(backend, "unpause", backend.container)
    assert run_blocking(backend.inspect(), SECONDS) == (None, False)
    engine(backend, "kill", backend.container)
    reason, is_final = run_blocking(backend.inspect(), SECONDS)
    assert reason and "has ended with exit code 137" in reason and is_final
    engine(backend, "rm", backend.container)
    reason, is_final = run_blocking(backend.inspect(), SECONDS)
    assert reason and "is gone: it was removed" in reason and is_final


def test_an_engine_that_is_away_or_hangs_is_reported(tmp_path: Path) -> None:
    environment = {**os.environ, "DOCKER_HOST": f"unix://{tmp_path}/none.sock"}
    command = tmp_path / "docker"
    write_script(command, "echo 'Cannot connect to the Docker daemon' >&2\nexit 1")
    away = DockerBackend("c", command=[str(command)], environment=environment)
    reason, is_final = run_blocking(away.inspect(), SECONDS)
    assert reason and "out of reach" in reason and "Cannot connect" in reason and not is_final
    missing = DockerBackend("c", command=[str(tmp_path / "no-such-command")], environment=environment)
    reason, is_final = run_blocking(missing.inspect(), SECONDS)
    assert reason and "cannot be run (No such file or directory)" in reason and not is_final
    write_script(command, "sleep 300 & wait")
    with pytest.raises(TimeoutError):
        run_blocking(away.why_lost(), 0.3)


def test_a_removal_that_podman_gives_up_is_tried_again(tmp_path: Path) -> None:
    """A script stands in for Podman, which prints this on a busy machine."""
    says = "echo 'Error: cannot remove container b7: given PIDs did not die within timeout' >&2; exit 125"
    asked = f"echo x >>{tmp_path}/asked; [ $(wc -l <{tmp_path}/asked) -lt 3 ] || exit 0"
    write_script(tmp_path / "podman", f"{asked}\n{says}")
    engine = Client("podman", {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert run_blocking(engine.end("b7", keep=False)) is None
    assert (tmp_path / "asked").read_text() == "x\n" * 3
