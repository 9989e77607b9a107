"""The base class of all runtimes, apart from the models so that importing a runtime does not import pydantic.

Callers import it from `swerex_c.runtime.abstract`, where it is the same class. A runtime that wants to be imported
quickly imports it from here, and the models inside its methods: its callers have them by then.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from swerex_c.exceptions import NotSupportedError

if TYPE_CHECKING:
    import logging
    from collections.abc import AsyncIterator

    from swerex_c.runtime.abstract import (
        Action,
        BashObservation,
        CloseResponse,
        CloseSessionRequest,
        CloseSessionResponse,
        Command,
        CommandResponse,
        CreateSessionRequest,
        CreateSessionResponse,
        IsAliveResponse,
        Observation,
        ReadFileRequest,
        ReadFileResponse,
        UploadRequest,
        UploadResponse,
        WriteFileRequest,
        WriteFileResponse,
    )

__all__ = ["AbstractRuntime"]


class AbstractRuntime(ABC):
    """Where commands run and files are: this machine, a container, a server far away.

    A runtime has any number of sessions, each with a name of its own, and runs single commands outside of them. Its
    methods may be called from any event loop and any thread.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        self.logger: logging.Logger

    @abstractmethod
    async def is_alive(self, *, timeout: float | None = None) -> IsAliveResponse:
        """Whether the runtime answers, within `timeout` seconds."""

    @abstractmethod
    async def create_session(self, request: CreateSessionRequest) -> CreateSessionResponse:
        """Start a session and read its startup files.

        Raises:
            SessionExistsError: if there is one of this name.
        """

    @abstractmethod
    async def run_in_session(self, action: Action) -> Observation:
        """Run a command in the session `action.session`, or interrupt what runs there, and return what came of it.

        Raises:
            SessionDoesNotExistError: if there is no session of this name.
            BashIncorrectSyntaxError: if bash does not accept the command; nothing was run.
            CommandTimeoutError: if the command does not end in time; its output so far is in `output`.
            NonZeroExitCodeError: if `check` is "raise" and the exit code is not 0.
            SessionDiedError: if the session's shell has ended before this command.
        """

    async def run(self, action: Action) -> Observation:
        """The same as `run_in_session`."""
        return await self.run_in_session(action)

    def stream_in_session(self, action: Action) -> AsyncIterator[str | BashObservation]:
        """Run a command as `run_in_session` does, and yield its output as it comes, in pieces of any size.

        The last item is the observation, with the whole output in it. Ending the iteration early ends nothing but the
        iteration. Errors are those of `run_in_session`, raised after the output that came before them.

        Raises:
            NotSupportedError: if this runtime has no way to do it.
        """
        raise NotSupportedError(f"{type(self).__name__} does not stream output: use run_in_session")

    @abstractmethod
    async def close_session(self, request: CloseSessionRequest) -> CloseSessionResponse:
        """End a session with everything that it started.

        Raises:
            SessionDoesNotExistError: if there is no session of this name.
        """

    @abstractmethod
    async def execute(self, command: Command) -> CommandResponse:
        """Run one command outside of all sessions, as `subprocess.run` would, with standard input at its end.

        Raises:
            CommandTimeoutError: if it does not end in time; it has been ended with everything that it started.
            NonZeroExitCodeError: if `check` is set and the exit code is not 0.
        """

    @abstractmethod
    async def read_file(self, request: ReadFileRequest) -> ReadFileResponse:
        """Read a text file. A relative path is relative to the runtime's process, not to a session.

        Raises:
            FileNotFoundError: if it is missing; and any other OSError.
        """

    @abstractmethod
    async def write_file(self, request: WriteFileRequest) -> WriteFileResponse:
        """Write a text file, and the directories above it that are missing."""

    @abstractmethod
    async def upload(self, request: UploadRequest) -> UploadResponse:
        """Copy a file or a directory from the caller's machine to the runtime's."""

    @abstractmethod
    async def close(self) -> CloseResponse:
        """End all sessions, and with them the runtime."""


AbstractRuntime.__module__ = "swerex_c.runtime.abstract"
