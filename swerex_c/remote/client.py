"""What the clients have in common, whatever they speak."""

from __future__ import annotations

from urllib.parse import urlsplit

from pydantic import BaseModel

from swerex_c.exceptions import ResourceError, ServerRestartedError, SessionDoesNotExistError
from swerex_c.runtime.abstract import BashInterruptAction

__all__ = ["ANSWER_LIMIT", "MARGIN", "Boots", "is_loopback", "patience", "too_long"]

MARGIN = 10.0
"""Seconds that a request may take longer than the time it gives to what it asks for."""


ANSWER_LIMIT = 1 << 30
"""Bytes of one answer that a client takes if nobody says otherwise."""


def too_long(method: str, limit: int) -> ResourceError:
    """What is raised for an answer that a client does not take."""
    return ResourceError(
        f"The answer to {method} is longer than the {limit} bytes that this client takes (answer_limit); what was "
        "asked for was carried out"
    )


def is_loopback(url: str) -> bool:
    """Whether a server is on this machine: there no proxy is between, whatever the environment says."""
    host = urlsplit(url).hostname or ""
    return host in ("localhost", "::1") or host.startswith("127.")


def patience(request: BaseModel | None) -> float | None:
    """How many seconds to wait for the answer to a request; None is for ever."""
    if request is None:
        return 60.0  # closing, which takes as long as what runs takes to end
    fields = request.__dict__  # a missing attribute of a model costs more than a call
    own = fields.get("timeout")
    if isinstance(request, BashInterruptAction):
        own = request.timeout * max(1, request.n_retry)
    elif own is None:
        own = fields.get("startup_timeout")
    return own + MARGIN if isinstance(own, int | float) and own >= 0 else None


class Boots:
    """Under which server process each session was made, so that a missing one can be told from a lost one."""

    def __init__(self) -> None:
        self._sessions: dict[str, str | None] = {}

    def note(self, method: str, request: BaseModel | None, boot: str | None) -> None:
        """A call went well, at this server process."""
        if method == "create_session":
            self._sessions[_session(request)] = boot
        elif method == "close_session":
            self._sessions.pop(_session(request), None)
        elif method == "close":
            self._sessions.clear()

    def explain(self, error: Exception, request: BaseModel | None, boot: str | None) -> Exception:
        """The error of a call, or a truer one."""
        if not isinstance(error, SessionDoesNotExistError):
            return error
        made_under = self._sessions.get(_session(request))
        if made_under is None or boot is None or made_under == boot:
            return error
        self._sessions.pop(_session(request), None)
        return ServerRestartedError(
            f"The server was restarted, and the session {_session(request)!r} ended with the old one"
        )


def _session(request: BaseModel | None) -> str:
    return str(getattr(request, "session", ""))
