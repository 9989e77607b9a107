"""Results of a benchmark: a table in 80 columns with bars, and JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

from swerex_c._version import __version__

from .machine import machine
from .measure import NO_TIME, Row, Run
from .rows import LIMIT, OURS, PEXPECT, PRESTARTED, SWEREX, TARGET, TUNED

__all__ = ["as_data", "duration", "is_good", "lines", "rate", "written"]

NAME, TIME, RATE, RATIO, BAR = 22, 9, 12, 7, 24
"""Columns of a line's name, its times, a rate, the ratio, and the bar; 79 with the spaces between them."""

LEGEND = """\
Shorter bars are better. The ratio is the time divided by that of the line without a ratio in the same round: the \
median of the rounds."""

NO_CODE = """\
pexpect's figures do not include the exit code, which costs it a second command, nor any proof that a command has \
ended: it believes what looks like its prompt."""


def written(number: float) -> str:
    """Format a number with three digits, as far as it has a fraction."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def duration(us: float) -> str:
    """Format microseconds in the unit that leaves about three digits."""
    number, unit = (us, "us") if us < 1e3 else (us / 1e3, "ms") if us < 1e6 else (us / 1e6, "s")
    return f"{written(number)} {unit}"


def rate(line: dict[str, Any]) -> str:
    """Return the MB/s of an output or the commands a second of many sessions, or nothing for anything else."""
    if "bytes" in line:
        return f"{written(line['megabytes_per_second'])} MB/s"
    return f"{line['per_second']:,.0f}/s" if "per_second" in line else ""


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 80)


def _shown_time(line: dict[str, Any]) -> float:
    """Return the microseconds that a bar shows: of a command, or the average of all sessions together."""
    return 1e6 / line["per_second"] if "per_second" in line else float(line["p50_us"])


def _name(run: Run, row: Row, name: str, target: str) -> str:
    if name == TARGET:
        return target
    if name == SWEREX:
        return f"{name} {run.versions.get(name, '')}"
    return f"{name} (limit)" if name == row.baseline == LIMIT else name


def _table(run: Run, target: str) -> Iterator[str]:
    """Yield a table for each row, with a line for each engine."""
    for row in run.rows:
        shown = (turn for turn in row.turns if turn.engine not in run.absent or turn.results)
        lines = {turn.name: row.summary(turn) for turn in shown}
        measured = [line for line in lines.values() if "error" not in line]
        longest = max(map(_shown_time, measured), default=1.0)
        heading = "" if not measured else "rate" if rate(measured[0]) else "p99"
        yield f"\n{row.title}\n{'':{NAME}} {'median':>{TIME}} {heading:>{RATE}} {'ratio':>{RATIO}}"
        for name, line in lines.items():
            first = f"{_name(run, row, name, target)[:NAME]:{NAME}}"
            if "error" in line:
                yield f"{first} {line['error']}"
                continue
            ratio = line.get("ratio")
            by_limit = "" if ratio is None else f"{ratio:.2f}x" if ratio < 100 else f"{ratio:,.0f}x"
            behind = rate(line) or duration(line["p99_us"])
            numbers = f"{duration(line['p50_us']):>{TIME}} {behind:>{RATE}} {by_limit:>{RATIO}}"
            yield f"{first} {numbers}  {'#' * max(1, round(BAR * _shown_time(line) / longest))}"
            if "failed" in line:
                yield f"{'':{NAME}} {line['failed']}"


def as_data(run: Run, **more: Any) -> dict[str, Any]:
    """Return all results as JSON data, the format of the source tree's records."""
    rows: dict[str, Any] = {}
    for row in run.rows:
        summaries = {turn.name: row.summary(turn) for turn in row.turns}
        rows[row.key] = {"title": row.title, "baseline": row.baseline, "lines": summaries}
    settings = {"seconds": run.seconds, "took": round(run.took, 2), "rounds": run.rounds, "seed": run.seed}
    about = {**machine(), "load_before": run.load, "swerex_c": __version__, "versions": run.versions, **more}
    return {"format": 2, "machine": about, "run": settings, "rows": rows, "absent": run.absent, "ok": is_good(run)}


def is_good(run: Run) -> bool:
    """Check whether every answer was right, and each engine of this package was measured.

    Turns that were left out for lack of time are no failure.
    """
    turns = [turn for row in run.rows for turn in row.turns]
    ours = [turn for turn in turns if turn.engine in (OURS, PRESTARTED, TARGET)]
    failed = any(turn.error not in ("", NO_TIME) for turn in ours)
    measured = {turn.engine for turn in ours if turn.results} | {PRESTARTED}
    missing = any(turn.engine not in measured for turn in ours)
    return not failed and not missing and not any(turn.wrong for turn in turns)


def lines(run: Run, target: str = "") -> Iterator[str]:
    """Yield the tables, what the figures do not say, the machine, and the engines that are absent.

    Args:
        target: name of the deployment that was measured, if there was one.
    """
    yield _wrapped(LEGEND)
    yield from _table(run, target)
    measured = {turn.engine for row in run.rows for turn in row.turns if turn.results}
    if measured & {PEXPECT, TUNED}:
        yield f"\n{_wrapped(NO_CODE)}"
    about = machine()
    yield "\n" + _wrapped(
        f"{about['date']}, {about['cpu']}, {about['processors']} processors, load {run.load:.1f}, {about['kernel']}, "
        f"{about['python']}, {about['bash']}. {run.took:.0f} s; every answer was checked, and a line with a wrong "
        "one has no time."
    )
    for name, why in run.absent.items():
        shown = target if name == TARGET else name
        yield f"{shown} was lost: {why}" if name in measured else f"Without {shown}: {why}"
