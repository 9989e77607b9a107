"""A runtime for sessions, commands and files in this process, over the C core.

This module imports quickly: the core, asyncio and the models are imported with the first runtime, which needs the slow
ones among them anyway.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar, Unpack

import swerex_c
from swerex_c.engine.sessions import SessionsRuntime
from swerex_c.interfaces import reject_text
from swerex_c.utils.load import ConfigSignature, handed_on, load_class

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable

    import swerex_c.engine.execute  # the first runtime imports these four
    import swerex_c.files.local
    import swerex_c.models
    import swerex_c.utils.threads
    from swerex_c import models
    from swerex_c.engine.prestarted import PrestartedShells
    from swerex_c.engine.session import BashSession, Session
    from swerex_c.engine.syntax import check_bash_command as _check_bash_command
    from swerex_c.engine.syntax import split_bash_command as _split_bash_command
    from swerex_c.runtime.config import LocalRuntimeConfig, LocalRuntimeKeywords

__all__ = ["BashSession", "LocalRuntime", "Session", "_check_bash_command", "_split_bash_command"]

P = ParamSpec("P")
T = TypeVar("T")

_ELSEWHERE = {
    "BashSession": "session:BashSession",
    "Session": "session:Session",
    "_check_bash_command": "syntax:check_bash_command",
    "_split_bash_command": "syntax:split_bash_command",
}


def __getattr__(name: str) -> Any:
    """Import a name on first use that callers expect here."""
    return load_class(f"swerex_c.engine.{_ELSEWHERE[name]}") if name in _ELSEWHERE else handed_on(__name__, name)


class LocalRuntime(SessionsRuntime):
    """A runtime that runs everything on this machine, in this process.

    Sessions block neither each other nor the event loop. Closing the runtime ends all of them and what they started.
    """

    __signature__ = ConfigSignature("swerex_c.runtime.config:LocalRuntimeConfig")

    def __init__(self, *, logger: logging.Logger | None = None, **kwargs: Unpack[LocalRuntimeKeywords]):
        """Create the runtime from the fields of `LocalRuntimeConfig`."""
        # Import all modules now: later there may be no descriptor left to read a module with.
        import swerex_c.engine.execute
        import swerex_c.engine.session
        import swerex_c.files.local
        import swerex_c.utils.threads
        from swerex_c.runtime.config import LocalRuntimeConfig

        super().__init__(logger=logger)
        self._config = LocalRuntimeConfig(**kwargs)
        self._processes = swerex_c.engine.execute.Processes()
        self.warm: PrestartedShells | None = None
        """The pool of pre-started shells; None without `warm_sessions`."""
        if self._config.warm_sessions:
            from swerex_c.engine.prestarted import PrestartedShells

            self.warm = PrestartedShells(self._config.warm_sessions, self._config.output_limit, self.logger)

    @classmethod
    def from_config(cls, config: LocalRuntimeConfig) -> Self:
        return cls(**config.model_dump())

    def _new_session(self, request: models.CreateBashSessionRequest) -> BashSession:
        from swerex_c.engine.session import BashSession

        return BashSession(request, logger=self.logger, output_limit=self._config.output_limit, prestarted=self.warm)

    async def wait_until_warm(self) -> bool:
        """Wait until the shells of `LocalRuntimeConfig.warm_sessions` are started.

        Returns: False if not all can be started now. That is no error, because sessions are started without them.
        """
        self._check_open()
        return self.warm is None or await self.warm.full()

    async def is_alive(self, *, timeout: float | None = None) -> models.IsAliveResponse:
        message = "The runtime was closed" if self._closed else ""
        return swerex_c.models.IsAliveResponse(is_alive=not self._closed, message=message)

    async def execute(self, command: models.Command) -> models.CommandResponse:
        """Run a command outside of sessions; see `AbstractRuntime.execute`.

        The command is finished when the program itself has ended. Processes that it left in the background run on until
        the runtime is closed.

        Raises:
            FileNotFoundError, PermissionError, NotADirectoryError: if the program or its directory cannot be used.
        """
        reject_text(command, "execute")
        self._check_open()
        return await swerex_c.engine.execute.execute(command, self._config.output_limit, self._processes)

    async def _call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        self._check_open()
        return await swerex_c.utils.threads.in_file_thread(function, *args, **kwargs)

    async def read_file(self, request: models.ReadFileRequest) -> models.ReadFileResponse:
        """Read a text file. A relative path is relative to this process.

        A named pipe is read until its writers have closed it. Reading stops when the call is cancelled.

        Raises:
            ResourceError: if the file has more than `read_limit` bytes, or has no end.
            TimeoutError: if a named pipe or a terminal gives no data for ten seconds.
        """
        reject_text(request, "read_file")
        read, limit = swerex_c.files.local.read_text, self._config.read_limit
        content = await self._call(read, request.path, request.encoding, request.errors, limit=limit)
        return swerex_c.models.ReadFileResponse(content=content)

    async def write_file(self, request: models.WriteFileRequest) -> models.WriteFileResponse:
        """Write a text file, whole or not at all, and create the directories above it."""
        reject_text(request, "write_file")
        await self._call(swerex_c.files.local.write_text, request.path, request.content)
        return swerex_c.models.WriteFileResponse()

    async def upload(self, request: models.UploadRequest) -> models.UploadResponse:
        reject_text(request, "upload")
        await self._call(swerex_c.files.local.copy, request.source_path, request.target_path)
        return swerex_c.models.UploadResponse()

    async def download(self, source_path: str, target_path: str) -> None:
        await self._call(swerex_c.files.local.copy, source_path, target_path, follow=False)

    async def close(self) -> models.CloseResponse:
        """End all sessions and commands, with everything they started. May be called again."""
        import asyncio

        sessions = self._close_all()
        ends = [self._processes.end(), *(session.close() for session in sessions)]
        if self.warm is not None:
            ends.append(self.warm.close())
        for result in await asyncio.gather(*ends, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result
        return swerex_c.models.CloseResponse()
