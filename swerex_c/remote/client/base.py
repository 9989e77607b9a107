"""Timeouts, limits and errors that the frame client and the HTTP client share. Imports quickly."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import swerex_c
from swerex_c.exceptions import ProtocolError, ResourceError, ServerRestartedError, SessionDoesNotExistError

if TYPE_CHECKING:
    from pydantic import BaseModel

    import swerex_c.models  # the caller that made a request has imported it

__all__ = [
    "ANSWER_LIMIT",
    "MARGIN",
    "NotFrames",
    "ServerInstances",
    "advice",
    "fields_of",
    "http_proxy",
    "patience",
    "response_of",
    "too_long",
]

M = TypeVar("M", bound="BaseModel")

MARGIN = 10.0
"""Seconds to wait for a response in addition to the request's own timeout."""

ANSWER_LIMIT = 1 << 30
"""Default maximum size of one response, in bytes."""


class NotFrames(Exception):
    """Error for a peer that is no server of swerex_c, or a proxy that passes no frames. No request was sent."""


def advice(error: BaseException) -> str:
    """Return what to do about a connection that cannot be made."""
    import ssl

    if isinstance(getattr(error, "os_error", error), ssl.SSLError):  # `os_error` is the cause of an error of aiohttp
        return "a server without TLS needs http://"
    return "is `swerex-c serve` running there, and are host and port right?"


def too_long(method: str, limit: int) -> ResourceError:
    """Return the error for a response to `method` of more than `limit` bytes."""
    return ResourceError(
        f"The answer to {method} is longer than the {limit} bytes that this client takes (answer_limit); what was "
        "asked for was carried out"
    )


def http_proxy(url: str) -> str | None:
    """Return the HTTP proxy that the environment sets for this URL; None if there is none, or for this machine."""
    from urllib.request import getproxies, proxy_bypass

    parts = urlsplit(url)
    host = parts.hostname or ""
    local = host in ("localhost", "::1") or host.startswith("127.")
    return None if local or proxy_bypass(host) else getproxies().get(parts.scheme)


def patience(request: BaseModel | None) -> float | None:
    """Return the response timeout of a request in seconds, or None to wait forever."""
    if request is None:
        return 60.0  # `close` waits until the running commands have ended
    own = request.__dict__.get("timeout")  # getattr for a missing attribute of a model is slow
    if isinstance(request, swerex_c.models.BashInterruptAction):
        own = swerex_c.models.attempt_seconds(request) * max(1, request.n_retry)
    elif own is None and isinstance(request, swerex_c.models.CreateBashSessionRequest):
        own = swerex_c.models.startup_seconds(request)
    return own + MARGIN if isinstance(own, int | float) and own >= 0 else None


def fields_of(request: BaseModel | None) -> dict[str, Any]:
    """Return the fields of a request to send; those of a new session include the effective startup timeout."""
    fields = {} if request is None else request.model_dump()
    if isinstance(request, swerex_c.models.CreateBashSessionRequest):
        fields["startup_timeout"] = swerex_c.models.startup_seconds(request)
    return fields


def response_of(response_type: Callable[..., M], answer: dict[str, Any] | bytes) -> M:
    """Return a response from its fields or their JSON.

    Raises:
        ProtocolError: if they are not those of such a response.
    """
    import json

    try:
        return response_type(**(json.loads(answer) if isinstance(answer, bytes) else answer))
    except (ValueError, TypeError, RecursionError) as error:  # pydantic's ValidationError is a ValueError
        raise ProtocolError(f"The server's answer cannot be read: {error}") from error


class ServerInstances:
    """Record of the server process of each session, to tell a lost session from one that never existed."""

    def __init__(self) -> None:
        self._sessions: dict[str, str | None] = {}

    def note(self, method: str, request: BaseModel | None, instance_id: str | None) -> None:
        """Record the session changes of a successful call, which the server process `instance_id` executed."""
        if method == "create_session":
            self._sessions[_session(request)] = instance_id
        elif method == "close_session":
            self._sessions.pop(_session(request), None)
        elif method == "close":
            self._sessions.clear()

    def explain(self, error: Exception, request: BaseModel | None, instance_id: str | None) -> Exception:
        """Return a `ServerRestartedError` if another server process started the missing session, else `error`."""
        made_under = self._sessions.get(name := _session(request))
        is_missing = isinstance(error, SessionDoesNotExistError)
        if not is_missing or not made_under or not instance_id or made_under == instance_id:
            return error
        self._sessions.pop(name, None)
        return ServerRestartedError(f"The server was restarted, and the session {name!r} ended with the old one")


def _session(request: BaseModel | None) -> str:
    return str(getattr(request, "session", ""))
