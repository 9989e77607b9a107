"""What a process measures of itself and of what runs below it, and how it is asked to by a driver.

Times are microseconds, CPU too; "self" is this process with all its threads, "children" all below it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import resource
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

__all__ = ["Measured", "footprint", "memory_kb", "self_cpu", "serve", "tree_cpu"]

TICK_US = 1e6 / os.sysconf("SC_CLK_TCK")


def _threads_and_children(pid: str) -> tuple[list[str], list[str]]:
    tasks = os.listdir(f"/proc/{pid}/task")
    children: list[str] = []
    for task in tasks:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended meanwhile
            children += Path(f"/proc/{pid}/task/{task}/children").read_text().split()
    return tasks, children


def children_cpu() -> float:
    """Microseconds of CPU below this process: living descendants, what they waited for, and what we waited for."""
    done = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (done.ru_utime + done.ru_stime) * 1e6 + tree_cpu(_threads_and_children("self")[1])


def tree_cpu(pending: list[str]) -> float:
    """Microseconds of CPU of these processes and all below them, with what they waited for."""
    total = 0.0
    while pending:
        pid = pending.pop()
        try:
            tasks, children = _threads_and_children(pid)
            for task in tasks:
                total += int(Path(f"/proc/{pid}/task/{task}/schedstat").read_text().split()[0]) / 1e3
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += (int(fields[13]) + int(fields[14])) * TICK_US
        except (FileNotFoundError, ProcessLookupError):
            continue
        pending += children
    return total


def self_cpu() -> float:
    """Microseconds of CPU of this process, all threads."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return (used.ru_utime + used.ru_stime) * 1e6


def memory_kb(field: str, pid: int | str = "self") -> int:
    found = re.search(rf"^{field}:\s+(\d+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return int(found.group(1)) if found else 0


class Measured:
    """CPU of this process and of those below it, from `with` to its end."""

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
        """What this process does within is not measured: the comparison of an answer."""
        cpu, seconds = self_cpu(), time.perf_counter()
        try:
            yield
        finally:
            self.cpu_self_us -= self_cpu() - cpu
            self.seconds -= time.perf_counter() - seconds

    def result(self, **more: object) -> dict[str, object]:
        cpu = {"cpu_self_us": self.cpu_self_us, "cpu_children_us": self.cpu_children_us}
        return {"seconds": self.seconds, **cpu, **more}


def serve(make: Callable[[str], Any]) -> None:
    """Makes what the first argument names, and runs its methods as they are asked for."""
    # Whatever a library prints must not get between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    name = sys.argv[1]
    try:
        workloads = make(name)
    except Exception as error:  # reported to the driver, which decides
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}), file=answers, flush=True)
        return
    print(json.dumps({"ready": name, "python": sys.version.split()[0]}), file=answers, flush=True)
    factory = getattr(getattr(workloads, "contender", None), "loop_factory", None)
    with asyncio.Runner(loop_factory=factory) as runner:
        for line in sys.stdin:
            request = json.loads(line)
            operation: Callable[..., Awaitable[dict[str, object]]] = getattr(workloads, request.pop("operation"))
            try:
                answer = runner.run(_ask(operation, request))
            except Exception as error:  # reported to the driver, which decides
                answer = {"error": f"{type(error).__name__}: {error}"}
            print(json.dumps(answer), file=answers, flush=True)


async def _ask(operation: Callable[..., Awaitable[dict[str, object]]], request: dict[str, Any]) -> dict[str, object]:
    cpus = request.pop("cpus", None)
    if not cpus:
        return await operation(**request)
    allowed = os.sched_getaffinity(0)
    pin("self", cpus)
    try:
        return await operation(**request)
    finally:
        pin("self", allowed)


def pin(pid: str, cpus: Iterable[int]) -> None:
    """Give these processors to all threads of a process and of all below it, and so to what they start."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # one that has ended meanwhile
        tasks, children = _threads_and_children(pid)
        for task in tasks:
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(int(task), cpus)
        for child in children:
            pin(child, cpus)


def footprint() -> tuple[int, int]:
    """Kilobytes of memory that this process has, exactly, and its open files."""
    found = re.search(r"^Rss:\s+(\d+)", Path("/proc/self/smaps_rollup").read_text(), re.MULTILINE)
    return int(found.group(1)) if found else memory_kb("VmRSS"), len(os.listdir("/proc/self/fd"))
