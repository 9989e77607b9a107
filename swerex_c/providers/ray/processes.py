"""Find the descendants of a process, and check how much memory they take."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

__all__ = ["MemoryLimit", "descendants"]

_SHARE = 20
"""Minimum ratio of interval to duration of a check: checks use at most 1/20 of a core for any process count."""

_INTERVAL = 0.1
"""Minimum seconds between two checks."""


def descendants(pid: int) -> list[int]:
    """Return the pids of a process's live descendants, parents before children."""
    children: dict[int, list[int]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError, ValueError, IndexError):
            # proc(5): the second field may hold anything, up to the last parenthesis.
            fields = Path(f"/proc/{name}/stat").read_bytes().rpartition(b")")[2].split()
            if fields[0] not in (b"Z", b"X"):
                children.setdefault(int(fields[1]), []).append(int(name))
    found = [pid]
    for each in found:
        found += children.pop(each, ())
    return found[1:]


class MemoryLimit:
    """A limit on the memory of all descendants of a process, which is checked from time to time.

    Processes that allocate very quickly can exceed it until the next check.
    """

    def __init__(self, limit: int):
        """Take the limit in bytes."""
        self.bytes = limit
        self.interval = _INTERVAL
        """Seconds until the next check."""

    def exceeded(self, pid: int) -> bool:
        """Check whether the descendants of process `pid` exceed the limit. Shared pages count once."""
        began = time.monotonic()
        found = descendants(pid)
        over = sum(map(_resident, found)) > self.bytes and sum(map(_proportional, found)) > self.bytes
        self.interval = max(_INTERVAL, _SHARE * (time.monotonic() - began))
        return over


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def _proportional(pid: int) -> int:
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) << 10
    except (OSError, ValueError, IndexError):
        pass
    return _resident(pid)
