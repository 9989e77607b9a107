"""CPU time and memory of this process and its descendants, from /proc.

CPU times are in microseconds; "self" is this process with all threads, "children" are all descendants. The benchmarks
of the source tree also use this file, including in interpreters that do not have this package.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import time
from collections.abc import Iterator
from pathlib import Path

__all__ = ["Measured", "children_cpu", "memory_kb", "self_cpu", "threads_and_children", "tree_cpu"]

TICK_US = 1e6 / os.sysconf("SC_CLK_TCK")


def threads_and_children(pid: str) -> tuple[list[str], list[str]]:
    """Return the ids of a process's threads, and of its children."""
    tasks = os.listdir(f"/proc/{pid}/task")
    children: list[str] = []
    for task in tasks:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended meanwhile
            children += Path(f"/proc/{pid}/task/{task}/children").read_text().split()
    return tasks, children


def children_cpu() -> float:
    """Return the CPU microseconds of all descendants, living and reaped."""
    done = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (done.ru_utime + done.ru_stime) * 1e6 + tree_cpu(threads_and_children("self")[1])


def tree_cpu(pending: list[str]) -> float:
    """Return the CPU microseconds of processes and their descendants.

    The processes that any of them reaped are included.

    Args:
        pending: the ids of the processes; the list is emptied.
    """
    total = 0.0
    while pending:
        pid = pending.pop()
        try:
            tasks, children = threads_and_children(pid)
            for task in tasks:
                total += int(Path(f"/proc/{pid}/task/{task}/schedstat").read_text().split()[0]) / 1e3
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += (int(fields[13]) + int(fields[14])) * TICK_US
        except (FileNotFoundError, ProcessLookupError):
            continue
        pending += children
    return total


def self_cpu() -> float:
    """Return the CPU microseconds of all threads of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return (used.ru_utime + used.ru_stime) * 1e6


def memory_kb(field: str, pid: int | str = "self") -> int:
    """Return a field of /proc/PID/status in kB, such as VmRSS, or 0 if it is missing."""
    found = re.search(rf"^{field}:\s+(\d+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return int(found.group(1)) if found else 0


class Measured:
    """Context manager that measures time and CPU time.

    The CPU time of this process and that of its descendants are separate.
    """

    def __enter__(self) -> Measured:
        self.cpu_children_us = -children_cpu()
        self.cpu_self_us = -self_cpu()
        self.seconds = -time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds += time.perf_counter()
        self.cpu_self_us += self_cpu()
        self.cpu_children_us += children_cpu()

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Exclude this process's time and CPU time in the block from the result.

        An example of such a block is the comparison of an answer.
        """
        cpu, seconds = self_cpu(), time.perf_counter()
        try:
            yield
        finally:
            self.cpu_self_us -= self_cpu() - cpu
            self.seconds -= time.perf_counter() - seconds

    def result(self, **more: object) -> dict[str, object]:
        """Return the measured values, with the caller's additional fields."""
        cpu = {"cpu_self_us": self.cpu_self_us, "cpu_children_us": self.cpu_children_us}
        return {"seconds": self.seconds, **cpu, **more}
