"""Actor's side of an environment, in a worker process of Ray on the node.

The actor starts the environment's supervisor and serves the driver's calls. A call returns ("done", value) or
("failed", an exception encoded by `swerex_c.remote.wire.exceptions`), so that Ray never has to serialize an exception.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import shutil
import signal
import sys
from typing import Any

from swerex_c.exceptions import DeploymentStartupError, SandboxLostError
from swerex_c.providers.ray.forward import PIECE
from swerex_c.providers.ray.server import COPY_SOCKET
from swerex_c.providers.ray.supervisor import PROGRAM, stop_seconds
from swerex_c.remote.wire.exceptions import from_wire, to_wire
from swerex_c.utils.threads import in_thread

__all__ = ["Host"]

_RAYLET_POLL = 0.5
"""Seconds between checks that the node is still part of the cluster."""

_SWEEP_SECONDS = 15.0
"""Seconds for the supervisor's own cleanup, in addition to `stop_seconds`."""


class Host:
    """An environment as its actor manages it. It is used by one event loop only."""

    def __init__(self, spec: dict[str, Any]):
        self.spec = spec
        self._supervisor: asyncio.subprocess.Process
        self._supervisor_pid = 0
        self._directory = ""
        self._address = ("", 0)
        self._ended: asyncio.Task[tuple[str, str]]
        self._watching: asyncio.Task[None]
        self._numbers = itertools.count()
        self._connections: dict[int, tuple[asyncio.StreamReader, asyncio.StreamWriter]] = {}

    async def do(self, name: str, *args: Any) -> tuple[str, Any]:
        """Call one of the methods below, and return its encoded outcome.

        The module's docstring describes the encoding.
        """
        try:
            return "done", await getattr(self, name)(*args)
        except Exception as error:
            return "failed", to_wire(error)

    # The environment

    async def open(self) -> dict[str, Any]:
        """Start the environment and return its facts.

        They are the ids `actor` and `node`, the address `ip` of the node, the `port` of the server, the `directory` of
        the environment, and the pids of the actor's process (`pid`), the `supervisor` and the `server`.

        Raises:
            DeploymentStartupError: if that fails, with the environment's own message.
        """
        import ray

        context = ray.get_runtime_context()
        ip = ray.util.get_node_ip_address()
        facts = {"actor": context.get_actor_id(), "node": context.get_node_id(), "ip": ip, "pid": os.getpid()}
        self._supervisor = await asyncio.create_subprocess_exec(
            sys.executable, "-c", PROGRAM,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        self._watching = asyncio.ensure_future(self._watch_raylet(os.getppid()))
        spec = {**self.spec, "host": ip, "sys_path": [path or os.getcwd() for path in sys.path]}
        await self._write_line(json.dumps(spec).encode())
        said = await self._read_message()
        if "failed" in said:
            raise from_wire(said["failed"])
        if "ended" in said:
            _, why = said["ended"]
            raise DeploymentStartupError(f"The environment's processes did not start: {why} (see Ray's logs)")
        ready: dict[str, Any] = said["ready"]
        self._directory, self._supervisor_pid = ready["directory"], ready["supervisor"]
        self._address = (ip, ready["port"])
        self._ended = asyncio.ensure_future(self._reason())
        return facts | ready

    async def _write_line(self, line: bytes) -> None:
        assert self._supervisor.stdin is not None
        with contextlib.suppress(OSError):  # it has ended
            self._supervisor.stdin.write(line + b"\n")
            await self._supervisor.stdin.drain()

    async def _read_message(self) -> dict[str, Any]:
        """Return the next message of the supervisor, or in its place that it was killed."""
        assert self._supervisor.stdout is not None
        line = await self._supervisor.stdout.readline()
        said: dict[str, Any] = json.loads(line or '{"ended": ["supervisor", "its supervisor was killed"]}')
        return said

    async def _watch_raylet(self, raylet: int) -> None:
        """End the environment when Ray's process on this node has ended, which is the parent of this process.

        Ray then treats the node as lost, but would tell the driver only after a quarter of a minute.
        """
        while os.getppid() == raylet:
            await asyncio.sleep(_RAYLET_POLL)
        assert self._supervisor.stdin is not None
        self._supervisor.stdin.close()

    async def _reason(self) -> tuple[str, str]:
        """Wait until the environment has ended; return the kind and text of the reason."""
        kind, why = (await self._read_message())["ended"]
        if kind == "supervisor":
            shutil.rmtree(self._directory, ignore_errors=True)
        return kind, why

    async def wait(self) -> tuple[str, str]:
        """Wait until the environment has ended; return the result of `_reason`.

        `open` must have started the environment.
        """
        return await asyncio.shield(self._ended)

    async def close(self) -> None:
        """End the environment and everything in it, gracefully if possible.

        `open` must have started the environment.

        Raises:
            SandboxLostError: if its processes do not end in time.
        """
        await self._write_line(b"stop")
        try:
            async with asyncio.timeout(stop_seconds(self.spec) + _SWEEP_SECONDS):
                await self.wait()
        except TimeoutError:
            with contextlib.suppress(OSError):
                os.kill(self._supervisor_pid, signal.SIGKILL)
            raise SandboxLostError("The environment's processes did not end in time") from None

    # Connections to the environment's server, for a driver that cannot connect to the node

    async def connect(self) -> int:
        """Connect to the server, and return the connection's number."""
        number = next(self._numbers)
        self._connections[number] = await asyncio.open_connection(*self._address, limit=PIECE)
        return number

    async def send(self, number: int, data: bytes) -> None:
        """Send bytes to the server."""
        _, writer = self._connections[number]
        writer.write(data)
        await writer.drain()

    async def receive(self, number: int) -> bytes:
        """Return the next bytes from the server; b"" if it has closed the connection."""
        return await self._connections[number][0].read(PIECE)

    async def disconnect(self, number: int) -> None:
        """Close a connection."""
        self._connections.pop(number)[1].close()

    # Files of an environment with another file system than its node

    async def copy(self, how: str, source: str, target: str) -> None:
        """Have the server copy a file or tree between this node and the environment.

        Args:
            how: "upload" copies from the node to the environment, "download" from the environment to the node.

        Raises:
            SandboxLostError: if the environment ends during the transfer.
        """
        reader, writer = await asyncio.open_unix_connection(os.path.join(self._directory, COPY_SOCKET))
        try:
            writer.write(json.dumps([how, source, target]).encode() + b"\n")
            line = await reader.readline()
        finally:
            writer.close()
        if not line:
            raise SandboxLostError("The environment ended during the transfer")
        said = json.loads(line)
        if "failed" in said:
            raise from_wire(said["failed"])

    async def remove(self, path: str) -> None:
        """Remove a directory on this node."""
        await in_thread(shutil.rmtree, path, ignore_errors=True)
