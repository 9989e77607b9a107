"""Contenders as processes, and the run: each row in rounds, in each of which every contender has its turn."""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from measuring import process
from measuring.machine import environment, first_line
from measuring.machine import machine as describe
from measuring.results import in_order
from rows import Result, Turn, Workload

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
ORIGINAL_REQUIREMENTS = ["swe-rex==1.4.0", "aiohttp"]
OTHER_REQUIREMENTS = [
    *("pexpect", "ptyprocess", "libtmux"),
    *("hyperscan", "msgpack", "ormsgpack", "pcre2", "pyahocorasick"),
    "matplotlib",
]
"""Of the other engines and libraries, and of the pictures; one that cannot be had is named, and the rest goes on."""
TURN_LIMIT = 120.0
"""Seconds after which a contender that does not come back is ended; its row then says so."""
LEFT_OUT = "left out"
C_FLAGS = ["-O2", "-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra"]


class BenchError(Exception):
    """Something is missing; the text says what."""


class Absent(BenchError):
    """An engine that this machine does not have. It is named, and the rest goes on."""


# ---- contenders as processes ----


class Worker(process.Worker):
    """A running worker.py, or another script that is asked as it is."""

    def __init__(
        self,
        contender: str,
        python: str,
        environment: dict[str, str],
        script: str = "worker.py",
        before: tuple[str, ...] = (),
    ) -> None:
        """before: a command line that runs another one. Raises BenchError if the contender cannot be had."""
        try:
            super().__init__([*before, python, str(HERE / script)], environment, {"kind": contender})
            hello = self.answer(TURN_LIMIT)
        except process.WorkerError as error:
            hello = {"error": str(error)}
        if "ready" not in hello:
            raise BenchError(str(hello["error"]))
        self.python = str(hello["python"])

    def ask(self, operation: str, **parameters: object) -> Result:  # type: ignore[override]
        self.begin(operation=operation, **parameters)
        return self.finish()

    def want(self, operation: str, **parameters: object) -> None:
        """Asks for what must not fail: then the process ends, and BenchError says why."""
        answer = self.ask(operation, **parameters)
        if "error" in answer:
            self.close()
            raise BenchError(answer["error"])

    def finish(self) -> Result:
        """Waits for the answer to what was begun."""
        try:
            return self.answer(TURN_LIMIT)
        except process.WorkerError as error:
            self.process.kill()
            return {"error": str(error)}

    def close(self) -> None:
        self.begin_to_end()
        self.end()


class Floor:
    """A contender that is a program, such as one in C: one run of it for each request."""

    def __init__(self, binary: str, environment: dict[str, str], *before: str) -> None:
        """before: arguments that come before those of a request."""
        self.binary, self.environment, self.before = binary, environment, before

    def ask(self, *arguments: object, cpus: list[int] | None = None) -> Result:
        """cpus: the processors that it may have, with all that it starts."""
        command = [self.binary, *self.before, *map(str, arguments)]
        with processors(cpus or []):
            done = subprocess.run(command, env=self.environment, stdout=subprocess.PIPE, text=True, check=False)
        if not done.stdout.startswith("{"):
            return {"error": f"{Path(self.binary).name} {arguments[0]} ended with {done.returncode}"}
        answer: Result = json.loads(done.stdout)
        return answer

    def close(self) -> None:
        pass


@contextmanager
def processors(cpus: list[int]) -> Iterator[None]:
    """What this thread starts within has these processors; none: those that it has itself."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus or allowed)
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def build(directory: Path, name: str, *more: str) -> str:
    """Compiles one of the C programs beside this file; returns its path."""
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if not compiler:
        raise BenchError("no C compiler: install build-essential (Debian) or gcc (Fedora)")
    binary = directory / name
    source = str(HERE / f"{name}.c")
    command = [*shlex.split(compiler), *C_FLAGS, source, *more, "-o", str(binary), "-lutil", "-lpthread"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchError(f"{name}.c does not build: {done.stderr.strip()}")
    return str(binary)


def build_floor(directory: Path) -> str:
    """Compiles floor.c; returns its path."""
    return build(directory, "floor")


def original_python(may_install: bool) -> str | None:
    """The interpreter of an environment that has the original; made below .cache/ when there is none."""
    given = os.environ.get("SWX_ORIGINAL_PYTHON")
    if given:
        return given
    place = ROOT / ".cache" / "original"
    python = place / "bin" / "python"
    ready, complete = place / "ready", place / "complete"
    if may_install and not ready.exists():
        print("making an environment with the original in .cache/ ...", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(place)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", *ORIGINAL_REQUIREMENTS], check=True)
        ready.touch()
    if may_install and not complete.exists():
        for each in OTHER_REQUIREMENTS:
            subprocess.run([str(python), "-m", "pip", "install", "-q", each], check=False)
        complete.touch()
    if not ready.exists():
        return None
    return str(python)


def needed_original(may_install: bool) -> str:
    """The same; raises Absent where there is none."""
    python = original_python(may_install)
    if python is None:
        raise Absent("no environment with the original (SWX_ORIGINAL_PYTHON, or run without --no-install)")
    return python


def our_path() -> str | None:
    """PYTHONPATH for our workers: the tree, unless the package is installed."""
    code = "import swerex_c._core"
    found = subprocess.run([sys.executable, "-P", "-c", code], cwd="/", capture_output=True, check=False)
    return None if found.returncode == 0 else str(ROOT)


def our_package() -> str:
    """Which package is measured: that of this tree, or where another one is installed."""
    code = "import swerex_c; print(swerex_c.__file__)"
    path = our_path()
    environment = {**os.environ, **({"PYTHONPATH": path} if path else {})}
    command = [sys.executable, "-P", "-c", code]
    done = subprocess.run(command, cwd="/", env=environment, capture_output=True, text=True, check=False)
    found = done.stdout.strip()
    return "of this tree" if found and Path(found).resolve().is_relative_to(ROOT) else found or "absent"


# ---- the run ----


class Run:
    """The contenders of a run, each started on first use, and their turns."""

    always: tuple[str, ...] = ()
    """Contenders that run whichever are wanted, because the others are compared with them."""

    def __init__(self, arguments: argparse.Namespace, directory: Path) -> None:
        self.arguments = arguments
        self.random = random.Random(arguments.seed)
        self.environment = environment(directory)
        self.processor = max(os.sched_getaffinity(0))
        """The one to which both ends are pinned."""
        self.directory = directory
        self.contenders: dict[str, Any] = {}
        self.absent: dict[str, str] = {}
        self.lacking: set[str] = set()
        """Those of the absent that this machine does not have."""
        self.wanted: set[str] = set(arguments.contenders.split(",")) if arguments.contenders else set()

    def contender(self, name: str) -> Any:
        """Starts a contender on first use; None when it cannot be had, which is said once."""
        if name in self.contenders:
            return self.contenders[name]
        plain = name.rpartition(": ")[2].partition(",")[0]
        if name in self.absent or (self.wanted and not {name, plain} & {*self.wanted, *self.always}):
            return None
        try:
            self.contenders[name] = self.start(name)
        except BenchError as error:
            self.absent[name] = str(error)
            if isinstance(error, Absent):
                self.lacking.add(name)
            print(f"without {name}: {error}", file=sys.stderr)
            return None
        return self.contenders[name]

    def start(self, name: str) -> Any:
        """Raises BenchError if it cannot be had."""
        raise NotImplementedError

    def ask(self, contender: Any, request: Result) -> Result:
        answer: Result = contender.ask(**request)
        return answer

    def turn(self, workload: Workload, turn: Turn, number: int) -> None:
        try:
            check_descriptors(turn.descriptors)
        except BenchError as error:
            workload.errors[turn.name] = str(error)
            return
        with self.lent(turn) as contender:
            if contender is None:
                workload.errors[turn.name] = self.absent.get(turn.engine, LEFT_OUT)
                return
            places: list[tuple[Result, dict[str, list[Result]]]] = [({}, workload.results)]
            if workload.pinned and turn.rounds is None:
                places.append(({"cpus": [self.processor]}, workload.pinned_results))
            for more, results in places:
                result = self.ask(contender, {**turn.request, **more})
                if "error" in result:
                    workload.errors[turn.name] = result["error"]
                else:
                    workload.keep(turn.name, {**result, "round": number}, results)

    @contextmanager
    def lent(self, turn: Turn) -> Iterator[Any]:
        """The contender of a turn, a new one if it asks for that; None when it cannot be had."""
        contender = self.contender(turn.engine)
        if contender is None or not turn.fresh:
            yield contender
            return
        contender = self.start(turn.engine)
        try:
            yield contender
        finally:
            contender.close()

    def run(self, workload: Workload) -> None:
        for number in range(workload.rounds):
            for turn in in_order(workload.turns, number, self.random):
                self.turn(workload, turn, number)

    def close(self) -> None:
        for contender in self.contenders.values():
            contender.close()


def check_descriptors(number: int) -> None:
    """Raises the limit of open files, for children too, so that `number` fit; raises BenchError where it may not."""
    spare = 100
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < number + spare:
        if hard != resource.RLIM_INFINITY and hard < number + spare:
            raise BenchError(f"needs `ulimit -n {number + spare}`, which is {hard} here at most")
        resource.setrlimit(resource.RLIMIT_NOFILE, (number + spare, hard))


def machine(script: str, seed: int) -> Result:
    return {
        **describe(),
        "compiler": first_line(os.environ.get("CC", "cc"), "--version"),
        "package": our_package(),
        "commit": first_line("git", "-C", str(ROOT), "describe", "--always", "--dirty"),
        "command": " ".join(["python", f"benchmarks/{script}", *sys.argv[1:]]),
        "seed": seed,
    }


def our_errors(workload: Workload, ours: tuple[str, ...], lacking: set[str]) -> Iterator[tuple[str, str]]:
    """Errors of those whose names begin so, but for the contenders that the machine lacks."""
    for turn in workload.turns:
        error = workload.errors.get(turn.name, LEFT_OUT)
        if turn.name.startswith(ours) and error != LEFT_OUT and turn.engine not in lacking:
            yield turn.name, error
