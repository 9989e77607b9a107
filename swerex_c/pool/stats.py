"""Statistics of a pool."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["PoolStats"]


@dataclass(frozen=True)
class PoolStats:
    """Snapshot of a pool.

    The states add up to at most `size`; `waiting` counts callers instead.
    """

    size: int
    waiting: int
    starting: int
    """Environments that are starting, wait for the start limit, or wait for another attempt."""

    idle: int
    """Environments that are ready and unused, or are being checked."""

    in_use: int
    ending: int
    counts: Mapping[str, int]
    """Numbers since the pool was created, 0 if they are not there.

    Of environments: "handed_out" to a caller, "started", "attempts_failed" and "starts_failed" (after the last
    attempt), "replaced" because they died in use or while idle, ended at the pool's "time_limits", "ended", and
    "ends_failed": parts of these may be left. Of callers: "refused" because the queue was full, and "gave_up" waiting.
    """
