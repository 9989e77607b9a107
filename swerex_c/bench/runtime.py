"""Runtimes with SWE-ReX's API: ours, wherever a deployment puts it, and the original."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import os
import time
import uuid
from typing import Any

from swerex_c.bench.engines import GIVE_UP, Answer, Engine, is_right

__all__ = ["Original", "Ours"]

CREATION = 30.0
"""Seconds that a shell may take to start."""


class _Runtime(Engine):
    """What both have in common: names of modules, classes and fields."""

    runtime: Any
    session_fields: dict[str, Any] = {}
    """More fields of the request for a session."""

    def __init__(self, package: str) -> None:
        self.api: Any = importlib.import_module(f"{package}.runtime.abstract")
        self.gave_up: Any = importlib.import_module(f"{package}.exceptions").CommandTimeoutError
        self.names: dict[str, str] = {}

    async def end(self) -> None:
        await self.runtime.close()

    async def open(self, key: str) -> None:
        # Somebody else's sessions may be there, on a server.
        name = f"bench-{key}-{uuid.uuid4().hex[:8]}"
        request = self.api.CreateBashSessionRequest(session=name, startup_timeout=CREATION, **self.session_fields)
        self.names[key] = name
        try:
            await self.runtime.create_session(request)
        except Exception:
            del self.names[key]
            raise

    async def close(self, key: str) -> None:
        await self.runtime.close_session(self.api.CloseBashSessionRequest(session=self.names.pop(key)))

    async def run(self, key: str, text: str) -> Answer:
        action = self.api.BashAction(command=text, session=self.names[key], check="silent", timeout=60)
        answer = await self.runtime.run_in_session(action)
        return answer.output, answer.exit_code

    async def execute(self, text: str) -> Answer:
        answer = await self.runtime.execute(self.api.Command(command=text, shell=True, timeout=60))
        return answer.stdout, answer.exit_code

    async def interrupt(self, key: str) -> float:
        name = self.names[key]
        action = self.api.BashAction(command="sleep 100", session=name, check="silent", timeout=GIVE_UP)
        try:
            await self.runtime.run_in_session(action)
        except self.gave_up:
            pass
        else:
            raise RuntimeError("`sleep 100` has ended by itself")
        start = time.perf_counter()
        await self.runtime.run_in_session(self.api.BashInterruptAction(session=name))
        return (time.perf_counter() - start) * 1e6

    async def fleet(self, keys: list[str], text: str, until: float) -> tuple[int, int]:
        async def work(key: str) -> tuple[int, int]:
            count = wrong = 0
            while not count or time.perf_counter() < until:
                wrong += not is_right(await self.run(key, text))
                count += 1
            return count, wrong

        done = await asyncio.gather(*(work(key) for key in keys))
        return sum(each[0] for each in done), sum(each[1] for each in done)


class Ours(_Runtime):
    """The runtime of a deployment of ours, which is named by its configuration."""

    def __init__(self, deployment: dict[str, Any]) -> None:
        super().__init__("swerex_c")
        from swerex_c.examples._tasks import deployment_config

        self.here = deployment["type"] == "local"
        if not self.here:  # it may be somebody's home
            self.session_fields = {"env": {"HISTFILE": "/dev/null"}}
        self.shared = deployment["type"] == "remote"
        self.deployment = deployment_config(json.dumps(deployment)).get_deployment()
        self.files: list[str] = []

    async def start(self) -> None:
        await self.deployment.start()
        self.runtime = self.deployment.runtime
        if self.shared:  # only made above, and not asked yet
            await self.runtime.wait_until_alive(timeout=CREATION)

    async def end(self) -> None:
        if self.shared:
            # `stop` would end all that a server has, and others may use it.
            for key in list(self.names):
                with contextlib.suppress(Exception):
                    await asyncio.wait_for(self.close(key), 2)
            with contextlib.suppress(Exception):
                await asyncio.wait_for(self.runtime.execute(self._removal()), 2)
            return
        await self.deployment.stop()

    def _removal(self) -> Any:
        return self.api.Command(command=["rm", "-f", *self.files])

    async def place(self, path: str) -> str:
        if self.here:
            return path
        there = f"/tmp/{uuid.uuid4().hex[:12]}-{os.path.basename(path)}"
        self.files.append(there)
        await self.runtime.upload(self.api.UploadRequest(source_path=path, target_path=there))
        return there


class Original(_Runtime):
    """SWE-ReX. Its sessions block the event loop, and so do not run at once."""

    blocking = True

    def __init__(self) -> None:
        package = importlib.import_module("swerex")
        if package.__name__ != "swerex":
            raise ImportError("`import swerex` gives this package, not the original")
        self.version = str(package.__version__)
        super().__init__("swerex")
        self.runtime = importlib.import_module("swerex.runtime.local").LocalRuntime()
