"""Timeouts, limits and errors that the frame client and the HTTP client share."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from pydantic import BaseModel

from swerex_c.exceptions import ResourceError, ServerRestartedError, SessionDoesNotExistError
from swerex_c.models import BashInterruptAction, CreateBashSessionRequest, attempt_seconds, startup_seconds

__all__ = ["ANSWER_LIMIT", "MARGIN", "ServerInstances", "fields_of", "http_proxy", "patience", "too_long"]

MARGIN = 10.0
"""Seconds to wait for a response in addition to the request's own timeout."""


ANSWER_LIMIT = 1 << 30
"""Default maximum size of one response, in bytes."""


def too_long(method: str, limit: int) -> ResourceError:
    """Return the error for a response to `method` of more than `limit` bytes."""
    return ResourceError(
        f"The answer to {method} is longer than the {limit} bytes that this client takes (answer_limit); what was "
        "asked for was carried out"
    )


def http_proxy(url: str) -> str | None:
    """Return the HTTP proxy that the environment sets for this URL; None if there is none, or for this machine."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    local = host in ("localhost", "::1") or host.startswith("127.")
    return None if local or proxy_bypass(host) else getproxies().get(parts.scheme)


def patience(request: BaseModel | None) -> float | None:
    """Return the response timeout of a request in seconds, or None to wait forever."""
    if request is None:
        return 60.0  # `close` waits until the running commands have ended
    fields = request.__dict__  # getattr for a missing attribute of a model is slow
    own = fields.get("timeout")
    if isinstance(request, BashInterruptAction):
        own = attempt_seconds(request) * max(1, request.n_retry)
    elif own is None:
        own = startup_seconds(request) if isinstance(request, CreateBashSessionRequest) else None
    return own + MARGIN if isinstance(own, int | float) and own >= 0 else None


def fields_of(request: BaseModel) -> dict[str, Any]:
    """Return the fields of a request to send; those of a new session include the effective startup timeout."""
    fields = request.model_dump()
    if isinstance(request, CreateBashSessionRequest):
        fields["startup_timeout"] = startup_seconds(request)
    return fields


class ServerInstances:
    """Record of the server process of each session, to tell a lost session from one that never existed."""

    def __init__(self) -> None:
        self._sessions: dict[str, str | None] = {}

    def note(self, method: str, request: BaseModel | None, instance_id: str | None) -> None:
        """Record the session changes of a successful call.

        Args:
            instance_id: id of the server process that executed the call.
        """
        if method == "create_session":
            self._sessions[_session(request)] = instance_id
        elif method == "close_session":
            self._sessions.pop(_session(request), None)
        elif method == "close":
            self._sessions.clear()

    def explain(self, error: Exception, request: BaseModel | None, instance_id: str | None) -> Exception:
        """Return `error`, or a `ServerRestartedError` if a server restart explains it.

        A restart explains a `SessionDoesNotExistError` if another server process started the session.
        """
        if not isinstance(error, SessionDoesNotExistError):
            return error
        made_under = self._sessions.get(_session(request))
        if not made_under or not instance_id or made_under == instance_id:
            return error
        self._sessions.pop(_session(request), None)
        return ServerRestartedError(
            f"The server was restarted, and the session {_session(request)!r} ended with the old one"
        )


def _session(request: BaseModel | None) -> str:
    return str(getattr(request, "session", ""))
