"""Real places to run commands in: started for the tests that ask for them, once a test process, and ended with it.

Where a machine cannot have one, the tests that need it are skipped, and the reason names what is lacking.
"""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import hosts, images, needs
from tests.support.docker_engine import Engine

if TYPE_CHECKING:
    from tests.support.kubernetes_server import ApiServer
    from tests.support.ray_cluster import Nodes


@pytest.fixture(scope="session")
def docker() -> Iterator[Engine]:
    """A Docker engine of our own that runs; `docker.environment` is what a client needs to reach it."""
    with needs.started(Engine) as engine:
        yield engine


def _image(name: str) -> Any:
    """Return a fixture with the name of an image of `tests.support.images`."""

    @pytest.fixture(scope="session", name=name.replace("-", "_"))
    def image(docker: Engine) -> str:
        with needs.else_skipped():
            return images.provide(docker.docker, name)

    return image


bash_only, bash_min, ash_min = map(_image, ("bash-only", "bash-min", "ash-min"))
debian_py, swebench = map(_image, ("debian-py", "swebench"))


@pytest.fixture
def container(docker: Engine) -> Iterator[Callable[..., str]]:
    """`container(image, *arguments of docker run)` starts one that waits and gives its id; removed after the test."""
    started: list[str] = []

    def start(image: str, *arguments: str) -> str:
        started.append(docker.docker("run", "-di", "--pull", "never", "--network", "none", *arguments, image))
        return started[-1]

    yield start
    if started:
        docker.docker("rm", "-f", "-v", *started, check=False)


@pytest.fixture(scope="session")
def podman() -> Iterator[hosts.Podman]:
    """podman with storage of its own: `podman.argv` and `.environment` reach it."""
    with needs.started(hosts.Podman) as place:
        yield place


@pytest.fixture(scope="session")
def sshd() -> Iterator[hosts.Sshd]:
    """An ssh server on 127.0.0.1: `[*sshd.argv, sshd.name, command]` runs something there."""
    with needs.started(hosts.Sshd) as place:
        yield place


@pytest.fixture(scope="session")
def kubernetes() -> Iterator[ApiServer]:
    """A cluster for kubectl: `kubernetes.start_pod(name)`; `kubernetes.kubeconfig` reaches it."""
    from tests.support.kubernetes_server import ApiServer, kubectl

    def make() -> ApiServer:
        kubectl()
        return ApiServer()

    with needs.started(make) as place:
        yield place


@pytest.fixture(scope="session")
def bwrap() -> str:
    """The path of bubblewrap."""
    try:
        return hosts.bubblewrap()
    except (needs.Lacking, subprocess.TimeoutExpired) as lack:
        needs.skip(lack)


@pytest.fixture(scope="session")
def nodes() -> Iterator[Nodes]:
    """A Ray cluster of two nodes on this machine, of which this process is a part."""
    from tests.support.ray_cluster import Nodes

    logging.getLogger("ray").setLevel(logging.ERROR)
    with Nodes() as nodes:
        nodes.add(far=4)
        yield nodes
