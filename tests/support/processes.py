"""The processes that tests start, followed from this worker down: no look at the rest of the machine."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.wait import DEADLINE, until

_PR_SET_CHILD_SUBREAPER = 36
_prctl = ctypes.CDLL(None).prctl


def ran(*words: str | Path, seconds: float | None = DEADLINE, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, and return what it has printed as text."""
    return subprocess.run(words, capture_output=True, text=True, timeout=seconds, **options)


def adopt_orphans() -> None:
    """Make this worker the parent of what loses its own below it, so that `descendants` finds that, too."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def reap_orphans(ended: set[int]) -> set[int]:
    """Reap this worker's children that had ended at the last look, and return those that have ended now.

    A child of a program of the worker's own is waited for at once; what is left is adopted. Thousands of those make
    every look at /proc slow, the tests' and the package's.
    """
    zombies = {pid for pid in _children(os.getpid()) if state(pid) == "Z"}
    for pid in zombies & ended:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
    return zombies - ended


def _children(pid: int) -> Iterator[int]:
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            yield from map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())


def descendants(pid: int) -> list[int]:
    """Return children and their descendants, the nearest first."""
    found = [pid]
    for parent in found:
        found += _children(parent)
    return found[1:]


def file_of_descriptor(fd: str) -> str:
    """Return what a descriptor of this process refers to; an empty text for one that another thread has closed."""
    with contextlib.suppress(FileNotFoundError):
        return os.readlink(f"/proc/self/fd/{fd}")
    return ""


def command_lines() -> dict[int, str]:
    """Return the command lines of this worker's descendants; zombies have none, and do not count."""
    return {pid: line for pid in descendants(os.getpid()) if (line := command_line(pid))}


def command_line(pid: int) -> str:
    """Return the words of a process; an empty text for one that has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def state(pid: int) -> str:
    """Return the letter of a process's state, such as R, S, T or Z; X for one that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def alive(pid: int) -> bool:
    """Return whether a process exists and is no zombie."""
    return state(pid) not in "XZ"


def running(words: str) -> list[int]:
    """Return the ids of this worker's descendants whose command line contains the words."""
    return [pid for pid, line in command_lines().items() if words in line]


def memory_of(pid: int | str = "self", what: str = "VmRSS") -> int:
    """Return the bytes that a process has in memory, or the most that it had (VmHWM)."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition(f"{what}:")[2].split()[0]) << 10


def cpu_seconds(pid: int) -> float:
    """Return the processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def written_when_stuck(pid: int) -> int:
    """Return how many bytes a program has written once it goes on waiting in a write."""
    seen: list[tuple[str, int]] = []

    def is_stuck() -> bool:
        seen.append((state(pid), int(Path(f"/proc/{pid}/io").read_text().split()[3])))  # wchar
        return len(seen) > 50 and set(seen[-50:]) == {("S", seen[-1][1])}

    until(is_stuck, "it goes on writing")
    return seen[-1][1]


class Family:
    """What this worker has started since the family was made, with all that descends from it."""

    def __init__(self) -> None:
        self.before = set(self.all())

    def all(self) -> dict[int, str]:
        """Return the command lines of all that counts: not the supervisors, which end with their programs."""
        return {pid: line for pid, line in command_lines().items() if not line.startswith("swerex-c-supervisor ")}

    def living(self) -> dict[int, str]:
        """Return the command lines of those that run, by process id."""
        return {pid: line for pid, line in self.all().items() if pid not in self.before}

    def shells(self) -> list[str]:
        """Return the command lines of those that are shells of sessions."""
        return [line for line in self.living().values() if "--noediting" in line]

    def left(self) -> dict[int, str]:
        """Wait until all have ended. What has not at the deadline is killed and returned."""
        end = time.monotonic() + DEADLINE
        while living := self.living() or self.living():  # a list of children misses some while others end
            if time.monotonic() > end:
                self.kill()
                return living
            with contextlib.suppress(ProcessLookupError), contextlib.ExitStack() as stack:
                poll = select.poll()
                for pid in living:
                    poll.register(pidfd := os.pidfd_open(pid), select.POLLIN)
                    stack.callback(os.close, pidfd)
                poll.poll(1000 * (end - time.monotonic()))
        return {}

    def kill(self) -> None:
        """End those that run, so that they cannot disturb the next test."""
        for pid in self.living():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
