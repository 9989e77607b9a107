"""Test containers with a network: pulls from a real registry, and servers behind published ports."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from swerex_c.deployment.docker import DockerDeployment
from tests.support import images, needs
from tests.support.docker_deployments import names
from tests.support.docker_engine import Engine
from tests.support.registry import Registry
from tests.support.session import says

AT_ONCE = 6


@pytest.fixture(scope="module")
def networked() -> Iterator[Engine]:
    """An engine whose containers have a network."""

    def make() -> Engine:
        needs.program("ip", "iproute2")
        needs.capability("CAP_NET_ADMIN", "a network of containers")
        return Engine(network=True)

    with needs.started(make) as engine:
        yield engine


@pytest.fixture(scope="module")
def registry() -> Iterator[Registry]:
    with needs.started(Registry) as place:
        yield place


@pytest.fixture
def reach(networked: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    networked.lead(monkeypatch)
    yield networked
    if left := names(networked):
        networked.docker("rm", "-f", *left, check=False)
    assert not left


async def test_always_pulls_a_newer_image(reach: Engine, registry: Registry) -> None:
    """With "missing", the image is pulled only once."""
    image = registry.name("renewed")
    reach.docker("tag", images.provide(reach.docker, "bash-only"), image)
    reach.docker("push", "-q", image)
    reach.docker("rmi", image)
    steps: list[Any] = []
    for pull, number in (("missing", 1), ("missing", 1), ("always", 2)):
        if number == 2:
            container = reach.docker("create", "--network", "none", image, "true")
            newer = reach.docker("commit", "-c", "ENV NEWER=2", container)
            reach.docker("rm", container)
            old = reach.docker("image", "inspect", "-f", "{{.Id}}", image)
            reach.docker("tag", newer, image)
            reach.docker("push", "-q", image)
            reach.docker("tag", old, image)  # what this engine has is the old one again
        deployment = DockerDeployment(image=image, pull=pull)
        await deployment.start()
        steps.append(await says(deployment, "echo ${NEWER:-1}"))
        await deployment.stop()
    assert steps == ["1\n", "1\n", "2\n"]


async def test_servers_that_start_at_once_get_ports_of_their_own(reach: Engine) -> None:
    image = images.provide(reach.docker, "debian-py")
    logger = logging.getLogger("rex-deploy-at-once")
    made = [
        DockerDeployment(image=image, server=True, pull="never", startup_timeout=200, logger=logger)
        for _ in range(AT_ONCE)
    ]
    try:
        await asyncio.gather(*(it.start() for it in made))
        assert len({it._config.port for it in made}) == AT_ONCE
        names = await asyncio.gather(*(says(it, "cat /etc/hostname") for it in made))
        assert len(set(names)) == AT_ONCE
    finally:
        await asyncio.gather(*(it.stop() for it in made))
