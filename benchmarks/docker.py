"""Rows and engines of containers: `DockerDeployment` of this package and of SWE-ReX, and the program `docker`.

The Docker engine is one of the tests' own (`tests/support/docker_engine.py`), with a small Debian that has SWE-ReX's
server. Containers have the host's network, because the engine has no bridge and SWE-ReX needs a port.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import socket
import subprocess
from collections.abc import Iterator
from typing import Any

from swerex_c.bench.engines import Answer, Engine, Runtime
from swerex_c.bench.measure import Contender, Row
from swerex_c.bench.rows import turns

__all__ = ["Container", "DockerProgram", "contenders", "rows"]

OURS = "swerex_c, docker"
SWEREX = "SWE-ReX, docker"
PROGRAM = "docker run, exec"

PORT = 8000
"""Port of SWE-ReX's server; so it has one container at a time."""


def contenders(peers: str | None, stack: contextlib.ExitStack) -> list[Contender]:
    """Start a Docker engine that `stack` ends, and return what drives it.

    Raises:
        RuntimeError: if no engine can run here; the text gives the reason.
    """
    from tests.support import images, needs
    from tests.support.docker_engine import Engine as DockerEngine

    try:
        engine = stack.enter_context(DockerEngine())
        image = images.provide(engine.docker, "debian-rex")
    except needs.Lacking as lack:
        raise RuntimeError(f"no Docker engine: this machine lacks {lack}") from None
    variables = {key: it for key, it in engine.environment.items() if key == "PATH" or key.startswith("DOCKER_")}
    found = [
        Contender(OURS, "benchmarks.docker:Container", {"package": "swerex_c", "image": image}),
        Contender(PROGRAM, "benchmarks.docker:DockerProgram", {"image": image}),
    ]
    if peers:
        options = {"package": "swerex", "image": image, "port": PORT}
        found.append(Contender(SWEREX, "benchmarks.docker:Container", options, peers))
    for contender in found:
        contender.variables = {**variables, "SWEREX_C_SWAP": "0"}
    return found


def rows() -> Iterator[Row]:
    everyone = (OURS, PROGRAM, SWEREX)
    title = "Start of a container, until it takes a command"
    yield Row("docker-start", title, "create", turns(everyone, 3), PROGRAM)
    yield Row("docker-true", "A command in a container: true", "command", turns(everyone, 3, text="true"), PROGRAM)


class DockerProgram(Engine):
    """The program `docker`: a container for each key, `docker exec` for each command."""

    def __init__(self, image: str) -> None:
        self.image = image
        self.containers: dict[str, str] = {}

    @staticmethod
    def _docker(*words: str) -> Answer:
        done = subprocess.run(["docker", *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=False)
        return done.stdout, done.returncode

    async def open(self, key: str) -> None:
        options = ["--rm", "--pull", "never", "--network", "host", "--init"]
        said, _ = self._docker("run", "-di", *options, self.image, "bash")
        self.containers[key] = str(said, "ascii").strip() if isinstance(said, bytes) else said
        await self.run(key, "true")

    async def close(self, key: str) -> None:
        self._docker("rm", "-f", self.containers.pop(key))

    async def run(self, key: str, text: str) -> Answer:
        return self._docker("exec", self.containers[key], "bash", "-c", text)


class Container(Runtime):
    """`DockerDeployment` of a package, with a container for each session."""

    runtime = None

    def __init__(self, package: str, image: str, **options: Any) -> None:
        super().__init__(package)
        self.deployment: Any = importlib.import_module(f"{package}.deployment.docker").DockerDeployment
        self.options = {"image": image, "pull": "never", "docker_args": ["--network", "host"], **options}
        self.deployments: dict[str, Any] = {}

    async def open(self, key: str) -> None:
        if "port" in self.options:  # the only container at a time
            for other in list(self.deployments):
                await self.close(other)
        deployment = self.deployments[key] = self.deployment(**self.options)
        await deployment.start()
        self.runtime = deployment.runtime
        await super().open(key)

    async def run(self, key: str, text: str) -> Answer:
        if key not in self.deployments:
            await self.open(key)
        self.runtime = self.deployments[key].runtime
        return await super().run(key, text)

    async def close(self, key: str) -> None:
        if deployment := self.deployments.pop(key, None):
            await deployment.stop()
            while "port" in self.options and _is_taken(self.options["port"]):
                await asyncio.sleep(0.05)

    async def end(self) -> None:
        """Do nothing: each runtime has ended with its shell."""


def _is_taken(port: int) -> bool:
    """Check whether a process listens on a port of this machine."""
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0
