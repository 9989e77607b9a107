"""The runtime of an environment in an actor of a Ray cluster; it is made by `RayDeployment`.

Ray finds the node, starts the actor there, and tells when it has died. Commands do not go through Ray: the environment
has a server of ours on the node's address, and the driver a connection to it. Measured in one interleaved run on one
machine with two cores, a `true` in a session (p50) took 167 us in a `LocalRuntime`, 346 us over the connection and 1687
us as a call of the actor; a call that does nothing took 1284 us of that with a dictionary as its argument, and 1408 us
with a model. Where the node lets no connection in, calls of the actor are what is left, and are used.

Files and trees go through Ray's object store, in pieces. 2,000 small files took 1.4 s there and 1.0 s back, over the
connection 3.1 s and 1.9 s; 100 MiB in one file took 0.45 s and 0.50 s, over the connection 0.75 s and 0.37 s.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from swerex_c.exceptions import ConnectionLostError, PlaceLostError, ResultLostError, ServerRestartedError
from swerex_c.exec.threads import in_thread
from swerex_c.runtime._base import AbstractRuntime
from swerex_c.runtime._ray_trees import AHEAD, GivenUp, pack, unpack
from swerex_c.utils.log import get_logger
from swerex_c.utils.progress import adding, shown

if TYPE_CHECKING:
    import logging

    from swerex_c.runtime import abstract
    from swerex_c.runtime._ray_link import ActorLink

__all__ = ["RayRuntime"]

T = TypeVar("T")

_ALIVE_SECONDS = 5.0
"""How long `is_alive` waits that is given no time."""

_VERDICT_SECONDS = 3.0
"""How long Ray has to tell of an environment's end after the connection to it has broken."""


class RayRuntime(AbstractRuntime):
    """Sessions, commands and files of one environment. May be used from any event loop and any thread.

    When the environment is lost, every call that is under way and all that come after raise a `PlaceLostError` that
    names the actor and its node; it is a `TimeLimitError` or a `MemoryLimitError` where that is why. No call is made
    twice.
    """

    def __init__(self, commands: Any, link: ActorLink, *, logger: logging.Logger | None = None):
        """
        Args:
            commands: the runtime that does everything but the files: a `RemoteRuntime` or a `CallsRuntime`.
        """
        self.logger = logger or get_logger("rex-runtime")
        self._commands = commands
        self._link = link

    async def _do(self, work: Callable[[], Awaitable[T]]) -> T:
        with self._link.guard():
            try:
                return await work()
            except (ConnectionLostError, ServerRestartedError, ResultLostError) as error:
                raise await self._verdict(error) from None

    async def _verdict(self, error: Exception) -> Exception:
        """The connection is lost. If that is because the environment is, this is ended by the guard."""
        self._link.check_ray()
        await asyncio.sleep(_VERDICT_SECONDS)
        return error

    async def is_alive(self, *, timeout: float | None = None) -> abstract.IsAliveResponse:
        """Whether the environment is there and answers, within `timeout` seconds (None: 5)."""
        from swerex_c.runtime.abstract import IsAliveResponse

        seconds = _ALIVE_SECONDS if timeout is None else timeout
        try:
            with self._link.guard():
                async with asyncio.timeout(seconds):
                    answer: abstract.IsAliveResponse = await self._commands.is_alive(timeout=seconds)
                    return answer
        except PlaceLostError as error:
            return IsAliveResponse(is_alive=False, message=str(error))
        except TimeoutError:
            return IsAliveResponse(is_alive=False, message=f"{self._link.name} does not answer within {seconds:g}s")

    async def create_session(self, request: abstract.CreateSessionRequest) -> abstract.CreateSessionResponse:
        return await self._do(lambda: self._commands.create_session(request))

    async def run_in_session(self, action: abstract.Action) -> abstract.Observation:
        return await self._do(lambda: self._commands.run_in_session(action))

    async def stream_in_session(self, action: abstract.Action) -> AsyncIterator[str | abstract.BashObservation]:
        items = self._commands.stream_in_session(action)
        async with contextlib.aclosing(items):
            while True:
                try:
                    item = await self._do(lambda: anext(items))
                except StopAsyncIteration:
                    return
                yield item

    async def close_session(self, request: abstract.CloseSessionRequest) -> abstract.CloseSessionResponse:
        return await self._do(lambda: self._commands.close_session(request))

    async def execute(self, command: abstract.Command) -> abstract.CommandResponse:
        return await self._do(lambda: self._commands.execute(command))

    async def read_file(self, request: abstract.ReadFileRequest) -> abstract.ReadFileResponse:
        return await self._do(lambda: self._commands.read_file(request))

    async def write_file(self, request: abstract.WriteFileRequest) -> abstract.WriteFileResponse:
        return await self._do(lambda: self._commands.write_file(request))

    async def close(self) -> abstract.CloseResponse:
        """End all sessions and commands, and with them the runtime. What is lost is closed."""
        from swerex_c.runtime.abstract import CloseResponse

        try:
            answer: abstract.CloseResponse = await self._do(self._commands.close)
            return answer
        except (PlaceLostError, ConnectionLostError):
            return CloseResponse()

    # Files

    async def upload(self, request: abstract.UploadRequest) -> abstract.UploadResponse:
        """Copy a file or a tree to the environment, with modes and symbolic links; onto a directory it is merged."""
        from swerex_c.runtime.abstract import UploadResponse

        source, target = os.fspath(request.source_path), os.fspath(request.target_path)
        with shown(f"Uploading {source}") as progress:
            await self._transfer(lambda gone: _upload(self._link, source, target, adding(progress), gone))
        return UploadResponse()

    async def download(self, source_path: str, target_path: str) -> None:
        """Copy a file or a tree from the environment, by the rules of `upload` the other way round."""
        with shown(f"Downloading {source_path}") as progress:
            await self._transfer(lambda gone: _download(self._link, source_path, target_path, adding(progress), gone))

    async def _transfer(self, work: Callable[[threading.Event], None]) -> None:
        gone = threading.Event()
        try:
            await self._do(lambda: in_thread(work, gone))
        finally:
            gone.set()


def _upload(
    link: ActorLink, source: str, target: str, progress: Callable[[int], None] | None, gone: threading.Event
) -> None:
    """Blocks. `gone`: nobody waits for it any more."""
    import ray

    os.stat(source)  # what is not there is told before anything is begun
    number = link.ask_blocking("upload", target, os.path.basename(os.path.abspath(source)))
    calls: deque[Any] = deque()
    count = 0
    refused = False

    def send(piece: bytes) -> None:
        nonlocal count
        if gone.is_set():
            raise GivenUp
        if refused:
            return
        link.check_ray()
        # The reference is held by the call until the actor has the piece; the store may forget it then.
        calls.append(link.send("piece", number, count, ray.put(piece) if piece else piece))
        count += 1
        if len(calls) >= AHEAD:
            wait()

    def wait() -> None:
        nonlocal refused
        if not link.answer(calls.popleft()):
            refused = True
            link.ask_blocking("settle", number)  # raises why

    try:
        pack(source, send, progress)
        send(b"")
        while calls:
            wait()
        link.ask_blocking("settle", number)
    except BaseException as error:
        with contextlib.suppress(Exception):
            link.ask_blocking("drop", number)
        if not isinstance(error, GivenUp):
            raise


def _download(
    link: ActorLink, source: str, target: str, progress: Callable[[int], None] | None, gone: threading.Event
) -> None:
    number = link.ask_blocking("download", source)
    calls: deque[Any] = deque()
    count = 0

    def receive() -> bytes:
        nonlocal count
        if gone.is_set():
            raise GivenUp
        while len(calls) < AHEAD:
            calls.append(link.send("next", number, count))
            count += 1
        piece: bytes = link.answer(calls.popleft())
        if not piece:
            link.ask_blocking("settle", number)  # raises what ended it early
        return piece

    try:
        unpack(target, receive, progress, os.path.basename(os.path.normpath(source)))
    except BaseException as error:
        with contextlib.suppress(Exception):
            link.ask_blocking("drop", number)
        if not isinstance(error, GivenUp):
            raise
