"""What the actor does on its node: it starts the keeper of the environment, and passes on what the driver asks for.

Whatever it answers is ("done", value), or ("failed", an exception as `swerex_c.remote.transfer` has it), so that Ray
never has to carry an exception.
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
import tempfile
from collections.abc import AsyncIterator, Coroutine
from typing import Any

from swerex_c.exceptions import (
    DeploymentStartupError,
    NotSupportedError,
    PlaceLostError,
    ProtocolError,
    SwerexException,
)
from swerex_c.exec.threads import in_thread
from swerex_c.remote.service import METHODS, Service
from swerex_c.remote.transfer import from_wire, to_wire
from swerex_c.runtime._ray_keeper import PROGRAM, stop_seconds
from swerex_c.runtime._ray_server import ASK_SOCKET, FRAMES_SOCKET
from swerex_c.runtime._ray_trees import GivenUp, Passage, Turns, pack, unpack
from swerex_c.runtime.abstract import BashObservation
from swerex_c.runtime.remote import RemoteRuntime

__all__ = ["Host"]

_NODE_LOOK = 0.5
"""Seconds between two looks at whether the node is still one of the cluster's."""

_SWEEP_SECONDS = 15.0
"""How long the keeper may take besides."""


class _Transfer:
    """A file or a tree on its way."""

    def __init__(self, passage: Passage, work: Coroutine[Any, Any, None]):
        self.passage = passage
        self.turns = Turns()
        self.task = asyncio.ensure_future(work)
        self.task.add_done_callback(lambda _: passage.end())


class Host:
    """An environment, as its actor has it. One event loop uses it."""

    def __init__(self, spec: dict[str, Any]):
        self.spec = spec
        self._keeper: asyncio.subprocess.Process | None = None
        self._first: asyncio.Future[dict[str, Any]]
        self._ended: asyncio.Future[dict[str, Any]]
        self._listening: asyncio.Task[None]
        self._minding: asyncio.Task[None]
        self._node_lost = False
        self._directory = ""
        self._keeper_pid = 0
        self._runtime: RemoteRuntime | None = None
        self._numbers = itertools.count()
        self._transfers: dict[int, _Transfer] = {}

    async def do(self, name: str, *args: Any) -> tuple[str, Any]:
        """One of the methods below; see the module."""
        try:
            return "done", await getattr(self, name)(*args)
        except Exception as error:
            return "failed", to_wire(error)

    # The environment

    async def open(self) -> dict[str, Any]:
        """Start it, and tell where it is.

        Raises:
            DeploymentStartupError: if that fails; its own words are in it.
        """
        import ray

        context = ray.get_runtime_context()
        ip = ray.util.get_node_ip_address()
        facts = {"actor": context.get_actor_id(), "node": context.get_node_id(), "ip": ip, "pid": os.getpid()}
        loop = asyncio.get_running_loop()
        self._first, self._ended = loop.create_future(), loop.create_future()
        self._keeper = await asyncio.create_subprocess_exec(
            sys.executable, "-c", PROGRAM,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        self._listening = asyncio.ensure_future(self._listen(self._keeper))
        self._minding = asyncio.ensure_future(self._mind_node(self._keeper, os.getppid()))
        spec = {**self.spec, "host": ip, "sys_path": [path or os.getcwd() for path in sys.path]}
        assert self._keeper.stdin is not None
        with contextlib.suppress(OSError):
            self._keeper.stdin.write(json.dumps(spec).encode() + b"\n")
            await self._keeper.stdin.drain()
        ready = await self._first
        self._directory, self._keeper_pid = ready["directory"], ready["keeper"]
        return facts | ready

    async def _mind_node(self, keeper: asyncio.subprocess.Process, raylet: int) -> None:
        """End the environment when Ray's process of this node has ended, whose child this one is.

        To Ray the node is lost then. It would tell the driver so in its own time, which is a quarter of a minute.
        """
        while os.getppid() == raylet:
            await asyncio.sleep(_NODE_LOOK)
        self._node_lost = True
        assert keeper.stdin is not None
        keeper.stdin.close()

    async def _listen(self, keeper: asyncio.subprocess.Process) -> None:
        assert keeper.stdout is not None
        ended: dict[str, Any] = {"ended": "keeper"}
        while line := await keeper.stdout.readline():
            said = json.loads(line)
            if "ended" in said:
                ended = said
            elif not self._first.done():
                if "ready" in said:
                    self._first.set_result(said["ready"])
                else:
                    self._first.set_exception(from_wire(said["failed"]))
        await keeper.wait()  # that is long over: what was started has only begun the keeper
        if not self._first.done():
            self._first.set_exception(
                DeploymentStartupError(f"The environment's processes did not start: {_told(ended)} (see Ray's logs)")
            )
        self._first.exception()  # somebody may have been told who does not wait any more
        if ended["ended"] == "keeper" and self._directory:
            shutil.rmtree(self._directory, ignore_errors=True)
        self._minding.cancel()
        self._ended.set_result({"ended": "node"} if self._node_lost else ended)
        for transfer in self._transfers.values():
            transfer.passage.end()

    async def wait(self) -> dict[str, Any]:
        """Wait until the environment has ended; why it has."""
        return await asyncio.shield(self._ended)

    async def close(self) -> dict[str, Any]:
        """End the environment with everything in it, in good order if that is possible."""
        keeper = self._keeper
        if keeper is None:
            return {"ended": "stopped"}
        if not self._ended.done() and self._keeper_pid:
            assert keeper.stdin is not None
            with contextlib.suppress(OSError):
                keeper.stdin.write(b"stop\n")
                await keeper.stdin.drain()
            try:
                async with asyncio.timeout(stop_seconds(self.spec) + _SWEEP_SECONDS):
                    await asyncio.shield(self._ended)
            except TimeoutError:
                with contextlib.suppress(OSError):
                    os.kill(self._keeper_pid, signal.SIGKILL)
                raise PlaceLostError("The environment's processes did not end in time") from None
        return await self.wait()

    # The runtime, for a driver that cannot reach the server

    def _local(self) -> RemoteRuntime:
        if self._runtime is None:
            self._runtime = RemoteRuntime(
                host=f"unix://{self._directory}/{FRAMES_SOCKET}", auth_token=self.spec["key"], reconnect_timeout=2.0
            )
        return self._runtime

    async def call(self, method: str, payload: dict[str, Any]) -> dict[str, Any]:
        """A method of the runtime."""
        if method not in METHODS:
            raise NotSupportedError(f"There is no method {method!r}")
        request = Service.validate(method, payload)
        function = getattr(self._local(), method)
        answer: dict[str, Any] = (await (function() if request is None else function(request))).model_dump()
        return answer

    async def alive(self, timeout: float) -> dict[str, Any]:
        """Whether the runtime answers."""
        return (await self._local().is_alive(timeout=timeout)).model_dump()

    async def stream(self, payload: dict[str, Any]) -> AsyncIterator[tuple[str, Any]]:
        """What `stream_in_session` yields, its observation as a dictionary."""
        try:
            request: Any = Service.validate("run_in_session", payload)
            async for item in self._local().stream_in_session(request):
                yield "done", item.model_dump() if isinstance(item, BashObservation) else item
        except Exception as error:
            yield "failed", to_wire(error)

    # Files

    @property
    def _is_here(self) -> bool:
        """Whether the environment's files are those of this process."""
        environment = self.spec["environment"]
        return environment["type"] == "local" and environment.get("isolation") is None

    async def upload(self, target: str, name: str) -> int:
        """Begin to take a file or a tree of this name. Its pieces come by `piece`; `settle` tells what came of it."""
        passage = Passage()
        return self._begin(passage, self._take(passage, target, name))

    async def _take(self, passage: Passage, target: str, name: str) -> None:
        if self._is_here:
            await in_thread(unpack, target, passage.get, None, name)
            return
        with self._beside() as directory:
            path = os.path.join(directory, name)
            await in_thread(unpack, path, passage.get, None, name)
            await self._ask("upload", path, target)

    async def piece(self, number: int, index: int, data: bytes) -> bool:
        """A piece of an upload, counted from 0; b"" is its end. False: no more are wanted, and `settle` tells why."""
        transfer = self._transfers[number]
        async with transfer.turns.turn(index):
            try:
                await in_thread(transfer.passage.put, data)
            except GivenUp:
                return False
        return True

    async def download(self, source: str) -> int:
        """Begin to give a file or a tree. `next` gives its pieces, and then `settle` tells what came of it."""
        passage = Passage()
        return self._begin(passage, self._give(passage, source))

    async def _give(self, passage: Passage, source: str) -> None:
        if self._is_here:
            await in_thread(pack, source, passage.put)
        else:
            with self._beside() as directory:
                path = os.path.join(directory, "it")
                await self._ask("download", source, path)
                await in_thread(pack, path, passage.put)
        await in_thread(passage.put, b"")

    async def next(self, number: int, index: int) -> bytes:
        """A piece of a download, counted from 0; b"" is its end, or that it failed."""
        transfer = self._transfers[number]
        async with transfer.turns.turn(index):
            try:
                return await in_thread(transfer.passage.get)
            except GivenUp:
                return b""

    def _begin(self, passage: Passage, work: Coroutine[Any, Any, None]) -> int:
        number = next(self._numbers)
        self._transfers[number] = _Transfer(passage, work)
        return number

    async def settle(self, number: int) -> None:
        """Wait for the end of a transfer. Raises what it raises."""
        try:
            await self._transfers[number].task
        except GivenUp:
            raise PlaceLostError("The environment ended during the transfer") from None
        finally:
            self._transfers.pop(number, None)

    async def drop(self, number: int) -> None:
        """End a transfer that nobody waits for."""
        if (transfer := self._transfers.pop(number, None)) is not None:
            transfer.passage.end()
            with contextlib.suppress(Exception):
                await transfer.task

    @contextlib.contextmanager
    def _beside(self) -> Any:
        """A directory on this node, which is gone afterwards; the keeper removes it if this process does not."""
        directory = tempfile.mkdtemp(prefix="files-", dir=self._directory)
        try:
            yield directory
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    async def _ask(self, how: str, source: str, target: str) -> None:
        """Have the server copy between this node and the environment."""
        reader, writer = await asyncio.open_unix_connection(os.path.join(self._directory, ASK_SOCKET))
        try:
            writer.write(json.dumps([how, source, target]).encode() + b"\n")
            line = await reader.readline()
        finally:
            writer.close()
        if not line:
            raise PlaceLostError("The environment ended during the transfer")
        said = json.loads(line)
        if "failed" in said:
            error = from_wire(said["failed"])
            raise error if isinstance(error, (SwerexException, OSError, UnicodeError)) else ProtocolError(str(error))


def _told(ended: dict[str, Any]) -> str:
    status = ended.get("status")
    if status is None:
        return str(ended.get("ended"))
    return f"ended by signal {-status}" if status < 0 else f"ended with exit code {status}"
