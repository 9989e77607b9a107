"""Actor's side of an environment, in a worker process of Ray on the node.

The actor starts the environment's supervisor and passes the driver's requests to the environment's server. A call
returns ("done", value), ("failed", an exception encoded by `swerex_c.remote.wire.exceptions`), so that Ray never has to
serialize an exception, ("cancelled", None), or ("ended", (kind, words)) with the reason why the environment has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import sys
import tempfile
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from swerex_c._version import __version__
from swerex_c.exceptions import ConnectionLostError, DeploymentStartupError
from swerex_c.providers.ray.supervisor import PROGRAM
from swerex_c.remote.client.calls import ClientChannel
from swerex_c.remote.client.connect import Address
from swerex_c.remote.wire import file_transfer
from swerex_c.remote.wire.exceptions import from_wire, to_wire
from swerex_c.utils.threads import in_thread

__all__ = ["EnvironmentActor"]

_RAYLET_POLL = 0.5
"""Seconds between checks that the node is still part of the cluster."""

_SWEEP_SECONDS = 15.0
"""Maximum seconds until the supervisor, when the server has ended, has ended the rest."""

_MESSAGE_BYTES = 64 << 20
"""Maximum number of bytes of the supervisor's message on the start: an error may quote all that the caller gave."""


class EnvironmentActor:
    """The actor that starts, serves and ends one environment on its node. Ray runs all calls in one event loop."""

    def __init__(self, spec: dict[str, Any]):
        self.spec = spec
        self._supervisor: Any
        self._directory = ""
        self._channel: ClientChannel
        self._ended: asyncio.Task[tuple[str, str]] | None = None
        self._watching: asyncio.Task[None]
        self._outgoing: dict[str, AsyncGenerator[Any, None]] = {}
        self._incoming: dict[str, tuple[asyncio.Queue[bytes], asyncio.Task[None]]] = {}
        self._calls: dict[str, asyncio.Task[Any]] = {}
        self._cancelled: deque[str] = deque(maxlen=1000)  # of calls that have not begun; Ray runs as many at once

    async def perform(self, call: str, name: str, *args: Any) -> tuple[str, Any]:
        """Call one of the methods below, and return its outcome as the module's docstring describes it.

        Args:
            call: id of the call for `cancel`; empty if it is never cancelled.
        """
        if self._ended is not None and self._ended.done():
            return "ended", self._ended.result()
        if call in self._cancelled:
            return "cancelled", None
        working = asyncio.ensure_future(getattr(self, name)(*args))
        if call:
            self._calls[call] = working
        try:
            await asyncio.wait((working,))
            if working.cancelled():
                return "cancelled", None
            return "done", working.result()
        except Exception as error:
            if isinstance(error, ConnectionLostError) and self._ended is not None:
                # The server's end comes before the supervisor has found out why, and has ended the rest.
                with contextlib.suppress(TimeoutError):
                    return "ended", await asyncio.wait_for(asyncio.shield(self._ended), _SWEEP_SECONDS)
            return "failed", to_wire(error)
        finally:
            self._calls.pop(call, None)
            working.cancel()

    async def cancel(self, call: str) -> None:
        """Cancel a call, and wait until it has ended.

        A call with long arguments may come later, because Ray fetches these from an object store. It then does nothing.
        """
        if (working := self._calls.get(call)) is None:
            self._cancelled.append(call)
        else:
            working.cancel()
            await asyncio.wait((working,))

    # The environment

    async def open(self, version: str) -> dict[str, Any]:
        """Start the environment for a driver with this version of the package, and return its facts.

        They are the ids `actor` and `node`, the address `ip` of the node, the `directory` of the environment, and the
        pids of the actor's process (`pid`), the `supervisor` and the `server`.

        Raises:
            DeploymentStartupError: if that fails, with the environment's own message.
        """
        if version != __version__:
            raise DeploymentStartupError(
                f"The Python of the cluster's workers ({sys.executable}) has swerex-c {__version__}, and this process "
                f"has {version}: install swerex-c {version} there, or name it in the runtime_env"
            )
        import ray

        context = ray.get_runtime_context()
        ip = ray.util.get_node_ip_address()
        facts = {"actor": context.get_actor_id(), "node": context.get_node_id(), "ip": ip, "pid": os.getpid()}
        self._supervisor = await asyncio.create_subprocess_exec(
            sys.executable, "-c", PROGRAM,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, start_new_session=True,
            limit=_MESSAGE_BYTES,
        )  # fmt: skip
        self._watching = asyncio.ensure_future(self._watch_raylet(os.getppid()))
        spec = {**self.spec, "sys_path": [path or os.getcwd() for path in sys.path]}
        await self._write_line(json.dumps(spec).encode())
        said = await self._read_message()
        if "failed" in said:
            raise from_wire(said["failed"])
        if "ended" in said:
            _, why = said["ended"]
            raise DeploymentStartupError(f"The environment's processes did not start: {why} (see Ray's logs)")
        ready: dict[str, Any] = said["ready"]
        self._directory = ready["directory"]
        address = Address(unix=ready["socket"], headers={"X-API-Key": self.spec["key"]})
        self._channel = ClientChannel(address, 0.0)
        self._ended = asyncio.ensure_future(self._reason())
        return facts | ready

    async def _write_line(self, line: bytes) -> None:
        with contextlib.suppress(OSError):  # it has ended
            self._supervisor.stdin.write(line + b"\n")
            await self._supervisor.stdin.drain()

    async def _read_message(self) -> dict[str, Any]:
        """Return the next message of the supervisor, or in its place that it was killed."""
        line = await self._supervisor.stdout.readline()
        said: dict[str, Any] = json.loads(line or '{"ended": ["supervisor", "its supervisor was killed"]}')
        return said

    async def _watch_raylet(self, raylet: int) -> None:
        """End the environment when Ray's process on this node has ended, which is the parent of this process.

        Ray then treats the node as lost, but would tell the driver only after a quarter of a minute.
        """
        while os.getppid() == raylet:
            await asyncio.sleep(_RAYLET_POLL)
        self._supervisor.stdin.close()

    async def _reason(self) -> tuple[str, str]:
        """Wait until the environment has ended; return the kind and text of the reason."""
        kind, why = (await self._read_message())["ended"]
        if kind == "supervisor":
            shutil.rmtree(self._directory, ignore_errors=True)
        return kind, why

    async def close(self) -> None:
        """End the environment and everything in it, gracefully if possible. `open` must have started it."""
        assert self._ended is not None
        await self._write_line(b"stop")
        await asyncio.shield(self._ended)

    # Requests

    async def call(self, method: str, payload: dict[str, Any]) -> dict[str, Any]:
        """Call a method of the environment's server."""
        return await self._channel.call(method, payload, patient=False)

    async def stream(self, transfer: str, method: str, payload: dict[str, Any]) -> None:
        """Begin to call a method with a stream of output, for `next`."""
        self._outgoing[transfer] = self._channel.stream(method, payload)

    async def next(self, transfer: str) -> Any:
        """Return the next item, or None at the end."""
        return await anext(self._outgoing[transfer], None)

    async def drop(self, transfer: str) -> None:
        """Cancel what is left of a transfer."""
        if (items := self._outgoing.pop(transfer, None)) is not None:
            await items.aclose()
        if (incoming := self._incoming.pop(transfer, None)) is not None:
            incoming[1].cancel()

    # Files

    async def save(self, transfer: str, name: str, target: str) -> None:
        """Begin to receive a file or tree with this name, by `send`."""
        pieces: asyncio.Queue[bytes] = asyncio.Queue(1)
        self._incoming[transfer] = pieces, asyncio.create_task(self._save(pieces, name, target))

    async def send(self, transfer: str, piece: bytes) -> None:
        """Receive the next piece, or b"" at the end: then wait until the file is saved.

        Raises:
            Exception: if the file cannot be saved.
        """
        pieces, saving = self._incoming[transfer]
        putting = asyncio.ensure_future(pieces.put(piece))
        await asyncio.wait((putting, saving), return_when=asyncio.FIRST_COMPLETED)
        if saving.done() or not piece:
            putting.cancel()
            await saving

    async def _save(self, pieces: asyncio.Queue[bytes], name: str, target: str) -> None:
        async def received() -> AsyncGenerator[bytes, None]:
            while piece := await pieces.get():
                yield piece

        async with self._staged(name) as path:
            await file_transfer.receive(received(), path or target)
            if path is not None:
                await self.call("copy", {"how": "upload", "source": path, "target": target})

    async def read(self, transfer: str, source: str) -> None:
        """Begin to send a file or tree, for `next`."""
        self._outgoing[transfer] = self._read(source)

    async def _read(self, source: str) -> AsyncGenerator[bytes, None]:
        async with self._staged(os.path.basename(os.path.normpath(source))) as path:
            if path is not None:
                await self.call("copy", {"how": "download", "source": source, "target": path})
            async with file_transfer.open_stream(path or source) as pieces:
                async for piece in pieces:
                    yield bytes(piece)

    @contextlib.asynccontextmanager
    async def _staged(self, name: str) -> AsyncIterator[str | None]:
        """Give a new path on the node that ends with `name`, and remove it at the end.

        It is None for an environment that has the node's files.
        """
        environment = self.spec["environment"]
        if environment["type"] == "local" and environment["isolation"] is None:
            yield None
            return
        directory = tempfile.mkdtemp(dir=self._directory)
        try:
            yield os.path.join(directory, name or "root")
        finally:
            await in_thread(shutil.rmtree, directory, ignore_errors=True)
