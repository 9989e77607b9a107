"""The benchmark suite: `python -m benchmarks` measures, records and draws; see README.md beside this file."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))  # as for the workers, which run this directory's files alone

import bench
import chart
import gate
from goals import targets
from growth import print_growth
from measure import HERE, BenchError, original_python
from record import ROUNDS, compare, find, latest, read, write
from report import write_report
from rows import Result
from tables import print_targets

USAGE = """python -m benchmarks [--quick | --full] [--only ROW,...] [--check] ...   measure and record
       python -m benchmarks --compare BEFORE AFTER   what differs between two records
       python -m benchmarks --gate [--keep | --against COMMIT]   for CI: ends with 1 if something is slower
       python -m benchmarks --report [RECORD]        its goals and growths; its tables and pictures anew
       python -m benchmarks --chart [RECORD]         the chart of README.md anew"""


def show_comparison(before: Result, after: Result) -> None:
    """Print how two records differ. Raises LookupError where nothing of them can be compared."""
    found = list(compare(before, after))
    if not found:
        raise LookupError(f"no line has {ROUNDS} rounds in both records; runs with --quick have fewer")
    for it in found:
        word = ("slower" if it.change > 0 else "faster") if it.certain else "same"
        change = f"{it.before:10.3f} {it.after:10.3f} {it.change:+8.1%}"
        print(f"{it.row:16} {it.line:24} {change}  p={it.chance:.3f}  {word}")


def make_report(path: Path) -> None:
    """Write tables and pictures beside a record."""
    made = draw(path)
    pictures = made or sorted(path.parent.glob("*.svg"))  # those of before, which somebody could draw
    for each in [*made, write_report(read(str(path)), path.parent, pictures)]:
        print(each)


def draw(path: Path) -> list[Path]:
    """The pictures, by whichever Python has matplotlib: this one, or that of the other engines."""
    for python in dict.fromkeys([sys.executable, original_python(may_install=False)]):
        if python:
            command = [python, str(HERE / "pictures.py"), str(path)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode == 0:
                return [Path(it) for it in done.stdout.splitlines()]
    print(f"benchmarks: no new pictures: {done.stderr.strip().splitlines()[-1]}", file=sys.stderr)
    return []


def main() -> int:
    if sys.argv[1:2] == ["--gate"]:
        return gate.main(sys.argv[2:])
    parser = argparse.ArgumentParser(prog="python -m benchmarks", usage=USAGE, add_help=False)
    parser.add_argument("--compare", nargs=2, metavar=("BEFORE", "AFTER"))
    parser.add_argument("--report", nargs="?", const="", metavar="RECORD")
    parser.add_argument("--chart", nargs="?", const="", metavar="RECORD")
    chosen, rest = parser.parse_known_args()
    try:
        if chosen.compare:
            show_comparison(*map(read, chosen.compare))
            return 0
        if chosen.report is not None:
            path = find(chosen.report) if chosen.report else latest()
            print_growth(read(str(path)))
            print_targets(list(targets(read(str(path)))))
            make_report(path)
            return 0
        if chosen.chart is not None:
            path = find(chosen.chart) if chosen.chart else latest(chart.has_bars)
            print(f"from {path}", *chart.draw_chart(read(str(path))), sep="\n")
            return 0
    except (LookupError, OSError) as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 2
    sys.argv[1:] = rest
    status, measured = bench.main(USAGE)
    if measured is not None:
        measured["machine"]["command"] = " ".join(["python -m benchmarks", *rest])
        make_report(write(measured))
    return status


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BenchError as error:
        sys.exit(f"benchmarks: {error}")
