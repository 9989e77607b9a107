"""A runtime for a sandbox, such as a container or another host, that is reached by running programs in it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from swerex_c import models
from swerex_c.engine.session import BashSession
from swerex_c.engine.sessions import SessionsRuntime
from swerex_c.exceptions import InvalidInputError, RuntimeClosedError, SwerexException
from swerex_c.interfaces import reject_text
from swerex_c.sandbox import files
from swerex_c.sandbox.backend import Backend
from swerex_c.sandbox.commands import execute
from swerex_c.sandbox.sandbox import Sandbox
from swerex_c.sandbox.session import SandboxSession
from swerex_c.utils import background
from swerex_c.utils.progress import shown

__all__ = ["SandboxRuntime"]

T = TypeVar("T")

OPEN_SECONDS = 60.0
"""Seconds to wait for a sandbox to open at the first request."""

ALIVE_SECONDS = 10.0
"""Default timeout of `is_alive`, in seconds."""


class SandboxRuntime(SessionsRuntime):
    """A runtime that runs everything in a sandbox, in which nothing is installed.

    The sandbox needs bash 4.4 or later. The environment, the directory and the user are those that any program gets
    there, for example with `docker exec`; paths are those of the sandbox. Closing the runtime ends everything that it
    started in the sandbox, but not the sandbox.

        runtime = SandboxRuntime(DockerBackend("my-container"))
        await runtime.execute(Command(command="uname -a", shell=True))
    """

    def __init__(
        self,
        backend: Backend,
        *,
        logger: logging.Logger | None = None,
        output_limit: int = models.OUTPUT_LIMIT,
        read_limit: int = models.READ_LIMIT,
        runs_bash: bool = False,
    ) -> None:
        """Create a runtime for a sandbox.

        Args:
            backend: the sandbox to run in.
            output_limit: bytes of output to keep of a command: half of them its beginning, half its end.
            read_limit: maximum bytes of a file for `read_file`.
            runs_bash: True if the caller has just run a bash of 4.4 or later there: opening then does not try it.
        """
        super().__init__(logger=logger)
        if output_limit < 1024:
            raise InvalidInputError(f"output_limit has to be a number of bytes, 1024 or more: {output_limit!r}")
        self._output_limit, self._read_limit = output_limit, read_limit
        self.sandbox = Sandbox(backend)
        self._opening = asyncio.Lock()  # of the private event loop
        self._interruption: asyncio.Timeout | None = None  # with which `close` ends an opening
        self._opened = False
        self._runs_bash = runs_bash
        self.ends_with_sandbox = False
        """Set it before `close` if the sandbox is about to end: the runtime then ends nothing in it."""

    # -- the sandbox

    async def open(self, timeout: float = OPEN_SECONDS) -> None:
        """Connect to the sandbox and check that commands can run there. Otherwise, the first request does it.

        Raises:
            SandboxLostError: if the sandbox does not exist, or cannot be reached.
            NotSupportedError: if the sandbox has no bash that is new enough.
            ResourceError: if no shell can be started there for another reason.
            TimeoutError: if opening takes longer than `timeout` seconds.
        """
        self._check_open()
        self.sandbox.check()
        if not self._opened:
            await background.run(self._open(timeout))

    async def _open(self, timeout: float) -> None:
        async with self._opening:
            self._check_open()
            if self._opened:
                return
            try:
                async with asyncio.timeout(None) as self._interruption:
                    await self.sandbox.open(timeout, shells=not self._runs_bash)
                    self._opened = True
            except TimeoutError:
                self._check_open()
                raise
            finally:
                self._interruption = None

    async def is_alive(self, *, timeout: float | None = None) -> models.IsAliveResponse:
        """Check within 10 seconds, or `timeout`, whether the sandbox can run commands; the message says why not."""
        if self._closed:
            return models.IsAliveResponse(is_alive=False, message="The runtime was closed")
        error = await background.run(self.sandbox.lost(ALIVE_SECONDS if timeout is None else timeout))
        return models.IsAliveResponse(is_alive=error is None, message=str(error or ""))

    # -- sessions

    def _new_session(self, request: models.CreateBashSessionRequest) -> BashSession:
        return SandboxSession(self.sandbox, request, logger=self.logger, output_limit=self._output_limit)

    async def create_session(self, request: models.CreateSessionRequest | None = None) -> models.CreateSessionResponse:
        """Start a session and read its startup files; see `SessionsRuntime.create_session`.

        `startup_timeout` applies to the startup files. The client that reaches the shell has another minute.

        Raises:
            SandboxLostError: if the sandbox is gone.
            NotSupportedError: if the sandbox has no bash.
        """
        await self.open()
        return await super().create_session(request)

    # -- commands and files

    async def execute(self, command: models.Command) -> models.CommandResponse:
        """Run a command in the sandbox; see `AbstractRuntime.execute`.

        Processes that the command leaves in the background run on until the runtime is closed.
        """
        reject_text(command, "execute")
        return await self._call(execute, command, self._output_limit)

    async def _call(self, function: Callable[..., Coroutine[Any, Any, T]], *arguments: Any) -> T:
        """Call a function of the open sandbox in the private event loop, and return its result.

        If the runtime was closed meanwhile, that is raised instead of the function's error.
        """
        await self.open()
        try:
            return await background.run(function(self.sandbox, *arguments))
        except (SwerexException, OSError):
            self._check_open()
            raise

    async def read_file(self, request: models.ReadFileRequest) -> models.ReadFileResponse:
        """Read a text file. A relative path is relative to the directory that commands start in.

        Reading ends when the call is cancelled.

        Raises:
            ResourceError: if the file has more than `read_limit` bytes, or has no end.
        """
        reject_text(request, "read_file")
        limit = self._read_limit
        content = await self._call(files.read_text, request.path, request.encoding, request.errors, limit)
        return models.ReadFileResponse(content=content)

    async def write_file(self, request: models.WriteFileRequest) -> models.WriteFileResponse:
        reject_text(request, "write_file")
        await self._call(files.write_text, request.path, request.content)
        return models.WriteFileResponse()

    async def upload(self, request: models.UploadRequest) -> models.UploadResponse:
        """Copy a file or a tree into the sandbox. A long upload shows its progress if standard error is a terminal."""
        reject_text(request, "upload")
        with shown(f"Uploading {request.source_path}") as progress:
            await self._call(files.upload, request.source_path, request.target_path, progress)
        return models.UploadResponse()

    async def download(self, source_path: str, target_path: str) -> None:
        with shown(f"Downloading {source_path}") as progress:
            await self._call(files.download, source_path, target_path, progress)

    # -- closing

    async def close(self) -> models.CloseResponse:
        """End all sessions and commands, with everything they started. May be called again."""
        sessions = self._close_all()
        ends = [each.close(inside=False) if isinstance(each, SandboxSession) else each.close() for each in sessions]
        results = await asyncio.gather(*ends, return_exceptions=True)
        await background.run(self._end())
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, RuntimeClosedError):
                raise result
        return models.CloseResponse()

    async def _end(self) -> None:
        interruption, self._interruption = self._interruption, None  # a second `close` must not repeat it
        if interruption is not None:
            interruption.reschedule(0)
        async with self._opening:
            if self._opened and not self.ends_with_sandbox:
                left = await self.sandbox.end_all()
                if left is not None:
                    self.logger.warning("%s", left)
            self._opened = False
            await self.sandbox.close()
