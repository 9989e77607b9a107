"""Rows and engines of servers: clients of this package and of SWE-ReX, each with a server of its own."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import re
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from swerex_c.bench.engines import Runtime
from swerex_c.bench.measure import Contender, Row, Turn
from swerex_c.bench.rows import OURS
from swerex_c.bench.worker import Operations, Result
from swerex_c.utils.free_port import find_free_port

__all__ = ["RemoteOperations", "contenders", "rows"]

REMOTE = "swerex_c, server"
MIXED = "SWE-ReX's client, ours"
"""SWE-ReX's client with the server of this package."""
SWEREX = "SWE-ReX, server"

START_SECONDS = 30.0
"""Maximum seconds for the start of a server."""

MEGABYTES = 100


def contenders(peers: str | None) -> list[Contender]:
    """Return the clients, each with its server; those of SWE-ReX if there is an interpreter with the peers."""
    ours = [sys.executable, "-m", "swerex_c.server"]
    found = [Contender(REMOTE, "benchmarks.remote:RemoteOperations", {"package": "swerex_c", "server": ours})]
    if peers:
        theirs = [peers, "-m", "swerex.server"]
        swap = {"SWEREX_C_SWAP": "0"}
        for name, server in ((MIXED, ours), (SWEREX, theirs)):
            options = {"package": "swerex", "server": server}
            found.append(Contender(name, "benchmarks.remote:RemoteOperations", options, peers, swap))
    return found


def rows() -> Iterator[Row]:
    clients = (REMOTE, MIXED, SWEREX)

    def turns(*more: str, **request: Any) -> list[Turn]:
        return [Turn(name, request, 3 if name == SWEREX else None) for name in (*clients, *more)]

    title = "A command behind a server: true; swerex_c is a session without a server"
    yield Row("remote-true", title, "command", turns(OURS, text="true"), OURS)
    yield Row("remote-alive", "is_alive of a server", "alive", turns(), REMOTE)
    title = f"Upload of a file of {MEGABYTES} MB to a server"
    upload = turns(megabytes=MEGABYTES)
    yield Row("remote-upload", title, "upload", upload, REMOTE)


class Remote(Runtime):
    """`RemoteRuntime` of a package, with a server as its users start it.

    Args:
        package: the package of the client.
        server: command line of the server without its options.
    """

    def __init__(self, package: str, server: list[str]) -> None:
        super().__init__(package)
        self.package, self.command = package, server

    async def start(self) -> None:
        key, ours = secrets.token_hex(16), "swerex_c" in self.command[-1]
        port = 0 if ours else find_free_port()  # SWE-ReX's server has to be told a port
        options = ["--host", "127.0.0.1", "--port", str(port), *([] if ours else ["--auth-token", key])]
        self.log = tempfile.NamedTemporaryFile("w+", prefix="swerex-c-bench-")
        self.server = subprocess.Popen(
            [*self.command, *options],
            env={**os.environ, "SWEREX_AUTH_TOKEN": key},
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=subprocess.STDOUT,
        )
        remote: Any = importlib.import_module(f"{self.package}.runtime.remote")
        async with asyncio.timeout(START_SECONDS):
            while not port and not (found := re.search(r"http://127\.0\.0\.1:(\d+)", Path(self.log.name).read_text())):
                await self._pause()
            port = port or int(found[1])  # type: ignore[index]
            # More than the default of 0.15 s, so that what is slow counts as slow and not as a wrong answer.
            self.runtime = remote.RemoteRuntime(host="http://127.0.0.1", port=port, auth_token=key, timeout=10.0)
            while not await self.alive():
                await self._pause()

    async def _pause(self) -> None:
        """Wait a little for the server, which must not have ended."""
        if self.server.poll() is not None:
            raise RuntimeError(f"the server ended: {Path(self.log.name).read_text()[-500:]}")
        await asyncio.sleep(0.02)

    async def alive(self) -> bool:
        return bool((await self.runtime.is_alive()).is_alive)

    async def end(self) -> None:
        if hasattr(self, "server"):
            with contextlib.suppress(Exception):
                await asyncio.wait_for(self.runtime.close(), 2)
            self.server.terminate()
            try:
                self.server.wait(10)
            except subprocess.TimeoutExpired:
                self.server.kill()


class RemoteOperations(Operations):
    def __init__(self, package: str, server: list[str]) -> None:
        super().__init__(Remote(package, server))

    async def alive(self, count: int, seconds: float) -> Result:
        return await self.sample(lambda: self.timed(self.engine.alive), count, seconds)  # type: ignore[attr-defined]

    async def upload(self, path: str, count: int, seconds: float) -> Result:
        """Measure the upload of a file, which must be the same at the server."""
        engine: Any = self.engine
        content = Path(path).read_bytes()
        with tempfile.TemporaryDirectory() as directory:
            source, copy = Path(directory, "source"), Path(directory, "copy")
            source.write_bytes(content)  # SWE-ReX looks for the path behind a link, and `path` is one to memory

            async def one() -> tuple[float, bool]:
                copy.unlink(missing_ok=True)
                request = engine.api.UploadRequest(source_path=str(source), target_path=str(copy))
                took, _ = await self.timed(lambda: engine.runtime.upload(request))
                return took, copy.read_bytes() == content

            found = await self.sample(one, count, seconds)
        return {**found, "bytes": len(content)}
