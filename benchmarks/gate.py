"""The gate for CI: is anything of ours slower than it was? Two ways, neither of which needs another machine's times.

- Instructions, counted by callgrind, beside instructions.json. They are the same at any load and, with the same
  compiler and Python, on any machine, so a change by more than 3 % is a change of the code.
- Time and CPU beside the package as it was at the commit of instructions.json, built here and measured in the same
  rounds. It sees what no instruction is: waiting, waking, the kernel. A rank test (Mann and Whitney's, exact) has to be
  sure to one in five hundred, and the medians have to differ by more than an eighth.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import statistics
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench import build_engine
from counts import BASELINE, WORKS, Change, Counter, changes, keep, read_baseline
from files import Files
from measure import ROOT, BenchError, Worker, our_path
from measuring.machine import environment, work_directory
from measuring.results import value_of
from record import rank_test
from rows import Result

__all__ = ["Verdict", "against", "compared", "counted", "judge", "main", "slower_twice"]

ROUNDS = 9
CHANCE = 0.002
SHARE = 0.125


@dataclass(frozen=True)
class Verdict:
    """One number of one piece of work, now and before, round by round."""

    what: str
    before: list[float]
    now: list[float]

    @property
    def share(self) -> float:
        return statistics.median(self.now) / statistics.median(self.before) - 1

    @property
    def chance(self) -> float:
        return rank_test(self.before, self.now)

    @property
    def slower(self) -> bool:
        return self.share > SHARE and self.chance <= CHANCE


def requests(directory: Path) -> dict[tuple[str, str], Result]:
    """What is measured: of which engine, by what name, with which request. A turn takes a tenth of a second or so."""
    command = {"operation": "command", "text": "true", "count": 500, "warm": 50}
    return {
        ("ours", "true, asyncio"): command,
        ("core", "true, core"): command,
        ("ours", "8 MB of output"): {"operation": "output", "path": Files(directory).lines(8), "count": 1},
        ("ours", "64 sessions, 10 commands each"): {"operation": "fleet", "sessions": 64, "commands": 10},
    }


def against(before: str, now: str | None, directory: Path) -> Iterator[Verdict]:
    """The package at one place beside that at another, None being the usual one, in turns, pinned to one processor."""
    shared = environment(directory)
    places = {"before": before, "now": now}
    with contextlib.ExitStack() as stack:
        workers: dict[tuple[str, str], Worker] = {}
        for side, place in places.items():
            for engine in ("ours", "core"):
                path = place or our_path()
                more = {"PYTHONPATH": path} if path else {}
                workers[side, engine] = Worker(engine, sys.executable, {**shared, **more})
                stack.callback(workers[side, engine].close)
        Files(directory).make(8)
        for (engine, what), request in requests(directory).items():
            yield from compared(workers, engine, what, request)


def compared(
    workers: dict[tuple[str, str], Worker], engine: str, what: str, request: Result, rounds: int = ROUNDS
) -> Iterator[Verdict]:
    """Raises BenchError for a wrong answer."""
    cpu: dict[str, list[float]] = {"before": [], "now": []}
    wall: dict[str, list[float]] = {"before": [], "now": []}
    order = random.Random(1)
    pinned = {**request, "cpus": [max(os.sched_getaffinity(0))]}
    for _ in range(rounds):
        for side in order.sample(["before", "now"], 2):
            result = workers[side, engine].ask(**pinned)
            if "error" in result or result["wrong"]:
                raise BenchError(f"{what}, {side}: {result.get('error', 'wrong answers')}")
            cpu[side].append(result["cpu_self_us"] / result["count"])
            wall[side].append(value_of(result) or 0.0)
    yield Verdict(f"{what}: CPU", **cpu)
    yield Verdict(f"{what}: time", **wall)


@contextlib.contextmanager
def built(commit: str, directory: Path) -> Iterator[str]:
    """The package as it was at a commit. Raises BenchError if the commit is not here or does not build."""
    tree = directory / "before"
    archive = directory / "before.tar"
    for command in (
        [
            "git",
            "-C",
            str(ROOT),
            "archive",
            "-o",
            str(archive),
            commit,
            "setup.py",
            "pyproject.toml",
            "csrc",
            "swerex_c",
        ],
        [sys.executable, "setup.py", "-q", "build_ext", "--inplace"],
    ):
        done = subprocess.run(command, cwd=tree if tree.exists() else ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            raise BenchError(f"commit {commit} cannot be had: {done.stderr.strip().splitlines()[-1:]}")
        if not tree.exists():
            with tarfile.open(archive) as tar:
                tar.extractall(tree, filter="data")
    yield str(tree)


def slower_twice(before: str, now: str | None, directory: Path) -> bool:
    """Whether something is slower, and is so again with new processes: where the kernel happens to place a process
    makes all its turns slow, which no test of its rounds can tell from a change of the code."""
    first = list(against(before, now, directory))
    if not judge(first):
        return False
    print("once more, by other processes")
    suspects = {it.what for it in first if it.slower}
    second = list(against(before, now, directory))
    judge(second)
    return any(it.slower and it.what in suspects for it in second)


def counted(directory: Path, environment: dict[str, str], path: str | None = None) -> dict[str, float]:
    """The instructions of each piece of work; path: where the package is. Raises BenchError for a wrong answer."""
    counter = Counter(directory, environment, build_engine(directory), path)
    try:
        found = {}
        for work, title in WORKS.items():
            result = counter.ask(work)
            if "error" in result or result["wrong"]:
                raise BenchError(f"{title}: {result.get('error', 'wrong answers')}")
            found[work] = float(result["instructions"])
        return found
    finally:
        counter.close()


def judge(found: list[Change] | list[Verdict]) -> bool:
    """Prints each; whether one of them is slower."""
    for it in found:
        word = "SLOWER" if it.slower else "faster" if it.share < -0.03 else "same"
        if isinstance(it, Change):
            numbers = f"{it.before:14,.1f} {it.after:14,.1f} {it.share:+8.1%}  (at most {it.tolerance:+.0%})"
            print(f"  {WORKS[it.work]:38} {numbers}  {word}")
        else:
            numbers = f"{statistics.median(it.before):11,.1f} us {statistics.median(it.now):11,.1f} us {it.share:+8.1%}"
            print(f"  {it.what:38} {numbers}  p={it.chance:.4f}  {word if it.chance <= CHANCE else 'same'}")
    sys.stdout.flush()
    return any(it.slower for it in found)


def main(arguments: list[str]) -> int:
    """0; 1 if something is slower; 2 if it could not be found out."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks --gate", description=__doc__)
    parser.add_argument(
        "--keep", action="store_true", help="make the counts of this run those that the tree is held to"
    )
    parser.add_argument(
        "--against", metavar="COMMIT", help="compare times with this one, not with the kept counts' own"
    )
    chosen = parser.parse_args(arguments)
    try:
        with work_directory() as directory:
            counts = counted(directory, environment(directory))
            if chosen.keep:
                keep(counts)
                print(f"kept in {BASELINE}")
                return 0
            baseline = read_baseline()
            print("instructions, in user mode: kept, now")
            slower = judge(list(changes(baseline, counts)))
        with work_directory() as directory:
            commit = chosen.against or str(baseline["commit"])
            print(f"times, on one processor: commit {commit}, now")
            try:
                with built(commit, directory) as tree:
                    slower |= slower_twice(tree, None, directory)
            except BenchError as error:
                if chosen.against:
                    raise
                print(f"  not compared: {error}")
        return int(slower)
    except BenchError as error:
        print(f"gate: {error}", file=sys.stderr)
        return 2
