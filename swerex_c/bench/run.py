"""Run of the benchmark: engine processes, rounds and a time budget.

Each engine has its own process, and a turn in each round. A turn gets its share of the time that is left, so that later
turns compensate for one that takes too long. Work that still runs when the budget is exceeded by a tenth is ended and
reported.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .machine import environment, make_file, work_directory
from .process import NO_TIME, Worker, WorkerError
from .results import in_order
from .rows import ORIGINAL, OURS, PLACE, PROGRAMS, PTY, WARM, Row, Turn

__all__ = ["BOOT", "Found", "MissingError", "Setting", "measure"]

COSTLY = 0.15
"""Share of the time left that a turn may take if it is known to need longer than its own share."""

LOST = 0.33
"""Share of the time left by which a turn may exceed its own time before it is ended, so that others have time."""

OVER = 1.1
"""Multiple of the budget after which running work is ended."""

GRACE, PLACE_GRACE = 2.0, 30.0
"""Maximum seconds for an engine to end its shells, and for a deployment that the caller specifies to stop."""

# Load the package from this installation in an interpreter that may not have it.
BOOT = """\
import importlib.util, sys
spec = importlib.util.spec_from_file_location("swerex_c", sys.argv[1] + "/__init__.py")
sys.modules["swerex_c"] = package = importlib.util.module_from_spec(spec)
spec.loader.exec_module(package)
from swerex_c.bench.make import main
main()
"""


@dataclass
class Setting:
    """Settings of a run."""

    seconds: float
    original_python: str = sys.executable
    deployment: dict[str, Any] | None = None
    """Configuration of an additional deployment to measure, as JSON data."""

    place_name: str = ""
    needed: tuple[str, ...] = ()
    """Engines without which the run fails."""

    seed: int = 1
    begin: float | None = None
    """Start of the budget by `time.perf_counter`; None means the start of the run."""

    @property
    def rounds(self) -> int:
        """Return the number of rounds, which is smaller for a short run.

        Each engine's first turn costs more than the others.
        """
        return 5 if self.seconds >= 30 else 3 if self.seconds >= 10 else 2 if self.seconds >= 3 else 1


@dataclass
class Found:
    """Results of a run."""

    rows: list[Row]
    """Rows with their results."""

    absent: dict[str, str] = field(default_factory=dict)
    """Engines that are not available, with the reason."""

    versions: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    load: float = 0.0
    """Load of the machine before the run."""


class MissingError(Exception):
    """A needed engine is not available; the text gives the reason."""

    def __init__(self, engine: str, why: str) -> None:
        self.engine = engine
        super().__init__(why)


class Run:
    """Run of a benchmark, with its engines and turns."""

    def __init__(self, setting: Setting, found: Found, directory: Path, show: Callable[[str], None]) -> None:
        self.setting, self.found, self.directory, self.show = setting, found, directory, show
        self.random = random.Random(setting.seed)
        self.workers: dict[str, Worker] = {}
        self.restarted: set[str] = set()
        self.begin = time.perf_counter() if setting.begin is None else setting.begin

    def left(self) -> float:
        """Return the seconds of the budget that are left."""
        return self.begin + self.setting.seconds - time.perf_counter()

    def limit(self) -> float:
        """Return the seconds until running work is ended."""
        return self.left() + (OVER - 1) * self.setting.seconds

    def start(self, engines: list[str]) -> None:
        """Start the engines concurrently, as most of the time is imports.

        Engines that are not available go into `absent`.

        Raises:
            MissingError: if a `needed` engine is not available.
        """
        for name in engines:
            try:
                self.workers[name] = self._worker(name)
            except WorkerError as error:
                self.found.absent[name] = str(error)
        if PLACE in self.workers:
            self.show(f"starting {self.setting.place_name}")
            self._greet(PLACE, 3600.0)  # the deployment's configuration has its own limit
            self.begin = time.perf_counter()  # the budget excludes the start of the deployment
        self.show("starting")
        for name in [name for name in self.workers if name != PLACE]:
            self._greet(name, self.left() / 2)
        for name in set(self.setting.needed) & set(self.found.absent):
            raise MissingError(name, self.found.absent[name])

    def _greet(self, name: str, limit: float) -> None:
        try:
            hello = self.workers[name].answer(limit)
        except WorkerError as error:
            self._lose(name, str(error))
            return
        if "ready" in hello:
            self.found.versions[name] = str(hello["ready"])
        else:
            self._lose(name, str(hello["error"]))

    def _lose(self, name: str, why: str) -> None:
        self.found.absent[name] = why
        self._end(name)

    def _end(self, name: str) -> None:
        worker = self.workers.pop(name)
        worker.begin_to_end()
        worker.end()

    def _again(self, name: str) -> None:
        """Start a new process, once, for an engine whose process had to be ended; its sessions are lost."""
        if name in self.restarted or name == PLACE:
            self.found.absent[name] = "its process was ended, because it gave no answer in time"
            return
        self.restarted.add(name)
        self.workers[name] = self._worker(name)
        self._greet(name, LOST * self.left())

    def _worker(self, name: str) -> Worker:
        here = environment(self.directory, HISTFILE="/dev/null", SWE_REX_LOG_STREAM_LEVEL="ERROR")
        python, grace = sys.executable, min(GRACE, 0.1 * self.setting.seconds)
        kinds: dict[str, tuple[str, dict[str, Any]]] = {
            OURS: ("ours", {"deployment": {"type": "local"}}),
            WARM: ("ours", {"deployment": {"type": "local", "warm_sessions": 8, "warm_startup_files": True}}),
            PLACE: ("ours", {"deployment": self.setting.deployment}),
            PTY: ("pty", {}),
            PROGRAMS: ("programs", {}),
            ORIGINAL: ("original", {}),
        }
        kind, options = kinds[name]
        if name == ORIGINAL:
            here["SWEREX_C_SWAP"], python = "0", self.setting.original_python
        elif name == PLACE:
            # Clients of container engines and hosts need their files in the user's own home.
            here, grace = dict(os.environ, SWE_REX_LOG_STREAM_LEVEL="ERROR"), PLACE_GRACE
        command = [python, "-c", BOOT, str(Path(__file__).resolve().parent.parent)]
        return Worker(command, here, {"kind": kind, "options": options}, blocking=kind != "ours", grace=grace)

    def rounds(self) -> None:
        """Run all turns, each with its share of the time that is left."""
        schedule: list[tuple[int, Row, Turn]] = []
        for number in range(self.setting.rounds):
            for row in self.found.rows:
                schedule += [(number, row, turn) for turn in in_order(row.turns, number, self.random)]
        weights = [row.weight for _, row, _ in schedule]
        for at, (number, row, turn) in enumerate(schedule):
            self.show(f"{row.title} ({turn.name}), round {number + 1} of {self.setting.rounds}")
            self._turn(number, row, turn, row.weight / sum(weights[at:]))

    def _turn(self, number: int, row: Row, turn: Turn, share: float) -> None:
        if turn.engine not in self.workers and turn.engine not in self.found.absent:
            self._again(turn.engine)
        if turn.engine not in self.workers:
            row.errors.setdefault(turn.name, self.found.absent[turn.engine])
            return
        left = self.left()
        seconds = left * share
        new = turn.name not in row.results  # the first turn of a line must open its sessions
        if row.like and (new or not row.opens) and (before := row.like.results.get(turn.name)):
            turn.least = max(turn.least, row.times * min(sum(it["samples_us"]) / it["count"] for it in before) / 1e6)
        if left <= 0 or turn.least > max(seconds, COSTLY * left):
            row.errors.setdefault(turn.name, NO_TIME)
            return
        request = {"operation": row.operation, "seconds": seconds, **row.request, **turn.request}
        if megabytes := request.pop("megabytes", 0):
            request["path"] = make_file(self.directory / f"output-{megabytes}", megabytes)
        begin = time.perf_counter()
        try:
            limit = min(self.limit(), seconds + max(LOST * left, 2 * turn.least))
            result = self.workers[turn.engine].ask(limit, **request)
        except WorkerError as error:
            row.errors[turn.name] = str(error)
            self._end(turn.engine)
            return
        if "error" in result:
            row.errors[turn.name] = result["error"]
            return
        if result["count"] == 1:
            turn.least = time.perf_counter() - begin
        row.keep(turn.name, {**result, "round": number})

    def close(self) -> None:
        """End all engines and the processes that they started."""
        for worker in self.workers.values():
            worker.begin_to_end()
        for worker in self.workers.values():
            worker.end()
        self.workers.clear()


def measure(setting: Setting, rows: list[Row], show: Callable[[str], None] = lambda _: None) -> Found:
    """Run the benchmark, and return its results.

    No shell is left when it ends, even after an exception from a signal.

    Args:
        show: called with a short description before each turn.

    Raises:
        MissingError: if a `needed` engine is not available.
    """
    found = Found(rows, load=os.getloadavg()[0])
    engines = list(dict.fromkeys(turn.engine for row in rows for turn in row.turns))
    with work_directory() as directory:
        run = Run(setting, found, directory, show)
        try:
            run.start(engines)
            run.rounds()
        finally:
            run.close()
    found.seconds = time.perf_counter() - run.begin
    return found
