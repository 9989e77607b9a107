"""The benchmark suite: `python -m benchmarks` measures, records and draws; see README.md beside this file."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))  # as for the workers, which run this directory's files alone

import bench
from measure import (
    BenchError,
)
from record import compare, exponent, latest, read
from rows import Result

USAGE = "python -m benchmarks [--quick] [--only ROW,...] | --compare A B | --gate FILE | --pictures [FILE]"


def show_comparison(before: Result, after: Result, *, all_lines: bool) -> int:
    """Print how two records differ; the number of our lines that have certainly become slower."""
    slower = 0
    for it in compare(before, after):
        ours = it.line.startswith(("ours", "core", "engine"))
        slower += it.certain and it.change > 0 and ours
        if all_lines or it.certain:
            word = ("slower" if it.change > 0 else "faster") if it.certain else "same"
            change = f"{it.before:10.3f} {it.after:10.3f} {it.change:+8.1%}"
            print(f"{it.row:16} {it.line:24} {change}  p={it.chance:.3f}  {word}")
    return slower


def show_growth(record: Result) -> None:
    """Print with which power of its size the time of each engine's output grows."""
    curves: dict[str, list[tuple[float, float]]] = {}
    for key, row in record["rows"].items():
        if found := re.fullmatch(r"output-(\d+)", key):
            for name, line in row["lines"].items():
                if "p50_us" in line:
                    curves.setdefault(name, []).append((float(found[1]), line["p50_us"]))
    found_any = {name: power for name, points in curves.items() if (power := exponent(points)) is not None}
    if found_any:
        print("\ntime of output grows with its size to the power of")
        for name, power in found_any.items():
            print(f"  {name:24} {power:.2f}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", usage=USAGE, add_help=False)
    parser.add_argument("--compare", nargs=2, metavar=("BEFORE", "AFTER"))
    parser.add_argument("--gate", metavar="BEFORE")
    parser.add_argument("--pictures", nargs="?", const="", metavar="RECORD")
    chosen, rest = parser.parse_known_args()
    try:
        if chosen.compare:
            show_comparison(*map(read, chosen.compare), all_lines=True)
            return 0
        if chosen.pictures is not None:
            from pictures import draw

            newest = chosen.pictures or str(latest() or "")
            for path in draw(read(newest), Path(__file__).parent / "pictures"):
                print(path)
            return 0
    except (LookupError, OSError, ImportError) as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 2
    sys.argv[1:] = rest if "--json" in rest or chosen.gate else [*rest, "--record"]
    try:
        before = read(chosen.gate) if chosen.gate else None
    except (LookupError, OSError) as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 2
    status, measured = bench.main()
    if measured is None:
        return status
    show_growth(measured)
    if before is not None and show_comparison(before, measured, all_lines=False):
        print("slower than the record, certainly: see above")
        return 1
    return status


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BenchError as error:
        sys.exit(f"benchmarks: {error}")
