"""The behaviour tests and the random tester in a container that shares this machine's files and processes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.behaviour_runs import LEFT_OUT, inherited, run_rooms, run_soak
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
    assert run_rooms(["hidden_prompts", "redefinitions"], LEFT_OUT, {**environment, "SWX_PLACE": container}, 300) >= 30


@pytest.mark.timeout(300)
def test_sessions_in_random_states(shared: tuple[str, dict[str, str]]) -> None:
    container, environment = shared
    assert run_soak(environment, "--place", container, "--sessions", "4") >= 50
