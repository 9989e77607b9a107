"""Places by their kinds, as the exec layer sees them: `place` runs a test in each of them.

`place` is a `Backend` that is open for nothing yet. Whoever needs a particular one calls `docker_place(image)`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from swerex_c.providers.docker.backend import DockerBackend, PodmanBackend
from swerex_c.providers.kubernetes.kubectl import KubectlBackend
from swerex_c.providers.local.bubblewrap import BwrapBackend
from swerex_c.providers.ssh.backend import SSHBackend
from swerex_c.sandbox.backend import Backend
from swerex_c.sandbox.clients import CommandBackend
from swerex_c.sandbox.sandbox import RunningScript
from swerex_c.utils import background
from tests.support import hosts
from tests.support.docker_engine import Engine
from tests.support.kubernetes_server import ApiServer, kubectl

__all__ = ["KINDS", "Blocking", "ByCommand", "docker_place", "place"]

KINDS = ("docker", "podman", "ssh", "bwrap", "kubectl")
"""What `place` can be."""


class Blocking:
    """An object, or a module, whose coroutines run in the private event loop, as functions that wait for them."""

    def __init__(self, it: Any) -> None:
        self.it = it

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.it, name)
        if not inspect.iscoroutinefunction(found):
            return found

        def call(*words: Any, **named: Any) -> Any:
            if name == "wait" and words:  # with seconds
                return background.run_blocking(found(), max(words[0], 1.0))
            given = [word.it if isinstance(word, Blocking) else word for word in words]
            answer = background.run_blocking(found(*given, **named))
            return Blocking(answer) if isinstance(answer, RunningScript) else answer

        return call

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "it":
            super().__setattr__(name, value)
        else:
            setattr(self.it, name, value)

    def __enter__(self) -> Blocking:
        return self

    def __exit__(self, *error: object) -> None:
        background.run_blocking(self.it.__aexit__(*error))


class ByCommand(CommandBackend):
    """A place whose clients are command lines with the variables' names in them."""

    def __init__(
        self,
        name: str,
        environment: dict[str, str],
        terminal: Callable[[Sequence[str], Sequence[str]], list[str]],
        pipes: Callable[[Sequence[str], Sequence[str]], list[str]],
    ) -> None:
        self.name = name
        self._environment = environment
        self._terminal, self._pipes = terminal, pipes

    def command(self, argv: Sequence[str], names: Sequence[str], terminal: bool) -> list[str]:
        return (self._terminal if terminal else self._pipes)(argv, names)

    async def why_lost(self) -> str | None:
        return None

    def environment(self) -> dict[str, str]:
        return dict(self._environment)


def ssh_backend(sshd: hosts.Sshd, **more: Any) -> SSHBackend:
    return SSHBackend(sshd.name, config_file=str(sshd.config), **more)


def kubectl_backend(cluster: ApiServer, pod: str, **more: Any) -> KubectlBackend:
    arguments = {"command": [kubectl()], "kubeconfig": cluster.kubeconfig, "environment": cluster.environment}
    return KubectlBackend(pod, **{**arguments, **more})


@pytest.fixture
def docker_place(docker: Engine, container: Callable[..., str]) -> Callable[..., Backend]:
    """`docker_place(image, *arguments of docker run)` starts a container and gives its backend."""
    return lambda image, *arguments: DockerBackend(container(image, *arguments), environment=docker.environment)


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest) -> Iterator[Backend]:
    """One after the other a Docker container (bash-min), a podman one, an ssh host, a pod, and bubblewrap."""
    kind = request.param
    if kind == "docker":
        image = request.getfixturevalue("bash_min")
        yield request.getfixturevalue("docker_place")(image)
    elif kind == "podman":
        podman: hosts.Podman = request.getfixturevalue("podman")
        name = podman.start(podman.provide("bash-min"))
        try:
            yield PodmanBackend(name, command=podman.argv, environment=podman.environment)
        finally:
            podman.run("rm", "-f", "-t", "0", name, check=False)
    elif kind == "ssh":
        sshd: hosts.Sshd = request.getfixturevalue("sshd")
        yield ssh_backend(sshd)
    elif kind == "kubectl":
        cluster: ApiServer = request.getfixturevalue("kubernetes")
        pod = cluster.start_pod()
        try:
            yield kubectl_backend(cluster, pod)
        finally:
            cluster.delete(pod)
    else:
        yield BwrapBackend(command=request.getfixturevalue("bwrap"))


class Local(ByCommand):
    """This machine, without any client between."""

    def __init__(self, environment: dict[str, str]) -> None:
        super().__init__("this machine", environment, lambda argv, names: [*argv], lambda argv, names: [*argv])
