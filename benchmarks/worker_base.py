"""What all operations of a worker share: the engine, its processors, and what it takes of memory and open files."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from engines.base import Engine
from measuring import operations
from measuring.measured import memory_kb, threads_and_children
from rows import Result

__all__ = ["Operations", "Peaks", "footprint", "give_back", "open_files", "pin"]


class Operations(operations.Operations):
    """Each method is one operation that a row may ask for; its parameters are those of the request."""

    engine: Engine
    processes: tuple[str, ...] = ("self",)
    """What is pinned where a request says so."""

    async def ask(self, operation: str, cpus: Iterable[int] = (), **parameters: Any) -> Result:
        allowed = os.sched_getaffinity(0)
        for each in self.processes if cpus else ():
            pin(each, cpus)
        try:
            return await super().ask(operation, **parameters)
        finally:
            for each in self.processes if cpus else ():
                pin(each, allowed)

    async def check(self, key: str) -> int:
        """As the core's, whatever ends the line: some engines leave that to a terminal, or cut it off."""
        token = os.urandom(6).hex()
        output, code = await self.engine.run(key, f"echo {token}")
        said = output.decode(errors="replace") if isinstance(output, bytes) else output
        return code != 0 or said.rstrip("\r\n") != token


def pin(pid: str, cpus: Iterable[int]) -> None:
    """Give these processors to all threads of a process and of all below it, and so to what they start."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # one that has ended meanwhile
        tasks, children = threads_and_children(pid)
        for task in tasks:
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(int(task), cpus)
        for child in children:
            pin(child, cpus)


def give_back() -> None:
    """Give all memory that is not used back to the system."""
    gc.collect()
    with contextlib.suppress(AttributeError, OSError):  # a C library without it
        ctypes.CDLL(None).malloc_trim(0)


class Peaks:
    """How far the memory of this process, and of a server, peaks above where it was."""

    def __init__(self, server: int | None = None) -> None:
        give_back()
        self.pids: dict[str, int | str] = {"rss_growth_kb": "self"}
        if server is not None:
            self.pids["rss_growth_server_kb"] = server
        for pid in self.pids.values():
            Path(f"/proc/{pid}/clear_refs").write_text("5")
        self.before = {name: memory_kb("VmRSS", pid) for name, pid in self.pids.items()}

    def growth(self) -> dict[str, int]:
        return {name: max(0, memory_kb("VmHWM", pid) - self.before[name]) for name, pid in self.pids.items()}


def footprint() -> int:
    """Return the kilobytes of memory that this process has and uses, exactly."""
    give_back()
    found = re.search(r"^Rss:\s+(\d+)", Path("/proc/self/smaps_rollup").read_text(), re.MULTILINE)
    return int(found.group(1)) if found else memory_kb("VmRSS")


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))
