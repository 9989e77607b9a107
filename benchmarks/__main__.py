"""The benchmark suite: `python -m benchmarks` measures, keeps a record and draws; see README.md beside this file."""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from swerex_c.bench import report
from swerex_c.bench.command import contenders, peers_python, with_status
from swerex_c.bench.machine import first_line
from swerex_c.bench.measure import Contender, Row, Run
from swerex_c.bench.rows import PLAIN_C
from swerex_c.exceptions import InvalidInputError

from . import docker, local, pictures, remote

ROOT = Path(__file__).resolve().parents[1]

LARGE = 1 << 30
"""Bytes of output that a session keeps: all of the longest row."""


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure, and keep a record.")
    parser.add_argument("--only", metavar="ROW,...", help="these rows alone ('true', 'remote-*'); the default is all")
    parser.add_argument("--seconds", type=float, default=900, help="time to measure for (default: 900)")
    parser.add_argument("--rounds", type=int, default=8, help="rounds at most (default: 8)")
    parser.add_argument("--seed", type=int, default=1, help="for the order of turns")
    parser.add_argument("--peers-python", metavar="FILE", help="interpreter that has the peers; else one is made")
    parser.add_argument("--no-peers", action="store_true", help="leave pexpect, ptyprocess and SWE-ReX out")
    parser.add_argument("--no-record", action="store_true", help="print the results, and keep none")
    parser.add_argument("--answers", action="store_true", help="ask once, without peers, containers and 1,000s")
    redraw = "pictures and figures of the pages anew, from the newest record or this one"
    parser.add_argument("--chart", nargs="?", const="", metavar="RECORD", help=redraw)
    parser.add_argument("--instructions", action="store_true", help="count instructions, by callgrind")
    parser.add_argument("--keep", action="store_true", help="with --instructions: keep the counts")
    return parser.parse_args()


def chosen(arguments: argparse.Namespace) -> list[Row]:
    """Return the rows to measure, with the turns of all engines.

    Raises:
        LookupError: if there is no such row.
    """
    every = [*local.all_rows(), *remote.rows(), *docker.rows()]
    names = arguments.only.split(",") if arguments.only else ["*"]
    keys = [row.key for row in every]
    if unknown := [name for name in names if not fnmatch.filter(keys, name)]:
        raise LookupError(f"there is no row {unknown[0]}, but {', '.join(keys)}")
    rows = [row for row in every if any(fnmatch.fnmatchcase(row.key, name) for name in names)]
    if arguments.answers and not arguments.only:
        rows = [row for row in rows if not row.key.startswith("docker-") and not row.key.endswith("-1000")]
    return rows


def engines(arguments: argparse.Namespace, rows: list[Row], stack: contextlib.ExitStack) -> list[Contender]:
    """Return the engines that the rows need; say which cannot be had."""
    peers: str | None = arguments.peers_python
    if peers is None and not arguments.no_peers and not arguments.answers:
        peers = with_status(lambda show: peers_python(ROOT / ".cache" / "peers", show))
    found = local.with_large_rows(contenders(peers, output_limit=LARGE))
    directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="swerex-c-bench-"))
    found.append(Contender(PLAIN_C, "benchmarks.floor:PlainC", {"directory": directory}))
    if any(row.key.startswith("remote-") for row in rows):
        found += remote.contenders(peers)
    if any(row.key.startswith("docker-") for row in rows):
        try:
            found += docker.contenders(peers, stack)
        except RuntimeError as error:
            print(f"benchmarks: {error}", file=sys.stderr)
    return found


def answers(found: Run) -> int:
    """Print whether each engine answered each row rightly, and return the exit status."""
    good = True
    for row in found.rows:
        for turn in row.turns:
            line = row.summary(turn)
            good = good and "error" not in line
            print(f"{row.key:16} {turn.name:24} {line.get('error', 'right')}")
    return 0 if good and any(row.turns for row in found.rows) else 1


def keep(found: Run) -> None:
    """Keep a record with its tables and pictures in a directory of its own, named by date and commit."""
    about: dict[str, Any] = {
        "compiler": first_line(os.environ.get("CC", "cc"), "--version"),
        "commit": first_line("git", "-C", str(ROOT), "describe", "--always", "--dirty"),
        "command": " ".join(["python -m benchmarks", *sys.argv[1:]]),
    }
    data = report.as_data(found, **about)
    date = str(data["machine"]["date"]).removesuffix(" UTC").replace(" ", "-").replace(":", "")
    path = pictures.RECORDS / f"{date}-{about['commit']}" / pictures.FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data, indent=1) + "\n")
    tables = ["# A run of the benchmarks", "", f"Commit {about['commit']}, made by `{about['command']}`.", "", "```"]
    path.with_name("tables.md").write_text("\n".join([*tables, *report.lines(found), "```", ""]))
    print("", path, *pictures.draw(data, path.parent), sep="\n")


def run(arguments: argparse.Namespace) -> int:
    rows = chosen(arguments)
    with contextlib.ExitStack() as stack:
        found = engines(arguments, rows, stack)
        results = Run(found, arguments.seconds, arguments.rounds, once=arguments.answers, seed=arguments.seed)
        with_status(lambda show: results.measure(rows, show))
    if arguments.answers:
        return answers(results)
    print(*report.lines(results), sep="\n")
    if not arguments.no_record:
        keep(results)
    return 130 if results.interrupted else 0 if report.is_good(results) else 1


def main() -> int:
    """Do what the command line says, and return the exit status."""
    arguments = parse()
    try:
        if arguments.instructions:
            from .instructions import check

            return 0 if check(arguments.keep) else 1
        if arguments.chart is not None:
            path = pictures.find(Path(arguments.chart).name)
            found = pictures.read(path)
            pictures.figures(found)
            pictures.speed(found, path)
            print(f"from {path}:", *pictures.draw(found), pictures.README, pictures.SPEED, sep="\n")
            return 0
        return run(arguments)
    except (LookupError, OSError, RuntimeError, InvalidInputError) as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
