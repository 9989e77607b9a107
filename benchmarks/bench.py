"""The benchmark of swerex_c: every contender in one interleaved run, every answer checked.

    python benchmarks/bench.py                 the whole table, some minutes
    python benchmarks/bench.py --quick         under a minute; the numbers are rough
    python benchmarks/bench.py --check         also says which targets are met
    python benchmarks/bench.py --json FILE     also writes everything measured

`python -m benchmarks` does the same and keeps a record.

Each workload runs in rounds; in each round every contender has its turn, in random order, in a process of its own
(worker.py, or floor.c for the plain C loops).  A ratio is the median over the rounds of "p50 of this contender by p50
of the C loop in the same round", so that a machine that changes its mood between rounds changes both sides.

Exit status: 0; 1 if an answer of ours was wrong or, with --check, a target was missed; 2 if it could not run.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from cases import workloads
from containers import Containers
from counts import Counter
from extent import FULL, QUICK, USUAL
from files import Files
from goals import targets
from growth import print_growth
from measure import (
    HERE,
    ROOT,
    Absent,
    BenchError,
    Floor,
    Run,
    Worker,
    build,
    build_floor,
    machine,
    needed_original,
    our_errors,
    our_path,
)
from measuring.machine import work_directory
from measuring.results import document
from rows import Result, Workload
from servers import BESIDE, Servers
from tables import print_targets, print_workload

OTHERS = (
    *("original", "pexpect", "pexpect, as it comes", "replwrap", "ptyprocess", "tmux"),
    *("pyahocorasick", "hyperscan", "pcre2", "ormsgpack", "msgpack"),
)
"""Engines and libraries that live in the environment of the original."""

# ---- contenders as processes ----


def build_engine(directory: Path, core: Path = ROOT / "csrc") -> str:
    """The core without the frame codec, which alone needs a library."""
    rooms = [str(path) for path in sorted(core.glob("swx_*.c")) if path.stem != "swx_frame"]
    if not rooms:
        raise BenchError("the sources of the core are not here")
    return build(directory, "engine", f"-I{core}", *rooms)


# ---- the run ----


OURS = ("ours", "core", "engine", "bare", "echo", "local", "copy", "no server", "original on ours")
"""What the names of lines begin with that must not fail: ours, and what this directory compares it with."""

PLACES: dict[str, type[Servers] | type[Containers]] = {"remote": Servers, "docker": Containers}
"""What the engines need whose names begin so, before a colon."""


class Bench(Run):
    always = ("bare C", "echo", "local", "copy", "load", "docker", "instructions")

    def __init__(self, arguments: argparse.Namespace, directory: Path) -> None:
        super().__init__(arguments, directory)
        self.places: dict[str, Servers | Containers | BenchError] = {}

    def start(self, name: str) -> Floor | Worker | Counter:
        if name == "bare C":
            return Floor(build_floor(self.directory), self.environment)
        if name == "engine":
            return Floor(build_engine(self.directory), self.environment)
        if name == "instructions":
            return Counter(self.directory, self.environment, build_engine(self.directory))
        if name == "Tcl Expect":
            if shutil.which("expect") is None:
                raise Absent("no program expect (Debian: expect)")
            return Floor("expect", self.environment, "-f", str(HERE / "floor.tcl"))
        script, _, library = name.rpartition(": ")
        if script in PLACES:
            return self.place(script).client(library)
        script = "text_worker.py" if script else "worker.py"
        if library in OTHERS:
            python = needed_original(may_install=not self.arguments.no_install)
            return Worker(library, python, self.environment, script)
        path = our_path()
        extra = {"PYTHONPATH": path} if path else {}
        return Worker(library, sys.executable, {**self.environment, **extra}, script)

    def place(self, kind: str) -> Servers | Containers:
        """Started when the first contender needs it. Raises Absent or BenchError if it cannot be had."""
        if kind not in self.places:
            try:
                may_install = not self.arguments.no_install
                self.places[kind] = PLACES[kind](self.environment, self.directory, may_install=may_install)
            except BenchError as error:
                self.places[kind] = error
        place = self.places[kind]
        if isinstance(place, BenchError):
            raise place
        return place

    def run(self, workload: Workload) -> None:
        with BESIDE[workload.beside](self) if workload.beside else contextlib.nullcontext():
            super().run(workload)

    def close(self) -> None:
        super().close()
        for place in self.places.values():
            if not isinstance(place, BenchError):
                place.close()

    def ask(self, contender: Floor | Worker | Counter, request: Result) -> Result:
        if isinstance(contender, Floor):
            return contender.ask(*request["arguments"], cpus=request.get("cpus"))
        return contender.ask(**request)


def parse(usage: str | None) -> argparse.Namespace:
    about = "swerex_c beside the original, other ways by hand, and plain C"
    parser = argparse.ArgumentParser(usage=usage, description=about)
    parser.add_argument("--quick", action="store_true", help="few rounds; for CI")
    parser.add_argument("--full", action="store_true", help="output of 1,000 MB too; takes 6 GB of memory")
    parser.add_argument("--check", action="store_true", help="compare with the targets; exit 1 if one is missed")
    parser.add_argument("--json", metavar="FILE", help="write all results there")
    parser.add_argument("--only", metavar="ROW,...", help="these workloads only (true, output-8, 'remote-*', ...)")
    parser.add_argument("--contenders", metavar="NAME,...", help="these contenders only (ours, core, original, ...)")
    parser.add_argument("--need", metavar="NAME,...", help="exit 1 if one of these cannot be had ('docker: ours', ...)")
    parser.add_argument("--no-install", action="store_true", help="do not make an environment for the original")
    parser.add_argument("--cpus", metavar="N,...", help="pin everything to these processors")
    parser.add_argument("--seed", type=int, default=1, help="for the order of turns")
    parser.add_argument("--facts", action="store_true", help="print the prices of system calls and end")
    return parser.parse_args()


def chosen(every: list[Workload], only: list[str]) -> list[Workload]:
    """The rows whose names fit, or all. Raises BenchError where one fits none: before minutes are spent on others."""
    known = [workload.key for workload in every]
    if unknown := [it for it in only if not fnmatch.filter(known, it)]:
        raise BenchError(f"no rows {', '.join(unknown)}; there are {', '.join(known)}")
    return [it for it in every if not only or any(fnmatch.fnmatchcase(it.key, name) for name in only)]


def run(arguments: argparse.Namespace, directory: Path) -> tuple[int, Result | None]:
    if arguments.facts:
        return subprocess.run([build_floor(directory), "facts"], check=False).returncode, None
    bench, files = Bench(arguments, directory), Files(directory)
    extent = QUICK if arguments.quick else FULL if arguments.full else USUAL
    only = arguments.only.split(",") if arguments.only else []
    wanted = chosen(list(workloads(extent, files)), only)
    about = machine("bench.py", arguments.seed)
    for key, value in about.items():
        print(f"{key:12} {value}")
    rows: dict[str, Workload] = {}
    try:
        for workload in wanted:
            try:
                files.prepare(workload)
                bench.run(workload)
            except BenchError as error:
                workload.errors |= {turn.name: str(error) for turn in workload.turns}
            files.release(workload)
            rows[workload.key] = workload
            print_workload(workload)
            sys.stdout.flush()
    except KeyboardInterrupt:
        if not rows:
            raise
        print("\nbench: interrupted; what was measured until then is kept", file=sys.stderr)
    finally:
        bench.close()
    about["contenders"] = {n: c.python for n, c in bench.contenders.items() if isinstance(c, Worker)}
    print("\ninterpreters: " + ", ".join(f"{name} {python}" for name, python in about["contenders"].items()))
    measured = document(about, rows.values(), bench.absent)
    print_growth(measured)
    found = [t for t in targets(measured) if t.value is not None or not (only or arguments.quick)]
    measured["targets"] = [{**vars(t), "met": t.met} for t in found]
    if arguments.check and found:
        print_targets(found)
    lines = {(key, turn.name): row.summary(turn.name) for key, row in rows.items() for turn in row.turns}
    wrong = [at for at, line in lines.items() if line.get("wrong")]
    for key, name in wrong:
        print(f"wrong answers: {key}, {name}")
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(measured, indent=1) + "\n")
    failed = {
        f"{key}, {name}: {error}"
        for key, row in rows.items()
        for name, error in our_errors(row, OURS, bench.lacking)
        if name != "ours, uvloop" or name not in bench.absent
    }
    needed = set(arguments.need.split(",")) if arguments.need else set()
    not_there = needed - set(bench.contenders)
    failed |= {f"{name}: {bench.absent.get(name, 'no row of this run has it')}" for name in not_there}
    for text in sorted(failed):
        print(f"failed: {text}")
    ours_wrong = any(name.partition(",")[0] != "original" for _, name in wrong)
    missed = arguments.check and any(not t.met for t in found)
    return int(bool(ours_wrong or failed or missed or len(rows) < len(wanted))), measured


def main(usage: str | None = None) -> tuple[int, Result | None]:
    """Do what the command line says; the exit status, and what was measured.

    Args:
        usage: for its help, where there is more than what is read here.
    """
    arguments = parse(usage)
    if arguments.cpus:
        os.sched_setaffinity(0, {int(n) for n in arguments.cpus.split(",")})
    try:
        with work_directory() as directory:
            return run(arguments, directory)
    except (BenchError, subprocess.CalledProcessError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2, None
    except KeyboardInterrupt:
        print("bench: interrupted", file=sys.stderr)
        return 130, None


if __name__ == "__main__":
    sys.exit(main()[0])
