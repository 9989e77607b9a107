"""Files of output, each of which can be told from what a lost, doubled or moved piece would make of it."""

from __future__ import annotations

import re
from pathlib import Path

from measure import BenchError
from measuring.machine import MEGABYTE, make_file
from rows import Workload

__all__ = ["Files"]


class Files:
    """Files of output, each made when the first row that needs it begins."""

    KEPT = 20
    """Megabytes up to which a file stays for the next row; longer ones take memory that the contenders may need."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def lines(self, megabytes: int) -> str:
        """Where the file in lines is, or will be."""
        return str(self.directory / f"output-{megabytes}")

    def line(self, megabytes: int) -> str:
        """Where the one without line ends is, or will be."""
        return str(self.directory / f"line-{megabytes}")

    def prepare(self, workload: Workload) -> None:
        """Makes what a row's requests name. Raises BenchError where the memory does not suffice."""
        for path in self.used(workload):
            kind, _, megabytes = path.name.partition("-")
            if not path.exists():
                check_memory(5 * int(megabytes))
                self.make(int(megabytes), kind)

    def make(self, megabytes: int, kind: str = "output") -> None:
        make_file(self.directory / f"{kind}-{megabytes}", megabytes, " " if kind == "line" else "\n")

    def release(self, workload: Workload) -> None:
        """Removes the long ones of a row that is done."""
        for path in self.used(workload):
            if path.exists() and path.stat().st_size > self.KEPT * MEGABYTE:
                path.unlink()

    def used(self, workload: Workload) -> list[Path]:
        named = [str(it) for turn in workload.turns for it in (turn.request.get("path"), *turn.arguments)]
        return [Path(it) for it in dict.fromkeys(named) if Path(it).parent == self.directory]


def check_memory(megabytes: int) -> None:
    """Raises BenchError unless so much is free: the file itself, the bytes and text of an answer, and a copy."""
    found = re.search(r"MemAvailable:\s+(\d+)", Path("/proc/meminfo").read_text())
    free = int(found[1]) * 1024 // MEGABYTE if found else 0
    if found and free < megabytes:
        raise BenchError(f"needs {megabytes} MB of memory, and {free} MB are free")
