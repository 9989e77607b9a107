"""Results of `swerex-c bench`: tables, JSON data, and whether the run was good."""

from __future__ import annotations

import sys
from typing import Any

from swerex_c._version import __version__

from .machine import machine
from .process import NO_TIME
from .report import Column, print_row, times
from .results import document
from .rows import ORIGINAL, OURS, PLACE, WARM, Row, Turn
from .run import Found, Setting

__all__ = ["as_data", "is_good", "print_tables"]


def _rate(line: dict[str, Any]) -> str:
    if "bytes" in line:
        return f"{line['megabytes_per_second']:,.1f} MB/s"
    return f"{line['per_second']:,.0f}/s" if "per_second" in line else ""


def _by_limit(line: dict[str, Any]) -> str:
    ratio = line.get("ratio")
    return "" if ratio is None else f"{ratio:.2f}x" if ratio < 100 else f"{ratio:,.0f}x"


COLUMNS: list[Column] = [
    times("p50", "p50_us"),
    times("p99", "p99_us"),
    ("rate", _rate),
    ("by limit", _by_limit),
    times("CPU here", "cpu_self_us"),
    times("CPU shells", "cpu_children_us"),
    ("n", lambda line: f"{line['count']:,}"),
]


def _line(row: Row, turn: Turn) -> dict[str, Any]:
    line = row.summary(turn.name)
    if turn.engine == PLACE:  # shells of that deployment are not descendants of the worker
        line.pop("cpu_children_us", None)
    return line


def as_data(found: Found, setting: Setting) -> dict[str, Any]:
    """Return all results in the source tree's record format.

    `python -m benchmarks --compare` accepts that format.
    """
    run = {"seconds": setting.seconds, "took": round(found.seconds, 2), "rounds": setting.rounds, "seed": setting.seed}
    about = {
        **machine(),
        "load_before": found.load,
        "swerex_c": __version__,
        "original": found.versions.get(ORIGINAL),
        "place": setting.place_name,
    }
    return {**document(about, found.rows, found.absent), "run": run, "ok": is_good(found)}


def is_good(found: Found) -> bool:
    """Check whether every answer was right and this package was measured.

    Rows that were left out for lack of time are no failure, unless an engine of this package has no results at all.
    """
    ours = [(row, turn) for row in found.rows for turn in row.turns if turn.engine in (OURS, WARM, PLACE)]
    failed = any(not row.errors.get(turn.name, NO_TIME).startswith(NO_TIME) for row, turn in ours)
    wrong = any(row.wrong for row in found.rows)
    return not wrong and not failed and _measured(found) >= {turn.engine for _, turn in ours} - {WARM}


def _measured(found: Found) -> set[str]:
    """Return the engines that have results."""
    return {turn.engine for row in found.rows for turn in row.turns if turn.name in row.results}


def _name(found: Found, setting: Setting, row: Row, turn: Turn) -> str:
    name = setting.place_name if turn.engine == PLACE else turn.name
    if turn.engine == ORIGINAL and (version := found.versions.get(ORIGINAL)):
        name = name.replace(ORIGINAL, f"{ORIGINAL} {version}")
    return f"{name} (limit)" if turn.name == row.baseline else name


def print_tables(found: Found, setting: Setting) -> None:
    """Print each row's table, the machine, and the engines that are absent.

    A table has a line for each engine.
    """
    there = _measured(found)
    for row in found.rows:
        shown = [turn for turn in row.turns if turn.engine not in found.absent or turn.engine in there]
        print_row(row.title, COLUMNS, {_name(found, setting, row, turn): _line(row, turn) for turn in shown})
    about = machine()
    print(
        f"\n{about['date']}, {about['cpu']}, {about['processors']} processors, load {found.load:.1f}, "
        f"{about['kernel']}, {about['python']}, {about['bash']}. {found.seconds:.0f} s, rounds: {setting.rounds}.\n"
        "Times and CPU are per command. By limit: how many times the time of the line that says (limit), the middle of "
        "the rounds, which a busy machine changes least. CPU here: the measured process; CPU shells: what it started."
    )
    for name, why in found.absent.items():
        shown_name = setting.place_name if name == PLACE else name
        print(f"{shown_name} not to the end: {why}" if name in there else f"Without {shown_name}: {why}")
    if not is_good(found):
        print("swerex-c: something answered wrong, not at all, or not in this time: see above", file=sys.stderr)
