"""How often one client may ask."""

from __future__ import annotations

import time

__all__ = ["Rate"]

_MOST_CLIENTS = 65536
"""Clients that are remembered. Those that have not asked for a second are forgotten first."""


class Rate:
    """A bucket of tokens for each client: `rate` of them flow in each second, and a second's worth fits."""

    def __init__(self, rate: float):
        """`rate`: requests a second; 0 allows any number."""
        self._rate = rate
        self._room = max(1.0, rate)
        self._clients: dict[str, tuple[float, float]] = {}  # tokens, and when there were so many

    def wait(self, client: str, now: float | None = None) -> float:
        """Count a request. 0 if it may be carried out, else the seconds after which the next one may.

        Args:
            client: its address, or whatever tells clients apart.
            now: seconds of the monotonic clock.
        """
        if self._rate <= 0:
            return 0.0
        if now is None:
            now = time.monotonic()
        tokens, then = self._clients.get(client, (self._room, now))
        tokens = min(self._room, tokens + (now - then) * self._rate)
        if client not in self._clients and len(self._clients) >= _MOST_CLIENTS:
            self._forget(now)
        allowed = tokens >= 1.0
        self._clients[client] = (tokens - allowed, now)
        return 0.0 if allowed else (1.0 - tokens) / self._rate

    def _forget(self, now: float) -> None:
        idle = self._room / self._rate  # a bucket is full again after that long
        kept = {client: state for client, state in self._clients.items() if now - state[1] < idle}
        self._clients = kept if len(kept) < _MOST_CLIENTS else {}
