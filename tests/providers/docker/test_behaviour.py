"""The behaviour tests and the random tester in a container that shares this machine's files and processes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.behaviour_runs import LEFT_OUT, inherited, run_rooms
from tests.support.docker_engine import Engine
from tests.support.local_backend import shared_container


@pytest.fixture(scope="module")
def shared(docker: Engine) -> Iterator[tuple[str, dict[str, str]]]:
    """Id of the container, and the environment in which its engine is reached."""
    with shared_container(docker) as container:
        yield container, {**inherited(), "DOCKER_HOST": docker.host}


@pytest.mark.timeout(1000)
def test_rooms(shared: tuple[str, dict[str, str]]) -> None:
    container, environment = shared
    there = {**environment, "SWX_PLACE": container}
    assert run_rooms(["hidden_prompts", "redefinitions"], LEFT_OUT, there) >= 30


@pytest.mark.timeout(300)
def test_sessions_in_random_states(shared: tuple[str, dict[str, str]]) -> None:
    container, environment = shared
    command = [sys.executable, "-m", "tests.engine.random_tester", "--seconds", "20", "--place", container]
    root = Path(__file__).parents[3]
    done = subprocess.run([*command, "--sessions", "4"], env=environment, cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
