"""Benchmark engines for runtimes with SWE-ReX's API.

They are this package on any deployment, and the original.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import os
import uuid
from typing import Any

from .engine import GIVE_UP, Answer, Engine

__all__ = ["Original", "Ours", "Runtime"]


class Runtime(Engine):
    """Engine for the runtime of a package with SWE-ReX's API.

    The package's modules, classes and fields have the original's names.
    """

    runtime: Any
    session_fields: dict[str, Any] = {}
    """Additional fields of the request for a session."""

    startup_timeout = 30.0
    """Maximum seconds for the start of a shell or the first response of a server."""

    def __init__(self, package: str) -> None:
        self.package = package
        self.api: Any = importlib.import_module(f"{package}.runtime.abstract")
        self.timeout_error: Any = importlib.import_module(f"{package}.exceptions").CommandTimeoutError

    async def end(self) -> None:
        await self.runtime.close()

    async def open(self, key: str) -> None:
        fields = {"startup_timeout": self.startup_timeout, **self.session_fields}
        await self.runtime.create_session(self.api.CreateBashSessionRequest(session=key, **fields))

    async def close(self, key: str) -> None:
        await self.runtime.close_session(self.api.CloseBashSessionRequest(session=key))

    async def run(self, key: str, text: str) -> Answer:
        answer = await self.runtime.run_in_session(self.api.BashAction(command=text, session=key, check="silent"))
        return answer.output, answer.exit_code

    async def execute(self, text: str) -> Answer | None:
        answer = await self.runtime.execute(self.api.Command(command=text, shell=True))
        return answer.stdout, answer.exit_code

    async def begin(self, key: str, text: str) -> None:
        action = self.api.BashAction(command=text, session=key, check="silent", timeout=GIVE_UP)
        try:
            await self.runtime.run_in_session(action)
        except self.timeout_error:
            return
        raise RuntimeError(f"{text!r} has ended by itself")

    async def interrupt(self, key: str) -> None:
        await self.runtime.run_in_session(self.api.BashInterruptAction(session=key))


class Ours(Runtime):
    """Engine for the runtime of one of this package's deployments.

    The deployment is given by its configuration.
    """

    def __init__(self, deployment: dict[str, Any]) -> None:
        super().__init__("swerex_c")
        from swerex_c.deployment.config import config_from_json

        self.here = deployment["type"] == "local"
        self.shared = deployment["type"] == "remote"
        self.deployment = config_from_json(json.dumps(deployment)).get_deployment()
        self.opened: set[str] = set()
        self.files: list[str] = []

    async def start(self) -> None:
        await self.deployment.start()
        self.runtime = self.deployment.runtime
        if self.shared:  # `start` only creates the client and does not contact the server
            await self.runtime.wait_until_alive(timeout=self.startup_timeout)

    async def end(self) -> None:
        if not self.shared:
            await self.deployment.stop()
            return
        # `stop` would end all sessions of the server, which others may use.
        for key in list(self.opened):
            with contextlib.suppress(Exception):
                await asyncio.wait_for(self.close(key), 2)
        with contextlib.suppress(Exception):
            removal = self.api.Command(command=["rm", "-f", *self.files])
            await asyncio.wait_for(self.runtime.execute(removal), 2)

    async def open(self, key: str) -> None:
        self.opened.add(key)  # before it is created: a cancelled creation may leave a session
        await super().open(key)

    async def close(self, key: str) -> None:
        self.opened.discard(key)
        await super().close(key)

    async def place(self, path: str) -> str:
        if self.here:
            return path
        there = f"/tmp/{uuid.uuid4().hex[:12]}-{os.path.basename(path)}"
        self.files.append(there)
        await self.runtime.upload(self.api.UploadRequest(source_path=path, target_path=there))
        return there


class Original(Runtime):
    """Engine for the original SWE-ReX.

    Its sessions block the event loop, so they do not run concurrently.
    """

    blocking = True

    def __init__(self) -> None:
        package = importlib.import_module("swerex")
        if package.__name__ != "swerex":
            raise ImportError("`import swerex` gives this package, not the original")
        self.version = str(package.__version__)
        super().__init__("swerex")
        self.runtime = importlib.import_module("swerex.runtime.local").LocalRuntime()
