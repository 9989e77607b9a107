"""What was found, for people and for programs."""

from __future__ import annotations

import sys
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from swerex_c.bench.figures import Result, median_ratio, p50_of, together
from swerex_c.bench.machine import machine
from swerex_c.bench.rows import ORIGINAL, OURS, PLACE, WARM, Row, Turn
from swerex_c.bench.run import NO_TIME, Found, Setting

__all__ = ["as_data", "is_good", "print_table"]


def _value(result: Result) -> float:
    """The one number of a turn, smaller is better."""
    return 1e6 / float(result["per_second"]) if "per_second" in result else p50_of(result)


def _line(found: Found, row: Row, turn: Turn) -> dict[str, Any]:
    """All numbers of a line; without times if an answer was wrong."""
    results = found.results.get((row.key, turn.name), [])
    if not results:
        return {"error": found.errors.get((row.key, turn.name), "not run")}
    note = {"note": error} if (error := found.errors.get((row.key, turn.name))) else {}
    line = together(results) | note
    count = line["count"]
    if line["wrong"]:
        return {"count": count, "wrong": line["wrong"], **note}
    line["cpu_self_us"] = sum(it["cpu_self_us"] for it in results) / count
    if turn.engine != PLACE:  # whose shells are not below this process
        line["cpu_children_us"] = sum(it["cpu_children_us"] for it in results) / count
    base = [it for it in found.results.get((row.key, row.limit), []) if not it["wrong"]]
    if base and turn.name != row.limit:
        line["ratio"] = median_ratio(results, [base], _value)
    beside = {it["round"]: _value(it) for it in base}
    line["rounds"] = {str(it["round"]): _value(it) / beside[it["round"]] for it in results if it["round"] in beside}
    return line


def as_data(found: Found, setting: Setting) -> dict[str, Any]:
    """Everything, in the form in which the benchmarks of the source tree keep their records, so that `python -m
    benchmarks --compare` takes it too."""
    from swerex_c._version import __version__ as own

    rows = {
        row.key: {
            "title": row.title,
            "baseline": row.limit,
            "lines": {turn.name: _line(found, row, turn) for turn in row.turns},
        }
        for row in found.rows
    }
    run = {"seconds": setting.seconds, "took": round(found.seconds, 2), "rounds": setting.rounds, "seed": setting.seed}
    about = {
        **machine(),
        "load_before": found.load,
        "swerex_c": own,
        "original": found.versions.get(ORIGINAL),
        "place": setting.place_name,
    }
    return {"machine": about, "run": run, "rows": rows, "absent": found.absent, "ok": is_good(found)}


def is_good(found: Found) -> bool:
    """Whether every answer was right, and ours could be measured. Rows for which there was no time are no failure, but
    none at all is."""
    wrong = any(result["wrong"] for results in found.results.values() for result in results)
    ours = [(row.key, turn) for row in found.rows for turn in row.turns if turn.engine in (OURS, WARM, PLACE)]
    failed = any(not found.errors.get((key, turn.name), NO_TIME).startswith(NO_TIME) for key, turn in ours)
    return not wrong and not failed and _measured(found) >= {turn.engine for _, turn in ours} - {WARM}


def _measured(found: Found) -> set[str]:
    """The engines of which there is anything."""
    return {turn.engine for row in found.rows for turn in row.turns if (row.key, turn.name) in found.results}


def duration(us: float | None) -> str:
    """Microseconds, as people read them."""
    if us is None:
        return ""
    if us < 1000:
        return f"{us:.1f} us"
    return f"{us / 1e3:.2f} ms" if us < 1e6 else f"{us / 1e6:.2f} s"


def _cells(line: dict[str, Any]) -> list[Text]:
    if line["wrong"]:
        return [Text(f"{line['wrong']} WRONG", style="bold red")]
    rate = f"{line['megabytes_per_second']:,.1f} MB/s" if "bytes" in line else ""
    rate = f"{line['per_second']:,.0f}/s" if "per_second" in line else rate
    ratio = line.get("ratio")
    cells = [duration(line.get("p50_us")), duration(line.get("p99_us")), rate]
    cells += ["" if ratio is None else f"{ratio:.2f}x" if ratio < 100 else f"{ratio:,.0f}x"]
    cells += [duration(line.get("cpu_self_us")), duration(line.get("cpu_children_us")), f"{line['count']:,}"]
    return [Text(cell) for cell in cells]


_NAME = 28
_COLUMNS = (("p50", 10), ("p99", 10), ("rate", 11), ("by limit", 9), ("CPU here", 10), ("CPU shells", 10), ("n", 7))
_LESS = (1, 5, 6)
"""Columns that a narrow terminal does without."""
_WIDTH = _NAME + 2 + sum(width + 2 for _, width in _COLUMNS)


def _name(found: Found, setting: Setting, row: Row, turn: Turn) -> Text:
    name = setting.place_name if turn.engine == PLACE else turn.name
    if turn.engine == ORIGINAL and (version := found.versions.get(ORIGINAL)):
        name = name.replace(ORIGINAL, f"{ORIGINAL} {version}")
    if turn.name == row.limit:
        name += " (limit)"
    return Text(f"  {name}", style="bold" if turn.engine in (OURS, WARM, PLACE) else "")


def print_table(found: Found, setting: Setting) -> None:
    """A table on standard output: of each row a line for each engine."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDTH)
    narrow = console.width < _WIDTH
    measured = _measured(found)
    for at, row in enumerate(found.rows):
        table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0), show_header=at == 0, title_justify="left")
        table.add_column("", width=_NAME, no_wrap=True)
        for number, (title, width) in enumerate(_COLUMNS):
            if not (narrow and number in _LESS):
                table.add_column(title, justify="right", width=width, no_wrap=True)
        console.print(Text(row.title, style="bold cyan"))
        for turn in row.turns:
            line = _line(found, row, turn)
            if "error" not in line:
                cells = _cells(line)
                shown = [cell for number, cell in enumerate(cells) if not (narrow and number in _LESS)]
                table.add_row(_name(found, setting, row, turn), *shown)
        console.print(table)
        for turn in row.turns:
            line = _line(found, row, turn)
            if "error" in line and (turn.engine not in found.absent or turn.engine in measured):
                console.print(Text.assemble(_name(found, setting, row, turn), ": ", (line["error"], "dim")))
    _print_about(console, found, setting)


def _print_about(console: Console, found: Found, setting: Setting) -> None:
    about = machine()
    console.print(
        f"\n{about['date']}, {about['cpu']}, {about['processors']} processors, load {found.load:.1f}, "
        f"{about['kernel']}, {about['python']}, {about['bash']}. {found.seconds:.0f} s, rounds: {setting.rounds}.",
        highlight=False, markup=False, soft_wrap=True,
    )  # fmt: skip
    console.print(
        "Times and CPU are per command. By limit: how many times the time of the line that says (limit), the middle of "
        "the rounds, which a busy machine changes least. CPU here: the measured process; CPU shells: what it started.",
        highlight=False, markup=False, soft_wrap=True,
    )  # fmt: skip
    there = _measured(found)
    for name, why in found.absent.items():
        shown = setting.place_name if name == PLACE else name
        text = f"{shown} not to the end: {why}" if name in there else f"Without {shown}: {why}"
        console.print(text, highlight=False, markup=False, soft_wrap=True)
    if not is_good(found):
        print("swerex-c: something answered wrong, not at all, or not in this time: see above", file=sys.stderr)
