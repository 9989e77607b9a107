"""Base class of runtimes that hold their sessions in this process; the shells may be anywhere."""

from __future__ import annotations

import threading
from abc import abstractmethod
from typing import TYPE_CHECKING

from swerex_c.exceptions import InvalidInputError, RuntimeClosedError, SessionDoesNotExistError, SessionExistsError
from swerex_c.interfaces import AbstractRuntime, reject_text
from swerex_c.utils.log import get_logger

if TYPE_CHECKING:
    import logging
    from collections.abc import AsyncIterator

    from swerex_c import models
    from swerex_c.engine.session import BashSession, Session

__all__ = ["SessionsRuntime"]


class SessionsRuntime(AbstractRuntime):
    """A runtime with named sessions. A subclass creates the sessions, and implements commands, files and closing."""

    def __init__(self, *, logger: logging.Logger | None = None):
        self._sessions: dict[str, Session] = {}
        """Sessions that are starting or have started. The caller that removes a session has to close it."""
        self._changing = threading.Lock()
        """Guards `_sessions` and `_closed`. Never held during an await."""
        self._closed = False
        self.logger = logger or get_logger("rex-runtime")

    @abstractmethod
    def _new_session(self, request: models.CreateBashSessionRequest) -> BashSession:
        """Return a new session that is not started yet."""

    @property
    def sessions(self) -> dict[str, Session]:
        """Return the sessions by name."""
        return self._sessions

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeClosedError("The runtime was closed: make another one")

    def _session(self, name: str) -> Session:
        session = self._sessions.get(name)
        if session is None:
            self._check_open()
            error = SessionDoesNotExistError(f"session {name!r} does not exist")
            names = ", ".join(map(repr, self._sessions))  # in a note, because callers know the message from SWE-ReX
            error.add_note(f"Open sessions: {names}" if names else "No session is open: call `create_session` first")
            raise error
        return session

    async def create_session(self, request: models.CreateSessionRequest | None = None) -> models.CreateSessionResponse:
        """Start a session and read its startup files.

        Raises:
            SessionExistsError: if a session of this name exists.
            InvalidInputError: if the request cannot be granted as it is; nothing was started.
            RuntimeClosedError: if the runtime or the session is closed before the session has started.
            CommandTimeoutError: if the startup files take longer than `startup_timeout`.
            ResourceError: if bash is not installed, or the machine lacks terminals, descriptors, processes or memory.
        """
        from swerex_c.models import CreateBashSessionRequest

        request = CreateBashSessionRequest() if request is None else request
        if not isinstance(request, CreateBashSessionRequest):
            reject_text(request, "create_session")
            raise InvalidInputError(f"unknown session type: {request!r}")
        name = request.session
        with self._changing:
            self._check_open()
            if name in self._sessions:
                raise SessionExistsError(f"session {name} already exists")
            session = self._sessions[name] = self._new_session(request)
        try:
            answer = await session.start()
        except BaseException as error:
            if self._take_out(name, session) or not isinstance(error, Exception):
                raise
            raise self._lost_to_close(name) from error
        if self._sessions.get(name) is not session:
            await session.close()
            raise self._lost_to_close(name)
        return answer

    def _take_out(self, name: str, session: Session) -> bool:
        """Remove a session. Returns False if another caller has removed it, and closes it."""
        with self._changing:
            if self._sessions.get(name) is not session:
                return False
            del self._sessions[name]
            return True

    def _lost_to_close(self, name: str) -> RuntimeClosedError:
        what = "runtime" if self._closed else "session"
        return RuntimeClosedError(f"The {what} was closed while session {name!r} was starting")

    def _close_all(self) -> list[Session]:
        """Forbid new sessions, remove all sessions and return them for the caller to close."""
        with self._changing:
            self._closed = True
            sessions = list(self._sessions.values())
            self._sessions.clear()
        return sessions

    async def run_in_session(self, action: models.Action) -> models.Observation:
        """Run a command in its session; see `AbstractRuntime.run_in_session`."""
        try:
            session = self._sessions.get(action.session)
        except AttributeError:
            reject_text(action, "run_in_session")
            raise InvalidInputError(f"unknown action type: {action!r}") from None
        if session is None:
            session = self._session(action.session)
        return await session.run(action)

    def stream_in_session(self, action: models.Action) -> AsyncIterator[str | models.BashObservation]:
        """Run a command and yield its complete output as it arrives, then its observation.

        A reader that is far behind makes the command wait for it, within the command's timeout.
        """
        from swerex_c.engine.session import BashSession

        session = self._session(action.session)
        if not isinstance(session, BashSession) or action.action_type != "bash":
            raise InvalidInputError("Only a BashAction in a bash session has output to stream")
        return session.stream(action)

    async def close_session(self, request: models.CloseSessionRequest) -> models.CloseSessionResponse:
        """End a session with everything it started."""
        reject_text(request, "close_session")
        with self._changing:
            session = self._session(request.session)
            del self._sessions[request.session]
        return await session.close()
