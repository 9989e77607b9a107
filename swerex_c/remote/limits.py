"""What a server allows its clients."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Limits"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds that keep one client's requests from taking the server from the others. Each refusal is a typed error."""

    body: int = 1 << 30
    """Bytes of one request. Files that are uploaded are not held in memory and have no limit."""

    sessions: int = 4096
    """Sessions at the same time."""

    requests: int = 4096
    """Requests in flight at the same time, of all clients."""

    connections: int = 4096
    """Connections at the same time."""

    rate: float = 0.0
    """Requests a second that one client (one address) may make for long; a second's worth may come at once. 0: any."""

    results: int = 1024
    """Results that are kept for clients that may ask again, per client; the oldest go first."""

    result_seconds: float = 600.0
    """How long a result is kept after it was there."""

    result_bytes: int = 1 << 30
    """Bytes of results that are kept, per client; the oldest go first."""

    head_seconds: float = 10.0
    """How long a connection may take to send the head of its request."""
