"""What a process measures of itself and of what runs below it, and how it is asked to by a driver.

Times are microseconds, CPU too; "self" is this process with all its threads, "children" all below it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import json
import os
import re
import sys
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

from shared import of_bench

__all__ = ["Measured", "footprint", "give_back", "memory_kb", "self_cpu", "serve", "tree_cpu"]

_package = of_bench("measured")
Measured = _package.Measured
memory_kb, self_cpu, tree_cpu = _package.memory_kb, _package.self_cpu, _package.tree_cpu
_threads_and_children = _package.threads_and_children


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
                answer = runner.run(_ask(operation, request, getattr(workloads, "processes", ["self"])))
            except Exception as error:  # reported to the driver, which decides
                answer = {"error": f"{type(error).__name__}: {error}"}
            print(json.dumps(answer), file=answers, flush=True)


async def _ask(
    operation: Callable[..., Awaitable[dict[str, object]]], request: dict[str, Any], processes: list[str]
) -> dict[str, object]:
    """processes: what is pinned where the request says so."""
    cpus = request.pop("cpus", None)
    if not cpus:
        return await operation(**request)
    allowed = os.sched_getaffinity(0)
    for each in processes:
        pin(each, cpus)
    try:
        return await operation(**request)
    finally:
        for each in processes:
            pin(each, allowed)


def pin(pid: str, cpus: Iterable[int]) -> None:
    """Give these processors to all threads of a process and of all below it, and so to what they start."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # one that has ended meanwhile
        tasks, children = _threads_and_children(pid)
        for task in tasks:
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(int(task), cpus)
        for child in children:
            pin(child, cpus)


def give_back() -> None:
    """To the system, all memory that is not used."""
    gc.collect()
    with contextlib.suppress(AttributeError, OSError):  # a C library without it
        ctypes.CDLL(None).malloc_trim(0)


def footprint() -> tuple[int, int]:
    """Kilobytes of memory that this process has and uses, exactly, and its open files."""
    give_back()
    found = re.search(r"^Rss:\s+(\d+)", Path("/proc/self/smaps_rollup").read_text(), re.MULTILINE)
    return int(found.group(1)) if found else memory_kb("VmRSS"), open_files()


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))
