"""Statistics of a pool."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Counts", "PoolStats", "Times"]


@dataclass
class Times:
    """Number, sum and maximum of durations in seconds."""

    count: int = 0
    sum: float = 0.0
    longest: float = 0.0

    def add(self, seconds: float) -> None:
        self.count += 1
        self.sum += seconds
        self.longest = max(self.longest, seconds)

    @property
    def mean(self) -> float:
        """Mean in seconds; 0 without durations."""
        return self.sum / self.count if self.count else 0.0


@dataclass
class Counts:
    """Counters of a pool since it was created."""

    handed_out: int = 0
    """Environments given to a caller."""

    started: int = 0
    """Environments that were started."""

    attempts_failed: int = 0
    """Start attempts that failed, whether or not another attempt followed."""

    starts_failed: int = 0
    """Environments whose start was given up after the last attempt."""

    replaced: int = 0
    """Environments that ended early: they died in use or while idle."""

    time_limits: int = 0
    """Environments that were ended because they reached the pool's time limit."""

    refused: int = 0
    """Callers that were refused because the queue was full."""

    gave_up: int = 0
    """Callers that waited and left without an environment: they timed out or were cancelled."""

    ended: int = 0
    """Environments that were stopped."""

    ends_failed: int = 0
    """Environments whose stop failed or exceeded its timeout. Parts of them may be left."""

    waiting_seconds: Times = field(default_factory=Times)
    """Seconds that callers waited for the environment that they got."""

    starting_seconds: Times = field(default_factory=Times)
    """Seconds that successful start attempts took."""

    use_seconds: Times = field(default_factory=Times)
    """Seconds that environments were in use."""


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
    counts: Counts
