"""Limit the memory of a tree of processes.

Where a control group can be made (version 2 with the memory controller delegated, or version 1), the kernel lets no
allocation pass the limit. Elsewhere the processes are checked a few times a second, and a process that allocates very
quickly can exceed the limit until the next check.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

__all__ = ["CgroupLimit", "PolledLimit", "descendants", "new_limit"]

_ROOT = "/sys/fs/cgroup"
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


class CgroupLimit:
    """A control group with a memory limit.

    A process belongs to it after `enter`, as do the processes that it starts after that.
    """

    def __init__(self, path: Path, limit: int):
        """Make the group.

        Args:
            path: directory of the group, which must not exist.
            limit: bytes of memory.

        Raises:
            OSError: if no group can be made there, or its memory cannot be limited.
        """
        self.path = path
        self.limit = limit
        self._events = "memory.events"
        path.mkdir()
        try:
            if not (path / "cgroup.procs").exists():
                raise OSError(f"{path.parent} is no control group")
            if (path / "memory.max").exists():
                (path / "memory.max").write_text(str(limit))
                if (path / "memory.swap.max").exists():
                    (path / "memory.swap.max").write_text("0")
            elif (path / "memory.limit_in_bytes").exists():
                (path / "memory.limit_in_bytes").write_text(str(limit))
                with contextlib.suppress(OSError):  # exists only where the kernel counts swap
                    (path / "memory.memsw.limit_in_bytes").write_text(str(limit))
                self._events = "memory.oom_control"
            self._kills()
        except (OSError, ValueError) as error:
            self.close()
            raise OSError(str(error)) from None

    def enter(self) -> None:
        """Move this process, and with it all that it starts, into the group.

        Raises:
            OSError: if that is not allowed.
        """
        (self.path / "cgroup.procs").write_text(str(os.getpid()))

    def exceeded(self, pid: int) -> bool:
        """Check whether the limit made the kernel kill a process of the group."""
        try:
            return self._kills() > 0
        except (OSError, ValueError):
            return False

    def _kills(self) -> int:
        for line in (self.path / self._events).read_text().splitlines():
            name, _, number = line.partition(" ")
            if name == "oom_kill":
                return int(number)
        raise ValueError("This kernel does not count what it ends for want of memory")

    @property
    def interval(self) -> float:
        return _INTERVAL

    def close(self) -> None:
        """Remove the group, whose processes must have ended."""
        with contextlib.suppress(OSError):
            self.path.rmdir()


class PolledLimit:
    """A memory limit in bytes that is enforced by polling."""

    def __init__(self, limit: int):
        self.limit = limit
        self._took = 0.0

    def enter(self) -> None:
        """Do nothing: polling finds the processes by their parents."""

    def exceeded(self, pid: int) -> bool:
        """Check whether the descendants of process `pid` exceed the limit.

        Shared pages count once.
        """
        began = time.monotonic()
        found = descendants(pid)
        over = sum(map(_resident, found)) > self.limit and sum(map(_proportional, found)) > self.limit
        self._took = time.monotonic() - began
        return over

    @property
    def interval(self) -> float:
        return max(_INTERVAL, _SHARE * self._took)

    def close(self) -> None:
        """Do nothing: polling leaves nothing behind."""


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


def new_limit(limit: int, name: str, *, groups: bool = True) -> CgroupLimit | PolledLimit:
    """Return the best available enforcement of a limit in bytes.

    Args:
        name: a unique name for a control group.
        groups: whether a control group may be made.
    """
    for base in _bases() if groups else []:
        with contextlib.suppress(OSError):
            return CgroupLimit(base / name, limit)
    return PolledLimit(limit)


def _bases() -> list[Path]:
    """Return the directories in which this process may try to make a control group."""
    found = []
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                found += [Path(_ROOT + path), Path(f"{_ROOT}/unified{path}")]
            elif "memory" in controllers.split(","):
                found.append(Path(f"{_ROOT}/memory{path}"))
    return [base for base in found if base.is_dir()]
