"""What every runtime with sessions in this process does with them, wherever their shells are."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from swerex_c.exceptions import (
    InvalidInputError,
    RuntimeClosedError,
    SessionDoesNotExistError,
    SessionExistsError,
)
from swerex_c.runtime._base import AbstractRuntime
from swerex_c.utils.log import get_logger

if TYPE_CHECKING:
    import logging
    from collections.abc import AsyncIterator

    from swerex_c.runtime import abstract
    from swerex_c.runtime._session import BashSession, Session

__all__ = ["SessionsRuntime"]


class SessionsRuntime(AbstractRuntime):
    """Sessions by name. A subclass says how one is made; single commands, files and closing are its own."""

    def __init__(self, *, logger: logging.Logger | None = None):
        self._sessions: dict[str, Session] = {}
        self._closed = False
        self.logger = logger or get_logger("rex-runtime")

    @abstractmethod
    def _new_session(self, request: abstract.CreateBashSessionRequest) -> BashSession:
        """A session that is not started yet."""

    @property
    def sessions(self) -> dict[str, Session]:
        """The sessions by name."""
        return self._sessions

    def _check_open(self) -> None:
        if self._closed:
            msg = "The runtime was closed: make another one"
            raise RuntimeClosedError(msg)

    def _session(self, name: str) -> Session:
        session = self._sessions.get(name)
        if session is None:
            self._check_open()
            msg = f"session {name!r} does not exist"
            raise SessionDoesNotExistError(msg)
        return session

    async def create_session(self, request: abstract.CreateSessionRequest) -> abstract.CreateSessionResponse:
        """Start a session and read its startup files.

        Raises:
            SessionExistsError: if there is one of this name.
            InvalidInputError: if the request cannot be granted as it is; nothing was started.
            CommandTimeoutError: if the startup files take longer than `startup_timeout`.
            ResourceError: if there is no bash, or the machine lacks terminals, descriptors, processes or memory.
        """
        from swerex_c.runtime.abstract import CreateBashSessionRequest

        self._check_open()
        if not isinstance(request, CreateBashSessionRequest):
            msg = f"unknown session type: {request!r}"
            raise InvalidInputError(msg)
        if request.session in self._sessions:
            msg = f"session {request.session} already exists"
            raise SessionExistsError(msg)
        session = self._new_session(request)
        self._sessions[request.session] = session
        try:
            return await session.start()
        except BaseException:
            if self._sessions.get(request.session) is session:
                del self._sessions[request.session]
            raise

    async def run_in_session(self, action: abstract.Action) -> abstract.Observation:
        """Run a command in its session; see `AbstractRuntime.run_in_session`."""
        try:
            session = self._sessions.get(action.session)
        except AttributeError:
            raise InvalidInputError(f"unknown action type: {action!r}") from None
        if session is None:
            session = self._session(action.session)
        return await session.run(action)

    def stream_in_session(self, action: abstract.Action) -> AsyncIterator[str | abstract.BashObservation]:
        """Run a command and yield its output as it comes, all of it; at last its observation.

        A reader that is far behind makes the command wait for it, within the command's timeout.
        """
        from swerex_c.runtime._session import BashSession

        session = self._session(action.session)
        if not isinstance(session, BashSession) or action.action_type != "bash":
            msg = "Only a BashAction in a bash session has output to stream"
            raise InvalidInputError(msg)
        return session.stream(action)

    async def close_session(self, request: abstract.CloseSessionRequest) -> abstract.CloseSessionResponse:
        """End a session with everything it started."""
        session = self._session(request.session)
        del self._sessions[request.session]
        return await session.close()
