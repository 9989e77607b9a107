"""How much memory a tree of processes takes, and keeping it from taking more.

The kernel does it where a control group can be made (version 2 with the memory controller handed down, or version 1):
it lets no allocation pass the limit. Elsewhere the processes are looked at a few times a second, and what takes much
very quickly can be over the limit for that long.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

__all__ = ["Group", "Watch", "descendants", "new_limit", "parents"]

_ROOT = "/sys/fs/cgroup"
_SHARE = 20
"""Looking takes one part in so many of a core's time, whatever number of processes there is on the machine."""

_INTERVAL = 0.1
"""Seconds between two looks, at the least."""


def parents() -> dict[int, int]:
    """The parent of every process of the machine."""
    found: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                # proc(5): the second field may hold anything, up to the last parenthesis.
                with open(f"/proc/{name}/stat", "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()
                if fields[0] not in (b"Z", b"X"):
                    found[int(name)] = int(fields[1])
    return found


def descendants(pid: int) -> list[int]:
    """The processes that come from this one and live, parents before their children."""
    children: dict[int, list[int]] = {}
    for child, parent in parents().items():
        children.setdefault(parent, []).append(child)
    found: list[int] = []
    pending = [pid]
    while pending:
        for child in children.get(pending.pop(), ()):
            found.append(child)
            pending.append(child)
    return found


class Group:
    """A control group with a limit. Processes are in it from when they or their parents enter."""

    def __init__(self, path: Path, limit: int):
        """
        Raises:
            OSError: if none can be made here, or it has no limit.
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
                with contextlib.suppress(OSError):  # there where swap is counted; both limits or one
                    (path / "memory.memsw.limit_in_bytes").write_text(str(limit))
                self._events = "memory.oom_control"
            self._kills()
        except (OSError, ValueError) as error:
            self.close()
            raise OSError(str(error)) from None

    def enter(self) -> None:
        """Have this process, and whatever it starts, be in it.

        Raises:
            OSError: if that is not allowed.
        """
        (self.path / "cgroup.procs").write_text(str(os.getpid()))

    def exceeded(self, pid: int) -> bool:
        """Whether the kernel has ended something because of the limit."""
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
        """Remove it. What was in it has ended."""
        with contextlib.suppress(OSError):
            self.path.rmdir()


class Watch:
    """A limit that is kept by looking."""

    def __init__(self, limit: int):
        self.limit = limit
        self._took = 0.0

    def enter(self) -> None:
        """Nothing has to be done."""

    def exceeded(self, pid: int) -> bool:
        """Whether this process's descendants take more than the limit. Pages that several share count once."""
        began = time.monotonic()
        found = descendants(pid)
        over = sum(map(_resident, found)) > self.limit and sum(map(_proportional, found)) > self.limit
        self._took = time.monotonic() - began
        return over

    @property
    def interval(self) -> float:
        return max(_INTERVAL, _SHARE * self._took)

    def close(self) -> None:
        """Nothing has to be done."""


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


def new_limit(limit: int, name: str, *, groups: bool = True) -> Group | Watch:
    """What keeps a limit here, in the best way that there is.

    Args:
        name: of a group, which no other has.
        groups: whether one may be made.
    """
    for base in _bases() if groups else []:
        with contextlib.suppress(OSError):
            return Group(base / name, limit)
    return Watch(limit)


def _bases() -> list[Path]:
    """Where this process may be allowed to make a group."""
    found = []
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                found += [Path(_ROOT + path), Path(f"{_ROOT}/unified{path}")]
            elif "memory" in controllers.split(","):
                found.append(Path(f"{_ROOT}/memory{path}"))
    return [base for base in found if base.is_dir()]
