"""Instructions counted by callgrind: the figure that is the same from run to run, on any machine, at any load.

What is counted, and the counts that the tree is held to (instructions.json), with the compiler and the Python that they
were made with. See counts_worker.py for how.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from extent import Extent
from files import Files
from measure import HERE, ROOT, Absent, BenchError, Worker, build, our_path, processors
from measuring.machine import first_line
from rows import Result, Turn, Workload

__all__ = ["BASELINE", "WORKS", "Change", "Counter", "changes", "keep", "read_baseline", "rows"]

BASELINE = HERE / "instructions.json"

WORKS = {
    "runtime": "a command, LocalRuntime",
    "session": "a command, core",
    "engine": "a command, engine in C",
    "create": "a session, LocalRuntime",
    "literals": "1 KB, 20 literals",
    "regexes": "1 KB, 5 regexes",
    "strip": "1 KB of colours to plain",
    "scan": "a command looked at",
    "encode": "an answer to a frame",
    "decode": "an answer from a frame",
}

TOLERANCE = 0.03
"""With the compiler and the Python of the baseline. From run to run the medians differ by less than 1 %; another
processor's memcpy and another release of libc and of libraries such as pydantic make up to 2 % more."""

LOOSE = 0.3
"""With another compiler or Python, whose code differs by a fifth: then only what is far slower can be told."""

VARIED = {"create": 0.15}
"""Tolerances of works of which so much depends on the order in which a shell and its terminal come up."""

ENGINE_RUNS = 9
ENGINE_COMMANDS = 1000
ENGINE_WARM = 50


class Counter:
    """The contender of the row: a worker under callgrind, and the engine under it too. Raises Absent without it."""

    def __init__(self, directory: Path, environment: dict[str, str], engine: str, path: str | None = None) -> None:
        """engine: the program; path: where the package is, if it is not this tree's. All runs on one processor."""
        if shutil.which("valgrind") is None or not Path("/usr/include/valgrind/callgrind.h").exists():
            raise Absent("no valgrind (Debian: valgrind)")
        self.engine = engine
        self.directory = directory
        switch = build(directory, "counts_switch", "-shared", "-fPIC")
        place = path or our_path()
        more = {"PYTHONPATH": place} if place else {}
        more |= {"PYTHONHASHSEED": "0", "SWX_COUNTS": str(directory / "counts"), "SWX_COUNTS_SWITCH": switch}
        self.environment = {**environment, **more}
        self.processor = [max(os.sched_getaffinity(0))]
        self.worker: Worker | None = None

    def callgrind(self, name: str, option: str) -> tuple[str, ...]:
        places = f"--callgrind-out-file={self.directory / name}", f"--log-file={self.directory / name}.log"
        return "valgrind", "--tool=callgrind", *places, option

    def ask(self, work: str, cpus: list[int] | None = None) -> Result:
        """The instructions of one piece of work."""
        if work == "engine":
            return self.count_engine()
        if self.worker is None:
            before = self.callgrind("counts", "--instr-atstart=no")
            with processors(self.processor):
                self.worker = Worker("counts", sys.executable, self.environment, "counts_worker.py", before)
        return self.worker.ask(work)

    def count_engine(self) -> Result:
        """A command in engine.c, with the warming up that is counted too; the median of several runs."""
        command = self.callgrind("counts-engine", "--toggle-collect=measure")
        command += self.engine, "command", str(ENGINE_COMMANDS), "true"
        found, wrong = [], 0
        for _ in range(ENGINE_RUNS):
            with processors(self.processor):
                done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)
            output = self.directory / "counts-engine"
            total = re.search(r"^totals: (\d+)", output.read_text(), re.MULTILINE) if output.exists() else None
            if done.returncode or total is None:
                return {"error": f"the engine ended with {done.returncode}: {done.stderr.strip()}"}
            output.unlink()
            found.append(int(total[1]) / (ENGINE_COMMANDS + ENGINE_WARM))
            wrong += json.loads(done.stdout)["wrong"]
        middle = statistics.median(found)
        spread = (max(found) - min(found)) / middle
        return {"count": ENGINE_RUNS * ENGINE_COMMANDS, "wrong": wrong, "instructions": middle, "spread": spread}

    def close(self) -> None:
        if self.worker is not None:
            self.worker.close()


def rows(extent: Extent, files: Files) -> Iterator[Workload]:
    turns = [Turn("instructions", {"work": work}, title) for work, title in WORKS.items()]
    yield Workload("instructions", "instructions of ours in user mode (callgrind)", turns, "", "instructions", 1)


# ---- what the tree is held to ----


def tools() -> dict[str, str]:
    """What the counts depend on besides our sources."""
    return {
        "compiler": first_line(os.environ.get("CC", "cc"), "--version"),
        "python": f"{sys.implementation.name} {sys.version.split()[0]}",
        "platform": sysconfig.get_platform(),
    }


def keep(counts: dict[str, float]) -> None:
    """Make these the counts that the tree is held to."""
    commit = first_line("git", "-C", str(ROOT), "log", "-1", "--format=%H", "--", "csrc", "swerex_c", "setup.py")
    found = {"commit": commit, "tools": tools(), "counts": {name: round(number, 1) for name, number in counts.items()}}
    BASELINE.write_text(json.dumps(found, indent=1) + "\n")


def read_baseline() -> Result:
    """What was kept. Raises BenchError if nothing was."""
    if not BASELINE.exists():
        raise BenchError(f"no {BASELINE.name}: make it by --gate --keep")
    found: Result = json.loads(BASELINE.read_text())
    return found


@dataclass(frozen=True)
class Change:
    work: str
    before: float
    after: float
    tolerance: float

    @property
    def share(self) -> float:
        return self.after / self.before - 1

    @property
    def slower(self) -> bool:
        return self.share > self.tolerance


def changes(baseline: Result, counts: dict[str, float]) -> Iterator[Change]:
    """Each piece of work that both have."""
    tolerance = TOLERANCE if baseline["tools"] == tools() else LOOSE
    for work, number in counts.items():
        if work in baseline["counts"]:
            yield Change(work, baseline["counts"][work], number, max(tolerance, VARIED.get(work, 0)))
