"""What can be wrong between us and a cluster of Kubernetes, and the one place that says what an error of the libraries
is: of `aiohttp`, which carries, and of `kubernetes_asyncio`, which knows who we are."""

from __future__ import annotations

import json
import ssl
from typing import Any

import aiohttp

__all__ = [
    "Refused",
    "TooOldError",
    "Unreachable",
    "Unusable",
    "object_of",
    "passes",
    "refused",
    "require",
    "told",
    "unusable",
]


def require() -> Any:
    """The library, whose modules `client` and `config` are loaded.

    Raises:
        ModuleNotFoundError: if it is not here, with the way to have it.
    """
    try:
        import kubernetes_asyncio
        import kubernetes_asyncio.client
        import kubernetes_asyncio.config
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "kubernetes_asyncio":
            raise
        message = "Pods of Kubernetes are reached by kubernetes_asyncio: pip install 'swerex-c[kubernetes]'"
        raise ModuleNotFoundError(message, name=error.name) from None
    return kubernetes_asyncio


class Unusable(Exception):
    """There is no configuration, or it cannot be used, or what it says how to get credentials by has failed."""


class Unreachable(Exception):
    """No API server answers, or not in time."""

    def __init__(self, message: str, *, sent: bool = True) -> None:
        super().__init__(message)
        self.sent = sent
        """Whether the request may have been carried out nevertheless."""


class TooOldError(Exception):
    """The server does not speak the protocol that it was asked for. It has run nothing."""


class Refused(Exception):
    """The API server answered that it does not do this. The text is its own."""

    def __init__(self, code: int, reason: str, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.retry_after = retry_after


def unusable(error: BaseException, origin: str) -> Unusable:
    """origin: what says who we are, such as a kubeconfig."""
    return Unusable(f"{origin} cannot be used: {_text(error)}")


def told(error: Exception, *, host: str, origin: str, timeout: float, closed: bool) -> Exception | None:
    """What an error of the libraries is, whatever was asked for; None if it is none of theirs, or ours already.

    Args:
        host: of the API server, for people.
        origin: what says who we are.
        timeout: seconds that the server had.
        closed: whether the connections were closed.
    """
    if isinstance(error, (aiohttp.ClientError, OSError)):
        if isinstance(error, TimeoutError) and not str(error):
            return Unreachable(f"{host} did not answer within {timeout:g} seconds")
        sent = not isinstance(error, aiohttp.ClientConnectorError)
        return Unreachable(f"{host} cannot be reached: {_text(error)}", sent=sent)
    if isinstance(error, require().config.ConfigException):
        return unusable(error, origin)
    if isinstance(error, RuntimeError) and closed:
        return Unusable("The connections to the cluster were closed")
    return None


def passes(error: aiohttp.ClientConnectorError) -> bool:
    """Whether connecting may succeed in a moment: not with a name or a certificate that is wrong."""
    wrong = (aiohttp.ClientConnectorDNSError, aiohttp.ClientConnectorCertificateError, aiohttp.ClientSSLError)
    return not isinstance(error, wrong) and not isinstance(error.os_error, ssl.SSLError)


def refused(code: int, body: bytes, retry_after: str | None) -> Refused:
    """What a server says that does not do what it was asked for."""
    try:
        status = json.loads(body)
        reason, message = str(status.get("reason") or ""), str(status.get("message") or "")
    except (ValueError, AttributeError):  # what proxies say is no JSON
        reason, message = "", body[:500].decode(errors="replace")
    words = " ".join(message.split()) or reason or f"HTTP status {code}"
    seconds = float(retry_after) if retry_after and retry_after.isdecimal() else None
    return Refused(code, reason, words, seconds)


def object_of(data: bytes) -> dict[str, Any]:
    """What a server answers.

    Raises:
        Unreachable: if it is not what an API server answers.
    """
    try:
        found = json.loads(data)
        if isinstance(found, dict):
            return found
    except ValueError:
        pass
    raise Unreachable(f"What answers is no API server of Kubernetes: {data[:200]!r}")


def _text(error: BaseException) -> str:
    return " ".join(str(error).split())[:500] or type(error).__name__
