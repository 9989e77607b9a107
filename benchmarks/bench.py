"""The benchmark of swerex_c: every contender in one interleaved run, every answer checked.

    python benchmarks/bench.py                 the whole table, some minutes
    python benchmarks/bench.py --quick         under a minute; the numbers are rough
    python benchmarks/bench.py --check         also says which targets are met
    python benchmarks/bench.py --json FILE     also writes everything measured

Each workload runs in rounds; in each round every contender has its turn, in random order, in a process of its own
(worker.py, or floor.c for the plain C loops).  A ratio is the median over the rounds of "p50 of this contender by p50
of the C loop in the same round", so that a machine that changes its mood between rounds changes both sides.

Exit status: 0; 1 if an answer of ours was wrong or, with --check, a target was missed; 2 if it could not run.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import record
from cases import targets, workloads
from measure import (
    HERE,
    ROOT,
    BenchError,
    Floor,
    Run,
    Worker,
    build,
    build_floor,
    machine,
    make_file,
    make_line_file,
    original_python,
    our_errors,
    our_path,
    work_directory,
)
from rows import Result, Workload
from tables import duration, print_targets, print_workload

OTHERS = (
    *("original", "pexpect", "pexpect, as it comes", "replwrap", "ptyprocess", "tmux"),
    *("pyahocorasick", "hyperscan", "pcre2", "ormsgpack", "msgpack"),
)
"""Engines and libraries that live in the environment of the original."""

# ---- contenders as processes ----


def build_engine(directory: Path) -> str:
    """The core without the frame codec, which alone needs a library."""
    core = ROOT / "csrc"
    rooms = [str(path) for path in sorted(core.glob("swx_*.c")) if path.stem != "swx_frame"]
    if not rooms:
        raise BenchError("the sources of the core are not here")
    return build(directory, "engine", f"-I{core}", *rooms)


# ---- the run ----


class Bench(Run):
    always = ("bare C",)

    def start(self, name: str) -> Floor | Worker:
        if name == "bare C":
            return Floor(build_floor(self.directory), self.environment)
        if name == "engine":
            return Floor(build_engine(self.directory), self.environment)
        if name == "Tcl Expect":
            if shutil.which("expect") is None:
                raise BenchError("no program expect (Debian: expect)")
            return Floor("expect", self.environment, "-f", str(HERE / "floor.tcl"))
        script, _, library = name.rpartition(": ")
        script = "text_worker.py" if script else "worker.py"
        if library in OTHERS:
            python = original_python(may_install=not self.arguments.no_install)
            if python is None:
                raise BenchError("no environment with the original (SWX_ORIGINAL_PYTHON, or run without --no-install)")
            return Worker(library, python, self.environment, script)
        path = our_path()
        extra = {"PYTHONPATH": path} if path else {}
        return Worker(library, sys.executable, {**self.environment, **extra}, script)

    def ask(self, contender: Floor | Worker, request: Result) -> Result:
        return contender.ask(*request["arguments"]) if isinstance(contender, Floor) else contender.ask(**request)


MARKDOWN_COLUMNS = ("ours", "core", "original", "pexpect", "ptyprocess", "bare C")
MARKDOWN_KEYS: list[tuple[str, Callable[[float], str]]] = [
    ("per_second", lambda number: f"{number:,.0f}/s"),
    ("added_share", lambda number: f"{number * 100:+.0f} %"),
    ("cpu_share", lambda number: f"{number * 100:.2f} % CPU"),
    ("megabytes_per_second", lambda number: f"{number:.3g} MB/s"),
    ("p50_us", duration),
]


def markdown(rows: dict[str, Workload], about: Result) -> str:
    """The short table for a README: the one number of each row that matters."""

    def cell(workload: Workload, contender: str) -> str:
        # "core, one thread" and its like stand in the column of what they are a variant of, where they are better.
        lines = [workload.summary(t.name) for t in workload.turns if t.name.split(",")[0] == contender]
        lines = [line for line in lines if "error" not in line]
        for key, show in MARKDOWN_KEYS:
            values = [line[key] for line in lines if key in line]
            if values:
                return show(max(values) if key == "per_second" else values[0])
        return ""

    lines = ["| " + " | ".join(["p50", *MARKDOWN_COLUMNS]) + " |", "|---" * (len(MARKDOWN_COLUMNS) + 1) + "|"]
    for workload in rows.values():
        cells = [cell(workload, name) for name in MARKDOWN_COLUMNS]
        lines.append("| " + " | ".join([workload.title.replace("|", "\\|"), *cells]) + " |")
    where = "{date}, {cpu}, {processors} processors, load {load_before:.1f}, {kernel}, {bash}".format(**about)
    return "\n".join([*lines, "", f"{where}. Made by `{about['command']}`.", ""])


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="swerex_c beside the original, other ways by hand, and plain C")
    parser.add_argument("--quick", action="store_true", help="few rounds; for CI")
    parser.add_argument("--check", action="store_true", help="compare with the targets; exit 1 if one is missed")
    parser.add_argument("--json", metavar="FILE", help="write all results there")
    parser.add_argument("--record", action="store_true", help="keep all results below record/")
    parser.add_argument("--markdown", metavar="FILE", help="write the short table for a README there")
    parser.add_argument("--only", metavar="ROW,...", help="these workloads only (true, fleet, output-8, ...)")
    parser.add_argument("--contenders", metavar="NAME,...", help="these contenders only (ours, core, original, ...)")
    parser.add_argument("--no-install", action="store_true", help="do not make an environment for the original")
    parser.add_argument("--cpus", metavar="N,...", help="pin everything to these processors")
    parser.add_argument("--seed", type=int, default=1, help="for the order of turns")
    parser.add_argument("--facts", action="store_true", help="print the prices of system calls and end")
    return parser.parse_args()


def run(arguments: argparse.Namespace, directory: Path) -> tuple[int, Result | None]:
    if arguments.facts:
        return subprocess.run([build_floor(directory), "facts"], check=False).returncode, None
    bench = Bench(arguments, directory)
    about = machine("bench.py", arguments.seed)
    for key, value in about.items():
        print(f"{key:12} {value}")
    sizes = (1, 8, 16) if arguments.quick else (1, 8, 16, 100)
    files = {size: make_file(directory, size) for size in sizes}
    line_file = make_line_file(directory, sizes[-1])
    only = set(arguments.only.split(",")) if arguments.only else None
    rows: dict[str, Workload] = {}
    try:
        for workload in workloads(arguments.quick, files, line_file):
            if (only and workload.key not in only) or (not only and workload.key == "output-16"):
                continue
            bench.run(workload)
            print_workload(workload)
            sys.stdout.flush()
            rows[workload.key] = workload
    finally:
        bench.close()
    about["contenders"] = {n: c.python for n, c in bench.contenders.items() if isinstance(c, Worker)}
    print("\ninterpreters: " + ", ".join(f"{name} {python}" for name, python in about["contenders"].items()))
    found = [t for t in targets(rows) if t.value is not None or not (only or arguments.quick)]
    if arguments.check and found:
        print_targets(found)
    table = {key: {t.name: row.summary(t.name) for t in row.turns} for key, row in rows.items()}
    wrong = [f"{key}, {name}" for key, lines in table.items() for name, line in lines.items() if line.get("wrong")]
    for text in wrong:
        print(f"wrong answers: {text}")
    goals = [{**vars(t), "met": t.met} for t in found]
    measured = record.document(about, rows, goals, bench.absent)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(measured, indent=1) + "\n")
    if arguments.record:
        print(f"kept as {record.write(measured)}")
    failed = {
        f"{name}: {error}" for row in rows.values() for name, error in our_errors(row, ("ours", "core", "bare C"))
    }
    for text in sorted(failed):
        print(f"failed: {text}")
    if arguments.markdown:
        Path(arguments.markdown).write_text(markdown(rows, about))
    ours_wrong = any(", original" not in text for text in wrong)
    missed = arguments.check and any(not t.met for t in found)
    return int(bool(ours_wrong or failed or missed)), measured


def main() -> tuple[int, Result | None]:
    """Do what the command line says; the exit status, and what was measured."""
    arguments = parse()
    if arguments.cpus:
        os.sched_setaffinity(0, {int(n) for n in arguments.cpus.split(",")})
    try:
        with work_directory() as directory:
            return run(arguments, directory)
    except (BenchError, subprocess.CalledProcessError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2, None


if __name__ == "__main__":
    sys.exit(main()[0])
