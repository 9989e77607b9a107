"""How far a run goes: sizes, numbers of sessions and of rounds."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FULL", "QUICK", "USUAL", "Extent"]


@dataclass(frozen=True)
class Extent:
    share: float
    """Of the usual number of commands in each turn."""

    rounds: int
    """At most so many in each row."""

    megabytes: tuple[int, ...]
    """Sizes of output. Three at least, or there is no exponent."""

    sessions: tuple[int, ...]
    """Numbers of sessions at once."""

    idle: tuple[int, ...]
    idle_seconds: float
    stalled: int
    """Sessions in the row about the event loop."""

    @property
    def quick(self) -> bool:
        return self.share < 1

    def number(self, usual: int) -> int:
        """Of commands in a turn."""
        return max(3, int(usual * self.share))


QUICK = Extent(0.2, 2, (1, 8, 64), (1, 8, 64), (10, 30, 100), 1.0, 100)
USUAL = Extent(1.0, 5, (1, 8, 64, 100), (1, 8, 64, 256, 1000), (10, 100, 1000), 5.0, 1000)
FULL = Extent(1.0, 5, (1, 8, 64, 100, 1000), (1, 8, 64, 256, 1000), (10, 100, 1000), 10.0, 1000)
