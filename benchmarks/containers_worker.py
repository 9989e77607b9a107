"""One contender of containers.py in a process of its own, as worker.py is for bench.py.

Everything is timed beside the call that a user would write.
"""

from __future__ import annotations

import asyncio
import importlib
import subprocess
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from engines.base import Answer
from measured import Measured, serve

FILE = "/tmp/benchmark"


class Contender:
    """What the rows need."""

    async def prepare(self, image: str, container: str) -> None:
        raise NotImplementedError

    async def start(self) -> Answer:
        """A container of its own, until the answer to its first command."""
        raise NotImplementedError

    async def stop(self) -> None:
        """Ends what `start` made."""
        raise NotImplementedError

    async def true(self) -> Answer:
        raise LookupError("has no sessions")

    async def execute(self) -> Answer:
        raise NotImplementedError

    async def write(self, content: str) -> None:
        raise NotImplementedError

    async def read(self) -> str:
        raise NotImplementedError


class Docker(Contender):
    """The engine's own client."""

    async def prepare(self, image: str, container: str) -> None:
        self.image, self.container, self.made = image, container, ""

    @staticmethod
    def call(*arguments: str, input: bytes = b"") -> tuple[bytes, int]:
        done = subprocess.run(["docker", *arguments], input=input, stdout=subprocess.PIPE, check=False)
        return done.stdout, done.returncode

    async def start(self) -> Answer:
        options = ["--rm", "--pull", "never", "--network", "host", "--init"]
        out, _ = self.call("run", "-di", *options, self.image, "bash")
        self.made = out.decode().strip()
        return self.call("exec", self.made, "true")

    async def stop(self) -> None:
        self.call("rm", "-f", self.made)

    async def execute(self) -> Answer:
        return self.call("exec", self.container, "true")

    async def write(self, content: str) -> None:
        self.call("exec", "-i", self.container, "sh", "-c", f"cat >{FILE}", input=content.encode())

    async def read(self) -> str:
        return self.call("exec", self.container, "cat", FILE)[0].decode()


class Deployment(Contender):
    """`DockerDeployment` of a package with the API of SWE-ReX."""

    def __init__(self, package: str) -> None:
        self.api: Any = importlib.import_module(f"{package}.runtime.abstract")
        self.kind: Any = importlib.import_module(f"{package}.deployment.docker").DockerDeployment
        self.others: dict[str, Any] = {}
        if package == "swerex":  # it serves on a port, and there is no bridge between the containers and this machine
            self.others["port"] = 8000

    async def prepare(self, image: str, container: str) -> None:
        self.options = {"image": image, "pull": "never", "docker_args": ["--network", "host"], **self.others}
        self.deployment: Any = None

    async def begin(self) -> None:
        """Started on first use and kept: what is measured next is not its start."""
        if self.deployment is None:
            await self.start()

    async def start(self) -> Answer:
        if self.deployment is not None:
            await self.stop()
        self.deployment = self.kind(**self.options)
        await self.deployment.start()
        await self.deployment.runtime.create_session(self.api.CreateBashSessionRequest(startup_timeout=10))
        return await self.true()

    async def stop(self) -> None:
        deployment, self.deployment = self.deployment, None
        if deployment is not None:
            await deployment.stop()

    async def true(self) -> Answer:
        action = self.api.BashAction(command="true", check="silent")
        result = await self.deployment.runtime.run_in_session(action)
        return result.output, result.exit_code

    async def execute(self) -> Answer:
        result = await self.deployment.runtime.execute(self.api.Command(command="true", shell=True))
        return result.stdout, result.exit_code

    async def write(self, content: str) -> None:
        await self.deployment.runtime.write_file(self.api.WriteFileRequest(path=FILE, content=content))

    async def read(self) -> str:
        return str((await self.deployment.runtime.read_file(self.api.ReadFileRequest(path=FILE))).content)


class Workloads:
    """What containers.py asks for; each answer has the fields of worker.py's."""

    def __init__(self, contender: Contender) -> None:
        self.contender = contender

    async def prepare(self, image: str, container: str) -> dict[str, object]:
        await self.contender.prepare(image, container)
        return {}

    async def _timed(
        self, count: int, call: Callable[[], Awaitable[Answer]], rest_us: int = 0, after: bool = False
    ) -> dict[str, object]:
        samples, wrong = [], 0
        with Measured() as measured:
            for _ in range(count):
                await asyncio.sleep(rest_us / 1e6)
                begin = time.perf_counter()
                output, code = await call()
                samples.append((time.perf_counter() - begin) * 1e6)
                wrong += bool(output) or code != 0
                if after:
                    await self.contender.stop()
        return {"count": count, "wrong": wrong, "samples_us": samples, **measured.result()}

    async def start(self, count: int) -> dict[str, object]:
        return await self._timed(count, self.contender.start, after=True)

    async def true(self, count: int) -> dict[str, object]:
        await self._begin()
        return await self._timed(count, self.contender.true)

    async def execute(self, count: int, rest_us: int = 0) -> dict[str, object]:
        await self._begin()
        await self.contender.execute()
        return await self._timed(count, self.contender.execute, rest_us)

    async def _begin(self) -> None:
        if isinstance(self.contender, Deployment):
            await self.contender.begin()

    async def write(self, count: int, path: str) -> dict[str, object]:
        return await self._moved(count, path, self._write)

    async def read(self, count: int, path: str) -> dict[str, object]:
        await self._begin()
        await self.contender.write(Path(path).read_text())
        return await self._moved(count, path, self._read)

    async def _write(self, content: str) -> None:
        await self.contender.write(content)

    async def _read(self, content: str) -> bool:
        return await self.contender.read() == content

    async def _moved(self, count: int, path: str, move: Callable[[str], Awaitable[Any]]) -> dict[str, object]:
        await self._begin()
        content = Path(path).read_text()
        samples, wrong = [], 0
        with Measured() as measured:
            for _ in range(count):
                begin = time.perf_counter()
                right = await move(content)
                samples.append((time.perf_counter() - begin) * 1e6)
                wrong += right is False
        if move == self._write:
            wrong += await self.contender.read() != content
        return {
            "count": count,
            "wrong": wrong,
            "samples_us": samples,
            "bytes": len(content.encode()),
            **measured.result(),
        }


CONTENDERS: dict[str, Callable[[], Contender]] = {
    "docker": Docker,
    "ours": lambda: Deployment("swerex_c"),
    "original": lambda: Deployment("swerex"),
}

if __name__ == "__main__":
    serve(lambda name: Workloads(CONTENDERS[name]()))
