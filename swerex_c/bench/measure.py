"""Measuring core: a process for each engine, interleaved rounds, checked answers, a budget of time.

In each round of a row each engine has a turn, in random order. A ratio is the median over the rounds of "this engine's
value divided by the baseline's value in that round", so that a change in the machine's speed between rounds affects
both. A turn gets an equal share of the time that is left, so that later turns compensate for one that takes too long.
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
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .machine import environment, make_file
from .worker import Result

__all__ = ["NO_TIME", "Contender", "Row", "Run", "Turn"]

NO_TIME = "left out: there was no time for it"

START_SECONDS = 3600.0
"""Maximum seconds for the start of an engine, which may have to download an image."""

END_SECONDS = 30.0
"""Maximum seconds for the end of an engine, which may have to remove a container."""

ONCE_SECONDS = 120.0
"""Maximum seconds of a turn without a budget."""

LATE = 0.5
"""Share of the budget by which a turn may exceed its own time before its engine is ended."""

FILES = 8192
"""Descriptors that 1,000 sessions may need, of this process's and the workers' limit."""

# The interpreter of an engine need not have this package. It gets it alone, without the packages beside it.
BOOT = "import sys; sys.path.insert(0, sys.argv[1]); from swerex_c.bench.worker import serve; serve()"


@dataclass
class Contender:
    """An engine to measure, and the process that has it."""

    name: str
    kind: str
    """Class of the engine, or of its operations, as "module:Class"."""

    options: dict[str, Any] = field(default_factory=dict)
    python: str = sys.executable
    variables: dict[str, str] | None = field(default_factory=dict)
    """Additional variables; None gives it the caller's environment, such as the home that clients of ssh need."""


def percentile(values: list[float], share: float) -> float:
    """Return the value below which `share` (0 to 1) of all values lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


@dataclass
class Turn:
    """Work of an engine in each round of a row, and its results."""

    engine: str
    request: dict[str, Any] = field(default_factory=dict)
    """Parameters of the operation."""

    rounds: int | None = None
    """Maximum number of rounds with this turn, for slow engines; None means all rounds."""

    label: str = ""
    results: list[Result] = field(default_factory=list)
    error: str = ""
    wrong: int = 0

    @property
    def name(self) -> str:
        return self.label or self.engine

    def keep(self, result: Result) -> None:
        """Keep a result; after a wrong answer, all results are dropped."""
        self.wrong += result["wrong"]
        if self.wrong:
            self.error = f"{self.wrong} WRONG {'answer' if self.wrong == 1 else 'answers'}: no time"
            self.results.clear()
        else:
            self.results.append(result)

    def values(self) -> dict[int, float]:
        """Return the microseconds for each command, by round."""
        return {
            it["round"]: 1e6 / it["per_second"] if "per_second" in it else percentile(it["samples_us"], 0.5)
            for it in self.results
        }


@dataclass
class Row:
    """One measured operation, and the turns of the engines."""

    key: str
    title: str
    operation: str
    turns: list[Turn]
    baseline: str = "bare terminal"
    """Name of the turn that the ratios are of."""

    def summary(self, turn: Turn) -> Result:
        """Return all numbers of a turn, or its error."""
        results = turn.results
        if not results:
            return {"error": turn.error or "not measured", "wrong": turn.wrong}
        count = sum(it["count"] for it in results)
        samples = [it for result in results for it in result["samples_us"]]
        line: Result = {"count": count, "wrong": 0, "p50_us": percentile(samples, 0.5)}
        line |= {"p99_us": percentile(samples, 0.99), "min_us": min(samples), "max_us": max(samples)}
        if "bytes" in results[0]:
            line |= {"bytes": results[0]["bytes"], "megabytes_per_second": results[0]["bytes"] / line["p50_us"]}
        if "per_second" in results[0]:
            line["per_second"] = statistics.median(it["per_second"] for it in results)
        base = next((it.values() for it in self.turns if it.name == self.baseline), {})
        line["rounds"] = {str(at): value / base[at] for at, value in turn.values().items() if at in base}
        if line["rounds"] and turn.name != self.baseline:
            line["ratio"] = statistics.median(line["rounds"].values())
        if turn.error not in ("", NO_TIME):
            line["failed"] = turn.error
        return line


class Worker:
    """Process with an engine. It has its own process session, so that ^C on the terminal reaches only the driver."""

    def __init__(self, contender: Contender, directory: Path) -> None:
        """Start the process without waiting for its first response."""
        variables = dict(os.environ)
        if contender.variables is not None:
            variables = environment(directory, HISTFILE="/dev/null", TMPDIR=str(directory), **contender.variables)
        variables["SWE_REX_LOG_STREAM_LEVEL"] = "CRITICAL"
        packages = directory / "packages"
        packages.mkdir(exist_ok=True)
        for name in {"swerex_c", contender.kind.partition(".")[0]}:
            if not (packages / name).exists():
                (packages / name).symlink_to(sys.modules[name].__path__[0])
        command = [contender.python, "-c", BOOT, str(packages)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, env=variables, stdin=pipe, stdout=pipe, start_new_session=True)
        assert self.process.stdin and self.process.stdout
        self.requests, self.answers = self.process.stdin, self.process.stdout
        self.send({"kind": contender.kind, "options": contender.options})

    def send(self, request: Result) -> None:
        """Send a request, which the next `answer` responds to."""
        with contextlib.suppress(BrokenPipeError):  # `answer` reports the end of the process
            self.requests.write(json.dumps(request).encode() + b"\n")
            self.requests.flush()

    def answer(self, limit: float) -> Result:
        """Return the next response; with `error` if work failed, and `lost` if none came in `limit` seconds."""
        if not select.select([self.answers], [], [], limit)[0]:
            return {"error": f"it gave no answer in {limit:.0f} s", "lost": True}
        line = self.answers.readline()
        if not line:
            return {"error": f"its process ended with {self.process.wait()}", "lost": True}
        answer: Result = json.loads(line)
        return answer

    def stop(self) -> None:
        """Make the process end its shells and exit, without waiting for it."""
        with contextlib.suppress(BrokenPipeError):
            self.requests.close()

    def end(self) -> None:
        """Wait for the exit of the process, or kill it after `END_SECONDS`."""
        self.stop()
        try:
            self.process.wait(timeout=END_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.answers.close()


@dataclass
class Run:
    """Run of a benchmark: its settings, and its results after `measure`."""

    contenders: list[Contender]
    seconds: float
    """Budget of time, without the start and the end of the engines."""

    rounds: int = 5
    once: bool = False
    """True to take one sample of each turn, whatever time that takes."""

    seed: int = 1
    rows: list[Row] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)
    """Engines that are not available, or no longer available, with the reason."""

    versions: dict[str, str] = field(default_factory=dict)
    took: float = 0.0
    """Seconds of the run, without the start of the engines."""

    load: float = 0.0
    """Load of the machine before the run."""

    interrupted: bool = False
    """True if ^C ended the run."""

    def measure(self, rows: list[Row], show: Callable[[str], None] = lambda _: None) -> None:
        """Measure rows until the end or ^C. No shell is left then, even after an exception from a signal.

        Args:
            rows: rows to measure; the turns of engines that the run does not have are removed.
            show: called with a short description before each turn.
        """
        names = {contender.name for contender in self.contenders}
        for row in rows:
            row.turns = [turn for turn in row.turns if turn.engine in names]
        self.rows, self.load = rows, os.getloadavg()[0]
        self._show, self._begin = show, time.perf_counter()
        self._workers: dict[str, Worker] = {}
        self._files: dict[str, int] = {}
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft < FILES:
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(FILES, hard), hard))
        with tempfile.TemporaryDirectory(prefix="swerex-c-bench-") as directory:
            try:
                self._start(Path(directory))
                self._run_turns()
            except KeyboardInterrupt:
                self.interrupted = True
            finally:
                for worker in self._workers.values():
                    worker.stop()
                for worker in self._workers.values():
                    worker.end()
                for file in self._files.values():
                    os.close(file)
        self.took = time.perf_counter() - self._begin

    def _start(self, directory: Path) -> None:
        """Start the engines concurrently, as most of the time is imports; note those that are not available."""
        wanted = {turn.engine for row in self.rows for turn in row.turns}
        for contender in self.contenders:
            if contender.name in wanted:
                try:
                    self._workers[contender.name] = Worker(contender, directory)
                except OSError as error:
                    self.absent[contender.name] = f"{contender.python}: {error.strerror}"
        for name, worker in list(self._workers.items()):
            self._show(f"starting {name}")
            hello = worker.answer(START_SECONDS)
            if "ready" in hello:
                self.versions[name] = hello["ready"]
            else:
                self._lose(name, hello["error"])
        self._begin = time.perf_counter()

    def _lose(self, name: str, why: str) -> None:
        """End the process of an engine that is not, or no longer, available."""
        self.absent[name] = why
        self._workers.pop(name).end()

    def _run_turns(self) -> None:
        """Run all turns, each with its share of the time that is left."""
        order = random.Random(self.seed)
        schedule: list[tuple[int, Row, Turn]] = []
        for number in range(1 if self.once else self.rounds):
            for row in self.rows:
                turns = [turn for turn in row.turns if turn.rounds is None or number < turn.rounds]
                order.shuffle(turns)
                schedule += [(number, row, turn) for turn in turns]
        for at, (number, row, turn) in enumerate(schedule):
            left = math.inf if self.once else self._begin + self.seconds - time.perf_counter()
            time_left = "" if self.once else f"{max(left, 0.0):.0f} s left, "
            self._show(f"{time_left}{at + 1} of {len(schedule)}: {row.title}: {turn.name}")
            if turn.engine not in self._workers:
                turn.error = turn.error or self.absent[turn.engine]
            elif left <= 0:
                turn.error = turn.error or NO_TIME
            else:
                self._turn(number, row, turn, left / (len(schedule) - at))

    def _turn(self, number: int, row: Row, turn: Turn, seconds: float) -> None:
        """Run a turn for some seconds, and keep its result."""
        limits, longest = {"count": 1 << 30, "seconds": seconds}, seconds + LATE * self.seconds
        if self.once:
            limits, longest = {"count": 1, "seconds": 0.0}, ONCE_SECONDS
        request = {"operation": row.operation, **limits, **turn.request}
        if megabytes := request.pop("megabytes", 0):
            end = request.pop("end", "\n")
            if row.key not in self._files:
                self._files[row.key] = make_file(megabytes, end)
            request["path"] = f"/proc/{os.getpid()}/fd/{self._files[row.key]}"
        worker = self._workers[turn.engine]
        worker.send(request)
        result = worker.answer(longest)
        if "error" not in result:
            turn.keep({**result, "round": number})
            return
        turn.error = result["error"]
        if "lost" in result:
            self._lose(turn.engine, result["error"])
