"""Limits on the server resources that clients may use."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Limits"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on server resources, so that one client cannot exhaust them."""

    body: int = 64 << 20
    """Maximum bytes of a request. Uploaded files are not held in memory and have no limit."""

    sessions: int = 4096
    """Maximum number of open sessions."""

    requests: int = 4096
    """Maximum number of requests in flight, for all clients together."""

    connections: int = 4096
    """Maximum number of open connections; half of the process's file descriptors if those are fewer."""

    unauthenticated: int = 256
    """Maximum number of open connections that have not sent the authentication key yet."""

    results: int = 4096
    """Maximum number of kept results of all clients together; the oldest are dropped first."""

    result_seconds: float = 600.0
    """Seconds to keep a result after its request completed, for a client that repeats the request."""

    result_bytes: int = 256 << 20
    """Maximum bytes of kept results of all clients together; the oldest are dropped first."""

    head_seconds: float = 10.0
    """Seconds for a new connection to send the key, TLS handshake included."""
