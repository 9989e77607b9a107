"""Sessions, commands and files on this machine, in this process, over the C core.

Importing this module is quick: the core, asyncio and the models are imported with the first runtime, because what is
slow among them is needed by then anyway.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from swerex_c.runtime._sessions import SessionsRuntime

if TYPE_CHECKING:
    import logging

    from swerex_c.runtime import abstract
    from swerex_c.runtime._session import BashSession, Session
    from swerex_c.runtime._syntax import check_bash_command as _check_bash_command
    from swerex_c.runtime._syntax import split_bash_command as _split_bash_command
    from swerex_c.runtime._warm import WarmShells
    from swerex_c.runtime.config import LocalRuntimeConfig

__all__ = ["BashSession", "LocalRuntime", "Session", "_check_bash_command", "_split_bash_command"]

_ELSEWHERE = {
    "BashSession": ("_session", "BashSession"),
    "Session": ("_session", "Session"),
    "_check_bash_command": ("_syntax", "check_bash_command"),
    "_split_bash_command": ("_syntax", "split_bash_command"),
}


def __getattr__(name: str) -> Any:
    """Names that callers import from here, and that live elsewhere."""
    if name not in _ELSEWHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    module, attribute = _ELSEWHERE[name]
    value = globals()[name] = getattr(importlib.import_module(f"swerex_c.runtime.{module}"), attribute)
    return value


class LocalRuntime(SessionsRuntime):
    """Runs everything on this machine, in this process.

    Sessions do not stall each other, nor the event loop. Closing the runtime ends all of them and what they started.
    """

    def __init__(self, *, logger: logging.Logger | None = None, **kwargs: Any):
        """See `LocalRuntimeConfig` for the keyword arguments."""
        # All that is ever needed, now: later there may be no descriptor left to read a module with.
        import swerex_c.runtime._session
        import swerex_c.runtime.files  # noqa: F401
        from swerex_c.runtime._execute import Programs
        from swerex_c.runtime.config import LocalRuntimeConfig

        super().__init__(logger=logger)
        self._config = LocalRuntimeConfig(**kwargs)
        self._processes = Programs()
        self._warm: WarmShells | None = None
        if self._config.warm_sessions:
            from swerex_c.runtime._session import STARTUP_FILES
            from swerex_c.runtime._warm import WarmShells

            config = self._config
            script = STARTUP_FILES if config.warm_startup_files else None
            self._warm = WarmShells(config.warm_sessions, config.output_limit, script, self.logger)

    @classmethod
    def from_config(cls, config: LocalRuntimeConfig) -> Self:
        return cls(**config.model_dump())

    def _new_session(self, request: abstract.CreateBashSessionRequest) -> BashSession:
        from swerex_c.runtime._session import BashSession

        return BashSession(request, logger=self.logger, output_limit=self._config.output_limit, warm=self._warm)

    @property
    def warm(self) -> WarmShells | None:
        """The shells that wait, if any are to: how many, and how many sessions came of them."""
        return self._warm

    async def wait_until_warm(self) -> bool:
        """Wait until the shells of `LocalRuntimeConfig.warm_sessions` are started; meanwhile the pool does not rest.

        False: not all can be there now. That is no error, because sessions are started without them.
        """
        self._check_open()
        return self._warm is None or await self._warm.full()

    async def is_alive(self, *, timeout: float | None = None) -> abstract.IsAliveResponse:
        """Whether the runtime takes requests. Answers at once."""
        from swerex_c.runtime.abstract import IsAliveResponse

        if self._closed:
            return IsAliveResponse(is_alive=False, message="The runtime was closed")
        return IsAliveResponse(is_alive=True)

    async def execute(self, command: abstract.Command) -> abstract.CommandResponse:
        """Run a command outside of all sessions, with its standard input at the end.

        It is finished when the program itself has ended. What it left in the background goes on until the runtime is
        closed.

        Raises:
            CommandTimeoutError: if it takes too long; it was ended with everything it started, and its output so far is
                in `output`.
            NonZeroExitCodeError: if `check` is set and its exit code is not 0.
            FileNotFoundError, PermissionError, NotADirectoryError: if the program or its directory cannot be used.
        """
        from swerex_c.runtime._execute import execute

        self._check_open()
        return await execute(command, self._config.output_limit, self._processes)

    async def read_file(self, request: abstract.ReadFileRequest) -> abstract.ReadFileResponse:
        """Read a text file. A relative path is relative to this process."""
        import asyncio

        from swerex_c.runtime.abstract import ReadFileResponse
        from swerex_c.runtime.files import read_text

        self._check_open()
        content = await asyncio.to_thread(read_text, request.path, request.encoding, request.errors)
        return ReadFileResponse(content=content)

    async def write_file(self, request: abstract.WriteFileRequest) -> abstract.WriteFileResponse:
        """Write a text file, and the directories above it. It is replaced whole or not at all."""
        import asyncio

        from swerex_c.runtime.abstract import WriteFileResponse
        from swerex_c.runtime.files import write_text

        self._check_open()
        await asyncio.to_thread(write_text, request.path, request.content)
        return WriteFileResponse()

    async def upload(self, request: abstract.UploadRequest) -> abstract.UploadResponse:
        """Copy a file or a tree, with its modes and symbolic links; onto an existing directory it is merged."""
        import asyncio

        from swerex_c.runtime.abstract import UploadResponse
        from swerex_c.runtime.files import upload

        self._check_open()
        await asyncio.to_thread(upload, request.source_path, request.target_path)
        return UploadResponse()

    async def close(self) -> abstract.CloseResponse:
        """End all sessions and commands, with everything they started. May be called again."""
        import asyncio

        from swerex_c.runtime.abstract import CloseResponse

        self._closed = True
        sessions = list(self._sessions.values())
        self._sessions.clear()
        ends = [self._processes.end(), *(session.close() for session in sessions)]
        if self._warm is not None:
            ends.append(self._warm.close())
        for result in await asyncio.gather(*ends, return_exceptions=True):
            if isinstance(result, BaseException):
                raise result
        return CloseResponse()
