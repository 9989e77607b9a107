"""Backends and open sandboxes for tests, also for those that are not asynchronous."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from swerex_c.exceptions import SandboxLostError, SwerexException
from swerex_c.models import BashAction, Command, CreateBashSessionRequest
from swerex_c.providers.docker.backend import DockerBackend
from swerex_c.providers.kubernetes.kubectl import KubectlBackend
from swerex_c.providers.ssh.backend import SSHBackend
from swerex_c.runtime.sandbox import SandboxRuntime
from swerex_c.sandbox.backend import Backend
from swerex_c.sandbox.sandbox import RunningScript
from swerex_c.utils import background
from tests.support import hosts
from tests.support.docker_engine import Engine
from tests.support.kubernetes_server import ApiServer, kubectl
from tests.support.wait import DEADLINE, until_async

__all__ = ["Blocking", "StartBackend", "docker_backend", "kubectl_backend", "lost", "ssh_backend", "working"]


StartBackend = Callable[..., DockerBackend]


class Blocking:
    """Wrap an object or a module: its coroutine functions block, and run in the private event loop."""

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


def ssh_backend(sshd: hosts.Sshd, **more: Any) -> SSHBackend:
    return SSHBackend(sshd.name, config_file=str(sshd.config), **more)


def kubectl_backend(cluster: ApiServer, pod: str, **more: Any) -> KubectlBackend:
    arguments = {"command": [kubectl()], "kubeconfig": cluster.kubeconfig, "environment": cluster.environment}
    return KubectlBackend(pod, **{**arguments, **more})


async def working(backend: Backend, begun: Path) -> tuple[SandboxRuntime, list[asyncio.Future[Any]]]:
    """Return a runtime with a running single command and a session's command; each has added a line to the file."""
    runtime = SandboxRuntime(backend)
    await runtime.create_session(CreateBashSessionRequest(startup_timeout=DEADLINE))
    script = f"echo >>{begun}; sleep 1000"
    waiting: list[asyncio.Future[Any]] = [
        asyncio.ensure_future(runtime.execute(Command(command=script, shell=True))),
        asyncio.ensure_future(runtime.run_in_session(BashAction(command=script, timeout=1000, check="silent"))),
    ]
    await until_async(lambda: begun.exists() and begun.read_text() == "\n\n")
    return runtime, waiting


async def lost(waiting: list[asyncio.Future[Any]], words: str = "", kind: type[Exception] = SandboxLostError) -> None:
    """Wait until both commands have ended with errors, the first with this kind and these words."""
    beside, inside = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), DEADLINE)
    assert isinstance(beside, kind) and words in str(beside), beside
    assert isinstance(inside, SwerexException) or inside.failure_reason, inside


@pytest.fixture
def docker_backend(docker: Engine, container: Callable[..., str]) -> StartBackend:
    """`docker_backend(image, *arguments of docker run)` starts a container and returns its backend."""
    return lambda image, *arguments: DockerBackend(container(image, *arguments), environment=docker.environment)
