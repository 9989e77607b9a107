"""Containers: `DockerDeployment` of a package with the API of SWE-ReX, and the engine's own client."""

from __future__ import annotations

import asyncio
import importlib
import socket
import subprocess
from pathlib import Path
from typing import Any

from engines.base import Engine, Place
from engines.runtimes import Runtime
from measuring.engine import Answer

__all__ = ["Deployment", "Docker"]

FILE = "/tmp/benchmark"
"""What is written and read in a container."""


class Container(Engine):
    """One file in a container, which is written or read as a whole."""

    async def lay(self, path: str) -> None:
        await self.move("write", path, "", Path(path).read_text())

    async def copied(self, copy: str) -> bytes | None:
        return (await self.move("read", "", "", "") or "").encode()


class Docker(Container):
    """The engine's own client."""

    async def connect(self, place: Place, key: str) -> None:
        self.image, self.container = place["image"], place["container"]
        self.made: dict[str, str] = {}

    @staticmethod
    def call(*arguments: str, input: bytes = b"") -> tuple[bytes, int]:
        done = subprocess.run(["docker", *arguments], input=input, stdout=subprocess.PIPE, check=False)
        return done.stdout, done.returncode

    async def open(self, key: str) -> None:
        """A container of its own, until it has carried out a command."""
        options = ["--rm", "--pull", "never", "--network", "host", "--init"]
        self.made[key] = self.call("run", "-di", *options, self.image, "bash")[0].decode().strip()
        await self.run(key, "true")

    async def run(self, key: str, text: str) -> Answer:
        """There are no sessions: a shell for each command."""
        return self.call("exec", self.made[key], "sh", "-c", text)

    async def close(self, key: str) -> None:
        self.call("rm", "-f", self.made.pop(key))

    async def execute(self, text: str) -> Answer:
        return self.call("exec", self.container, "sh", "-c", text)

    async def move(self, how: str, path: str, copy: str, content: str) -> str | None:
        if how == "read":
            return self.call("exec", self.container, "cat", FILE)[0].decode()
        self.call("exec", "-i", self.container, "sh", "-c", f"cat >{FILE}", input=content.encode())
        return None


class Deployment(Container, Runtime):
    """`DockerDeployment` of a package: each session in a container of its own."""

    def make_runtime(self, options: dict[str, Any]) -> None:
        """Nothing yet: each container has its own."""

    async def end(self) -> None:
        """Leave the containers to the end of their engine."""

    async def connect(self, place: Place, key: str) -> None:
        self.kind: Any = importlib.import_module(f"{self.package}.deployment.docker").DockerDeployment
        self.options: dict[str, Any] = {"image": place["image"], "pull": "never"}
        self.options["docker_args"] = ["--network", "host"]
        if self.package == "swerex":  # it serves on this port, and there is no bridge: one container at a time
            self.options["port"] = 8000
        self.deployments: dict[str, Any] = {}

    async def start_container(self, key: str) -> None:
        deployment = self.deployments[key] = self.kind(**self.options)
        await deployment.start()
        self.runtime = deployment.runtime

    async def standing(self) -> None:
        """Any container will do for programs and files."""
        if not self.deployments:
            await self.start_container("")
        self.runtime = next(iter(self.deployments.values())).runtime

    async def open(self, key: str) -> None:
        await self.start_container(key)
        await super().open(key)

    async def run(self, key: str, text: str) -> Answer:
        self.runtime = self.deployments[key].runtime
        return await super().run(key, text)

    async def close(self, key: str) -> None:
        await self.deployments.pop(key).stop()
        while "port" in self.options and is_taken(self.options["port"]):
            await asyncio.sleep(0.05)

    async def execute(self, text: str) -> Answer | None:
        await self.standing()
        return await super().execute(text)

    async def move(self, how: str, path: str, copy: str, content: str) -> str | None:
        await self.standing()
        return await super().move(how, FILE, FILE, content)


def is_taken(port: int) -> bool:
    """Whether somebody on this machine, or in a container that has its network, listens on it."""
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind(("0.0.0.0", port))
        except OSError:
            return True
    return False
