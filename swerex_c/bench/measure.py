"""Measuring core: a process for each engine, interleaved rounds, checked answers, a budget of time.

In each round of a row each engine has a turn, in random order. A ratio is the median over the rounds of "this engine's
value divided by the baseline's value in that round", so that a change in the machine's speed between rounds affects
both. A turn gets its share of the time that is left, so that later turns compensate for one that takes too long.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import resource
import select
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from .machine import environment, make_file, work_directory
from .worker import Result

__all__ = ["NO_TIME", "Contender", "Found", "Row", "Setting", "Turn", "WorkerError", "measure", "percentile"]

NO_TIME = "left out: there was no time for it"

COSTLY = 0.15
"""Share of the time left that a turn may take if it is known to need longer than its own share."""

LOST = 0.33
"""Share of the time left by which a turn may exceed its own time before it is ended, so that others have time."""

OVER = 1.1
"""Multiple of the budget after which running work is ended."""

HANGS = 5.0
"""Seconds without an answer after which a slow machine is no longer a plausible cause."""

ONCE_LIMIT = 120.0
"""Maximum seconds of a turn without a budget."""

FILES = 8192
"""Descriptors that 1,000 sessions may need, of this process's and the workers' limit."""

PACKAGE = str(Path(__file__).resolve().parents[1])

# Load this package from where it is in an interpreter that may not have it, without the packages beside it.
BOOT = """\
import importlib.util, sys
for path in sys.argv[1:]:
    name = path.rpartition("/")[2]
    spec = importlib.util.spec_from_file_location(name, path + "/__init__.py")
    sys.modules[name] = package = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(package)
from swerex_c.bench.worker import serve
serve()
"""


class WorkerError(Exception):
    """An engine is not available, or no longer available; the text gives the reason."""


@dataclass
class Contender:
    """An engine to measure, and the process that has it."""

    name: str
    kind: str
    """Class of the engine as "module:Class"."""

    options: dict[str, Any] = field(default_factory=dict)
    python: str = sys.executable
    variables: dict[str, str] | None = field(default_factory=dict)
    """Additional variables; None gives it the caller's environment, such as the home that clients of ssh need."""

    packages: tuple[str, ...] = ()
    """Directories of packages besides this one that the process must have."""

    outlasts: bool = False
    """True if the start and the end of the engine may take long, and are not part of the budget."""


@dataclass
class Turn:
    """Work of an engine in each round of a row."""

    engine: str
    request: dict[str, Any] = field(default_factory=dict)
    """Parameters of the operation."""

    rounds: int | None = None
    """Maximum number of rounds with this turn, for slow engines; None means all rounds."""

    least: float = 0.01
    """Estimated seconds of the shortest possible turn; the turn is left out if there is less time."""

    label: str = ""

    @property
    def name(self) -> str:
        """Return the name of the line."""
        return self.label or self.engine


def percentile(values: list[float], share: float) -> float:
    """Return the value below which `share` (0 to 1) of all values lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def _value(result: Result) -> float | None:
    """Return a turn's microseconds for each command; None if no answer was right."""
    if "per_second" in result:
        return 1e6 / float(result["per_second"])
    return percentile(result["samples_us"], 0.5) if result["samples_us"] else None


@dataclass
class Row:
    """One measured operation, its turns, and their results by the names of the turns."""

    key: str
    title: str
    operation: str
    turns: list[Turn]
    baseline: str = "bare terminal"
    """Name of the line that the ratios are of."""

    weight: float = 1.0
    """Weight of the row's share of the time."""

    full: bool = False
    """True if only the source tree's benchmarks measure it."""

    results: dict[str, list[Result]] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    wrong: dict[str, int] = field(default_factory=dict)

    def keep(self, name: str, result: Result) -> None:
        """Keep the result of a turn; after a wrong answer, all results of its line are dropped."""
        if result["wrong"]:
            self.wrong[name] = self.wrong.get(name, 0) + result["wrong"]
        if name in self.wrong:
            count = self.wrong[name]
            self.errors[name] = f"{count} WRONG {'answer' if count == 1 else 'answers'}: no time"
            self.results.pop(name, None)
        else:
            self.results.setdefault(name, []).append(result)

    def rounds(self, name: str) -> dict[str, float]:
        """Return a line's value in each round that the baseline has too, divided by the baseline's."""
        base = {it["round"]: _value(it) for it in self.results.get(self.baseline, [])}
        pairs = [(it["round"], _value(it), base.get(it["round"])) for it in self.results.get(name, [])]
        return {str(number): value / limit for number, value, limit in pairs if value and limit}

    def summary(self, name: str) -> Result:
        """Return all numbers of a line, or its error."""
        results = self.results.get(name, [])
        if not results:
            return {"error": self.errors.get(name, "not measured"), "wrong": self.wrong.get(name, 0)}
        count = sum(it["count"] for it in results)
        samples = [it for result in results for it in result["samples_us"]]
        line: Result = {"count": count, "wrong": 0, "p50_us": percentile(samples, 0.5)}
        line |= {"p99_us": percentile(samples, 0.99), "min_us": min(samples), "max_us": max(samples)}
        if "bytes" in results[0]:
            line |= {"bytes": results[0]["bytes"], "megabytes_per_second": results[0]["bytes"] / line["p50_us"]}
        if "per_second" in results[0]:
            line["per_second"] = statistics.median(it["per_second"] for it in results)
        line["rounds"] = self.rounds(name)
        if line["rounds"] and name != self.baseline:
            line["ratio"] = statistics.median(line["rounds"].values())
        if name in self.errors and self.errors[name] != NO_TIME:
            line["failed"] = self.errors[name]
        return line


@dataclass
class Setting:
    """Settings of a run."""

    contenders: list[Contender]
    seconds: float
    """Budget of time."""

    rounds: int = 5
    once: bool = False
    """True to take one sample of each turn, whatever time that takes."""

    seed: int = 1


@dataclass
class Found:
    """Results of a run."""

    rows: list[Row]
    absent: dict[str, str] = field(default_factory=dict)
    """Engines that are not available, or no longer available, with the reason."""

    versions: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    load: float = 0.0
    """Load of the machine before the run."""

    interrupted: bool = False
    """True if ^C ended the run."""


class Worker:
    """Process with an engine. It has its own process session, so that ^C on the terminal reaches only the driver."""

    def __init__(self, contender: Contender, directory: Path, grace: float) -> None:
        """Start the process without waiting for its first response.

        Raises:
            WorkerError: if the interpreter cannot be run.
        """
        self.grace = grace
        self.blocking = not contender.outlasts
        variables = dict(os.environ)
        if contender.variables is not None:
            variables = environment(directory, HISTFILE="/dev/null", TMPDIR=str(directory), **contender.variables)
        command = [contender.python, "-c", BOOT, PACKAGE, *contender.packages]
        variables["SWE_REX_LOG_STREAM_LEVEL"] = "CRITICAL"
        pipe = subprocess.PIPE
        try:
            self.process = subprocess.Popen(command, env=variables, stdin=pipe, stdout=pipe, start_new_session=True)
        except OSError as error:
            raise WorkerError(f"{command[0]}: {error.strerror}") from None
        self._send({"kind": contender.kind, "options": contender.options})

    @staticmethod
    def _stream(stream: IO[bytes] | None) -> IO[bytes]:
        assert stream is not None
        return stream

    def _send(self, request: Result) -> None:
        self.busy = True
        stdin = self._stream(self.process.stdin)
        with contextlib.suppress(BrokenPipeError):  # `answer` reports the end of the process
            stdin.write(json.dumps(request).encode() + b"\n")
            stdin.flush()

    def answer(self, limit: float) -> Result:
        """Wait up to `limit` seconds for the next response, and return it.

        Raises:
            WorkerError: if there is no response within that time, or the process has ended.
        """
        stdout = self._stream(self.process.stdout)
        if not select.select([stdout], [], [], max(0.0, limit))[0]:
            raise WorkerError(NO_TIME if limit < HANGS else f"it gave no answer in {limit:.0f} s")
        line = stdout.readline()
        self.busy = False
        if not line:
            raise WorkerError(f"its process ended with {self.process.wait()}")
        answer: Result = json.loads(line)
        return answer

    def ask(self, limit: float, request: Result) -> Result:
        """Run an operation within `limit` seconds, and return its result, with `error` if it failed."""
        self._send(request)
        return self.answer(limit)

    def begin_to_end(self) -> None:
        """Make the process end its shells and exit, without waiting for it."""
        if self.busy and self.blocking:
            # It would notice the end of its input too late. Shells end with their terminals.
            self.process.terminate()
        with contextlib.suppress(BrokenPipeError):
            self._stream(self.process.stdin).close()

    def end(self) -> None:
        """Wait up to `grace` seconds for the exit of the process, then kill it."""
        try:
            self.process.wait(timeout=self.grace)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._stream(self.process.stdout).close()


class Run:
    """Run of a benchmark."""

    def __init__(self, setting: Setting, found: Found, directory: Path, show: Callable[[str], None]) -> None:
        self.setting, self.found, self.directory, self.show = setting, found, directory, show
        self.random = random.Random(setting.seed)
        self.contenders = {contender.name: contender for contender in setting.contenders}
        self.workers: dict[str, Worker] = {}
        self.restarted: set[str] = set()
        self.begin = time.perf_counter()

    def left(self) -> float:
        """Return the seconds of the budget that are left."""
        return math.inf if self.setting.once else self.begin + self.setting.seconds - time.perf_counter()

    def start(self, names: Iterable[str]) -> None:
        """Start the engines concurrently, as most of the time is imports; note those that are not available."""
        names = [name for name in names if name in self.contenders]
        for name in names:
            self._start(name)
        for name in sorted(names, key=lambda name: not self.contenders[name].outlasts):
            if name in self.workers:
                self.show(f"starting {name}")
                self._greet(name, 3600.0 if self.contenders[name].outlasts else min(self.left() / 2, ONCE_LIMIT))
            if self.contenders[name].outlasts:
                self.begin = time.perf_counter()

    def _start(self, name: str) -> None:
        contender = self.contenders[name]
        try:
            grace = 30.0 if contender.outlasts or self.setting.once else min(2.0, 0.1 * self.setting.seconds)
            self.workers[name] = Worker(contender, self.directory, grace)
        except WorkerError as error:
            self.found.absent[name] = str(error)

    def _greet(self, name: str, limit: float) -> None:
        """Wait for an engine to be ready."""
        try:
            hello = self.workers[name].answer(limit)
        except WorkerError as error:
            hello = {"error": str(error)}
        if "ready" in hello:
            self.workers[name].blocking = hello["blocking"]
            self.found.versions[name] = str(hello["ready"])
        else:
            self.found.absent[name] = str(hello["error"])
            self._end(name)

    def _end(self, name: str) -> None:
        worker = self.workers.pop(name)
        worker.begin_to_end()
        worker.end()

    def _again(self, name: str) -> None:
        """Start a new process, once, for an engine whose process had to be ended; its sessions are lost."""
        if name in self.restarted or name not in self.contenders or self.contenders[name].outlasts:
            self.found.absent[name] = "its process was ended, because it gave no answer in time"
            return
        self.restarted.add(name)
        self._start(name)
        if name in self.workers:
            self._greet(name, min(LOST * self.left(), ONCE_LIMIT))

    def run(self) -> None:
        """Run all turns, each with its share of the time that is left."""
        rounds = 1 if self.setting.once else self.setting.rounds
        schedule: list[tuple[int, Row, Turn]] = []
        for number in range(rounds):
            for row in self.found.rows:
                turns = [turn for turn in row.turns if turn.rounds is None or number < turn.rounds]
                self.random.shuffle(turns)
                schedule += [(number, row, turn) for turn in turns]
        weights = [row.weight for _, row, _ in schedule]
        for at, (number, row, turn) in enumerate(schedule):
            spent = (
                ""
                if self.setting.once
                else f"{self.setting.seconds - self.left():.0f} of {self.setting.seconds:.0f} s, "
            )
            self.show(f"{spent}{at + 1} of {len(schedule)}: {row.title}: {turn.name}")
            needed = sum(turn.least for _, _, turn in schedule[at:])
            self._turn(number, row, turn, row.weight / sum(weights[at:]), needed)

    def _turn(self, number: int, row: Row, turn: Turn, share: float, needed: float) -> None:
        """Run a turn with its share of the time that is left and that no turn needs at least."""
        if turn.engine not in self.workers and turn.engine not in self.found.absent:
            self._again(turn.engine)
        if turn.engine not in self.workers:
            row.errors.setdefault(turn.name, self.found.absent[turn.engine])
            return
        left = self.left()
        spare = max(0.0, left - needed)
        if left <= 0 or (not spare and turn.least > max(left * share, COSTLY * left)):
            row.errors.setdefault(turn.name, NO_TIME)
            return
        count, seconds, limit = 1, 0.0, ONCE_LIMIT
        if not self.setting.once:
            count, seconds = 1 << 30, spare * share
            over = left + (OVER - 1) * self.setting.seconds
            limit = min(over, seconds + max(LOST * left, 3 * turn.least))
        request = {"operation": row.operation, "count": count, "seconds": seconds, **turn.request}
        if megabytes := request.pop("megabytes", 0):
            end = " " if request.pop("one_line") else "\n"
            request["path"] = make_file(self.directory / f"{row.key}", megabytes, end)
        try:
            result = self.workers[turn.engine].ask(limit, request)
        except WorkerError as error:
            row.errors[turn.name] = str(error)
            self._end(turn.engine)
            return
        if "error" in result:
            row.errors[turn.name] = result["error"]
        else:
            row.keep(turn.name, {**result, "round": number})

    def close(self) -> None:
        """End all engines and the processes that they started."""
        for worker in self.workers.values():
            worker.begin_to_end()
        for worker in self.workers.values():
            worker.end()
        self.workers.clear()


def measure(setting: Setting, rows: list[Row], show: Callable[[str], None] = lambda _: None) -> Found:
    """Run the benchmark, and return its results; after ^C, those that there are.

    No shell is left when it ends, even after an exception from a signal.

    Args:
        show: called with a short description before each turn.
    """
    found = Found(rows, load=os.getloadavg()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < FILES:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(FILES, hard), hard))
    with work_directory() as directory:
        run = Run(setting, found, directory, show)
        try:
            run.start(dict.fromkeys(turn.engine for row in rows for turn in row.turns))
            run.run()
        except KeyboardInterrupt:
            found.interrupted = True
        finally:
            run.close()
    found.seconds = time.perf_counter() - run.begin
    return found
