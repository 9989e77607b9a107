"""The run: every engine in a process of its own, rounds in which each has its turn, and a budget of time that is kept.

A turn gets its share of the time that is left, so that whatever takes longer than it should is made up for by the rest.
What still runs when a tenth more than the budget is over is ended, and named.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import random
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from swerex_c.bench.figures import Result
from swerex_c.bench.rounds import environment, in_order
from swerex_c.bench.rows import BYTES, ORIGINAL, OURS, PLACE, PROGRAMS, PTY, WARM, Row, Turn

__all__ = ["BOOT", "NO_TIME", "Found", "MissingError", "Setting", "measure"]

LINE = "{:08d} the quick brown fox jumps over the lazy dog 0123456789\n"
"""64 bytes with a number, so that a lost, doubled or moved piece shows."""

NO_TIME = "left out: there was no time for it"
HANGS = 5.0
"""Seconds without an answer that are not the machine's fault any more."""

COSTLY = 0.15
"""The share of the time left that a turn may take which is known to take longer than it is given."""

LOST = 0.33
"""The share of the time left that a turn may take beyond its own until it is ended, so that the others have theirs."""

OVER = 1.1
"""How much of the budget may pass until what still runs is ended."""

GRACE, PLACE_GRACE = 2.0, 30.0
"""Seconds that an engine has at most to end its shells in, and a place to be ended in."""

# The package itself, from where this one is, in an interpreter that may not have it.
BOOT = """\
import importlib.util, sys
spec = importlib.util.spec_from_file_location("swerex_c", sys.argv[1] + "/__init__.py")
sys.modules["swerex_c"] = package = importlib.util.module_from_spec(spec)
spec.loader.exec_module(package)
from swerex_c.bench.worker import main
main()
"""


@dataclass
class Setting:
    """What a run is to be."""

    seconds: float
    original_python: str = sys.executable
    deployment: dict[str, Any] | None = None
    """The configuration of a deployment to measure as well, as it is written in JSON."""

    place_name: str = ""
    needed: tuple[str, ...] = ()
    """Engines without which nothing is to be measured."""

    seed: int = 1
    begin: float | None = None
    """Since when the seconds count, by `time.perf_counter`; None is from the call."""

    @property
    def rounds(self) -> int:
        """Few where there is little time: each engine's first turn costs more than the others."""
        return 5 if self.seconds >= 30 else 3 if self.seconds >= 10 else 2 if self.seconds >= 3 else 1


@dataclass
class Found:
    """What came of a run."""

    rows: list[Row]
    results: dict[tuple[str, str], list[Result]] = field(default_factory=dict)
    """By row and line."""

    errors: dict[tuple[str, str], str] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    """Engines that could not be had, and why."""

    versions: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    load: float = 0.0
    """Of the machine, before the run."""


class MissingError(Exception):
    """An engine that is needed cannot be had; the text says why."""

    def __init__(self, engine: str, why: str) -> None:
        self.engine = engine
        super().__init__(why)


class WorkerError(Exception):
    """An engine cannot be had, or not any more; the text says why."""


class Worker:
    """A process with an engine. It has a session of its own, so that ^C on the terminal is ours alone to deal with."""

    def __init__(
        self, kind: str, options: dict[str, Any], python: str, environment: dict[str, str], grace: float
    ) -> None:
        """Start it. Its first answer has not come yet.

        Raises:
            WorkerError: if there is no such interpreter.
        """
        self.grace = grace
        self.busy = True
        self.blocking = kind != "ours"
        package = str(Path(__file__).resolve().parent.parent)
        try:
            self.process = subprocess.Popen(
                [python, "-c", BOOT, package],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise WorkerError(f"{python}: {error.strerror}") from None
        self._begin({"kind": kind, "options": options})

    @staticmethod
    def _stream(stream: IO[bytes] | None) -> IO[bytes]:
        assert stream is not None
        return stream

    def _begin(self, request: Result) -> None:
        stdin = self._stream(self.process.stdin)
        with contextlib.suppress(BrokenPipeError):  # the answer says so
            stdin.write(json.dumps(request).encode() + b"\n")
            stdin.flush()

    def answer(self, limit: float) -> Result:
        """The next answer.

        Raises:
            WorkerError: if it has not come in so many seconds, or the process has ended.
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

    def ask(self, limit: float, **request: object) -> Result:
        """Have an operation done in `limit` seconds; what came of it, with `error` if it failed. Raises as `answer`."""
        self.busy = True
        self._begin(request)
        return self.answer(limit)

    def begin_to_end(self) -> None:
        """Have it end its shells and itself."""
        if self.busy and self.blocking:
            # It would notice the end of its input too late. Its shells go with their terminals.
            self.process.terminate()
        with contextlib.suppress(BrokenPipeError):
            self._stream(self.process.stdin).close()

    def end(self) -> None:
        """Wait for that, and see to it."""
        try:
            self.process.wait(timeout=self.grace)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._stream(self.process.stdout).close()


class Run:
    """The engines of a run and their turns."""

    def __init__(self, setting: Setting, found: Found, directory: Path, show: Callable[[str], None]) -> None:
        self.setting, self.found, self.directory, self.show = setting, found, directory, show
        self.random = random.Random(setting.seed)
        self.workers: dict[str, Worker] = {}
        self.restarted: set[str] = set()
        self.begin = time.perf_counter() if setting.begin is None else setting.begin

    def left(self) -> float:
        """Seconds of the budget that are left."""
        return self.begin + self.setting.seconds - time.perf_counter()

    def limit(self) -> float:
        """Seconds until what still runs is ended."""
        return self.left() + (OVER - 1) * self.setting.seconds

    def start(self, engines: list[str]) -> None:
        """Start those that have a turn, all at once: most of it is imports. Those that cannot be had are `absent`."""
        for name in engines:
            try:
                self.workers[name] = self._worker(name)
            except WorkerError as error:
                self.found.absent[name] = str(error)
        if PLACE in self.workers:
            self.show(f"starting {self.setting.place_name}")
            self._greet(PLACE, 3600.0)  # its configuration has a limit of its own
            self.begin = time.perf_counter()  # how long a place takes is not ours to say
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
        """A new process for an engine whose last one had to be ended, once; it loses what its sessions were."""
        if name in self.restarted or name == PLACE:
            self.found.absent[name] = "its process was ended, because it gave no answer in time"
            return
        self.restarted.add(name)
        self.workers[name] = self._worker(name)
        self._greet(name, LOST * self.left())

    def _worker(self, name: str) -> Worker:
        here = environment(self.directory, HISTFILE="/dev/null", SWE_REX_LOG_STREAM_LEVEL="ERROR")
        grace = min(GRACE, 0.1 * self.setting.seconds)
        if name == ORIGINAL:
            here["SWEREX_C_SWAP"] = "0"
            return Worker("original", {}, self.setting.original_python, here, grace)
        if name == PLACE:
            # Clients of engines and hosts find in the user's own home what they need.
            options = {"deployment": self.setting.deployment}
            theirs = dict(os.environ, SWE_REX_LOG_STREAM_LEVEL="ERROR")
            return Worker("ours", options, sys.executable, theirs, PLACE_GRACE)
        kinds: dict[str, tuple[str, dict[str, Any]]] = {
            OURS: ("ours", {"deployment": {"type": "local"}}),
            WARM: ("ours", {"deployment": {"type": "local", "warm_sessions": 8, "warm_startup_files": True}}),
            PTY: ("pty", {}),
            PROGRAMS: ("programs", {}),
        }
        return Worker(*kinds[name], sys.executable, here, grace)

    def rounds(self) -> None:
        """All turns, each with its share of the time that is left."""
        schedule: list[tuple[int, Row, Turn]] = []
        for number in range(self.setting.rounds):
            for row in self.found.rows:
                schedule += [(number, row, turn) for turn in in_order(row.turns, number, self.random)]
        weights = [row.weight for _, row, _ in schedule]
        for at, (number, row, turn) in enumerate(schedule):
            self.show(f"{row.title} ({turn.name}), round {number + 1} of {self.setting.rounds}")
            self._turn(number, row, turn, row.weight / sum(weights[at:]))

    def _turn(self, number: int, row: Row, turn: Turn, share: float) -> None:
        line = row.key, turn.name
        if turn.engine not in self.workers and turn.engine not in self.found.absent:
            self._again(turn.engine)
        if turn.engine not in self.workers:
            self.found.errors.setdefault(line, self.found.absent[turn.engine])
            return
        left = self.left()
        seconds = left * share
        new = line not in self.found.results  # then sessions have to be opened first
        if row.like and (new or not row.opens) and (before := self.found.results.get((row.like, turn.name))):
            turn.least = max(turn.least, row.times * min(sum(it["samples_us"]) / it["count"] for it in before) / 1e6)
        if left <= 0 or turn.least > max(seconds, COSTLY * left):
            self.found.errors.setdefault(line, NO_TIME)
            return
        request = {**row.request, **turn.request}
        if "megabytes" in request:
            request["path"] = self._file(request.pop("megabytes"))
        begin = time.perf_counter()
        try:
            limit = min(self.limit(), seconds + max(LOST * left, 2 * turn.least))
            result = self.workers[turn.engine].ask(limit, operation=row.operation, seconds=seconds, **request)
        except WorkerError as error:
            self.found.errors[line] = str(error)
            self._end(turn.engine)
            return
        if "error" in result:
            self.found.errors[line] = result["error"]
            return
        if result["count"] == 1:
            turn.least = time.perf_counter() - begin
        self.found.results.setdefault(line, []).append({**result, "round": number})

    def _file(self, megabytes: int) -> str:
        path = self.directory / f"output-{megabytes}"
        if not path.exists():
            count = megabytes * BYTES // len(LINE.format(0))
            with path.open("w") as out:
                for start in range(0, count, 10_000):
                    out.write("".join([LINE.format(i) for i in range(start, min(start + 10_000, count))]))
        return str(path)

    def close(self) -> None:
        """End all engines and what they have started."""
        for worker in self.workers.values():
            worker.begin_to_end()
        for worker in self.workers.values():
            worker.end()
        self.workers.clear()


_PREFIX, _LOCK = "swerex-c-bench-", "lock"
_OLD = 60.0
"""Seconds after which a directory that nobody holds is surely not one that is being made."""


@contextlib.contextmanager
def _directory() -> Iterator[Path]:
    """In memory where possible, so that `cat FILE` measures the terminal and not a disk."""
    where = "/dev/shm" if os.access("/dev/shm", os.W_OK) else tempfile.gettempdir()
    _remove_abandoned(Path(where))
    with tempfile.TemporaryDirectory(prefix=_PREFIX, dir=where) as name, open(f"{name}/{_LOCK}", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield Path(name)


def _remove_abandoned(where: Path) -> None:
    """What runs left that were killed: it is memory, and nobody else removes it."""
    for path in where.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _OLD:
                with open(path / _LOCK) as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(path)


def measure(setting: Setting, rows: list[Row], show: Callable[[str], None] = lambda _: None) -> Found:
    """Run it. However it ends, also by an exception from a signal, no shell is left.

    Args:
        show: is told what happens, in a few words, before each turn.

    Raises:
        MissingError: if an engine cannot be had that is `needed`.
    """
    found = Found(rows, load=os.getloadavg()[0])
    engines = list(dict.fromkeys(turn.engine for row in rows for turn in row.turns))
    with _directory() as directory:
        run = Run(setting, found, directory, show)
        try:
            run.start(engines)
            run.rounds()
        finally:
            run.close()
    found.seconds = time.perf_counter() - run.begin
    return found
