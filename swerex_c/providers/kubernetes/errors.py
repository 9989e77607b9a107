"""Errors of requests to a Kubernetes cluster."""

from __future__ import annotations

import json
from typing import Any

from swerex_c.exceptions import PodStartupError

__all__ = [
    "ApiError",
    "ClusterError",
    "UnreachableError",
    "UnusableConfigError",
    "api_error",
    "one_line",
    "parse_object",
    "startup_error",
]


class ClusterError(Exception):
    """A failed request to a cluster."""

    may_have_run = False
    """True if the server may have carried out the request nevertheless."""

    may_pass = False
    """True if the same request may succeed a moment later."""


class UnusableConfigError(ClusterError):
    """A missing or unusable configuration, or a failure of its way to get credentials."""


class UnreachableError(ClusterError):
    """A missing, late or invalid response of the API server."""

    def __init__(self, message: str, *, may_have_run: bool = True, may_pass: bool = True) -> None:
        super().__init__(message)
        self.may_have_run, self.may_pass = may_have_run, may_pass


class ApiError(ClusterError):
    """An error response of the API server, with the text of the server."""

    def __init__(self, code: int, reason: str, message: str, retry_after: float | None = None) -> None:
        """Create an error.

        Args:
            code: HTTP status.
            reason: the server's word for the cause, such as `AlreadyExists`; empty if it gave none.
            message: text of the server.
            retry_after: seconds that the server asks to wait; None if it does not ask.
        """
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.retry_after = retry_after
        self.may_have_run = code >= 500
        self.is_busy = code == 429 or (code == 409 and reason == "Conflict")
        """True if the server has too much to do, or there is a conflict with other users of a quota."""

        self.may_pass = self.may_have_run or self.is_busy


def api_error(code: int, body: bytes, retry_after: str | None = None) -> ApiError:
    """Return the error for an error response of a server.

    Args:
        code: HTTP status.
        body: body of the response.
        retry_after: header `Retry-After` of the response; it is ignored unless it is a number of seconds.
    """
    try:
        status = json.loads(body)
        reason, message = str(status.get("reason") or ""), str(status.get("message") or "")
    except (ValueError, AttributeError):  # an error page of a proxy is not JSON
        reason, message = "", body[:500].decode(errors="replace")
    text = " ".join(message.split()) or reason or f"HTTP status {code}"
    seconds = float(retry_after) if retry_after and retry_after.isdecimal() else None
    return ApiError(code, reason, text, seconds)


def parse_object(data: bytes) -> dict[str, Any]:
    """Parse a response of the API server as a JSON object.

    Raises:
        UnreachableError: if the data is no JSON object, so that its sender is no API server.
    """
    try:
        found = json.loads(data)
        if isinstance(found, dict):
            return found
    except ValueError:
        pass
    raise UnreachableError(f"What answers is no API server of Kubernetes: {data[:200]!r}")


def one_line(error: BaseException) -> str:
    """Return the text of an error on one line of at most 500 characters.

    Return the name of its class if it has no text.
    """
    return " ".join(str(error).split())[:500] or type(error).__name__


def startup_error(error: ClusterError, what: str) -> PodStartupError:
    """Return the startup error for a failed request.

    Args:
        error: error of the request.
        what: action that the cluster did not carry out, for the message, such as "make the pod x".
    """
    if isinstance(error, UnusableConfigError):
        return PodStartupError(f"There is no way to the cluster: {error}", cause="credentials")
    if not isinstance(error, ApiError):
        return PodStartupError(f"No cluster answers: {error}", cause="unreachable")
    if error.code == 401:
        message = f"The cluster does not let us in: {error}. The credentials are wrong or have expired"
        return PodStartupError(message, cause="credentials", reason=error.reason)
    return PodStartupError(f"The cluster does not {what}: {error}", cause=_cause(error), reason=error.reason)


def _cause(error: ApiError) -> str:
    """Return the `cause` of a startup error."""
    text = str(error).lower()
    if error.code == 404 and "namespaces" in text:
        return "namespace"
    if error.code == 403 and "exceeded quota" in text or "must specify" in text and "quota" in text:
        return "quota"
    if error.code == 403:
        if "is being terminated" in text or error.reason == "NamespaceTerminating":
            return "namespace"
        return "refused" if "admission webhook" in text and " cannot " not in text else "forbidden"
    return "unreachable" if error.code >= 500 or error.code == 429 else "refused"
