"""How rows and targets are printed: a column is a title and what it shows of a line."""

from __future__ import annotations

from collections.abc import Callable

from measure import (
    LEFT_OUT,
)
from rows import Result, Target, Workload

__all__ = ["duration", "print_targets", "print_workload", "said_of_ratios", "table", "target_cells"]


def duration(us: float | None) -> str:
    if us is None:
        return ""
    if us < 1:
        return f"{us * 1e3:.0f} ns"
    if us < 1000:
        return f"{us:.1f} us"
    if us < 1e6:
        return f"{us / 1e3:.2f} ms"
    return f"{us / 1e6:.2f} s"


def ratio(number: float | None) -> str:
    return "" if number is None else f"{number:.2f}x"


def growth(kb: float | None) -> str:
    return "" if kb is None else f"+{kb / 1e3:.1f} MB"


def number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


Column = tuple[str, Callable[[Result], str]]
COMMON: list[Column] = [
    ("CPU self", lambda line: duration(line.get("cpu_self_us"))),
    ("CPU shells", lambda line: duration(line.get("cpu_children_us"))),
    ("wrong", lambda line: str(line["wrong"] or "")),
    ("n", lambda line: str(line["count"])),
]
PINNED: list[Column] = [
    ("lowest", lambda line: duration(line.get("lowest_us"))),
    ("pinned", lambda line: duration(line.get("pinned_us"))),
    ("by base", lambda line: ratio(line.get("pinned_ratio"))),
    ("its CPU", lambda line: duration(line.get("pinned_cpu_self_us"))),
]
"""The best round, and both ends on one processor."""
EACH: list[Column] = [
    ("kB each", lambda line: number(line.get("rss_per_session_kb"))),
    ("fds each", lambda line: number(line.get("fds_per_session"))),
    ("at work", lambda line: number(line.get("fds_per_session_at_work"))),
]
"""What a session takes of this process: at rest, and of files also while something is done with it."""
TIMES: list[Column] = [
    ("p50", lambda line: duration(line.get("p50_us"))),
    ("p99", lambda line: duration(line.get("p99_us"))),
]
ALWAYS = ("wrong", "n")
"""Columns that are shown even if they are empty."""
RATIO: Column = ("ratio", lambda line: ratio(line.get("ratio")))
BOTH_ENDS: list[Column] = [
    ("CPU client", lambda line: duration(line.get("cpu_self_us"))),
    ("CPU server", lambda line: duration(line.get("cpu_server_us"))),
    *COMMON[2:],
]
COLUMNS: dict[str, list[Column]] = {
    "latency": [*TIMES, RATIO, *PINNED, *COMMON],
    "import": [*TIMES, RATIO, *COMMON[3:]],
    "rested": [*TIMES, RATIO, *COMMON[2:]],
    "output": [
        ("p50", lambda line: duration(line.get("p50_us"))),
        ("MB/s", lambda line: f"{line['megabytes_per_second']:.1f}"),
        RATIO,
        ("memory", lambda line: growth(line.get("rss_growth_kb"))),
        *COMMON,
    ],
    "patterns": [
        ("reading", lambda line: duration(line.get("plain_p50_us"))),
        ("waiting", lambda line: duration(line.get("p50_us"))),
        ("added", lambda line: f"{line['added_share'] * 100:+.1f} %"),
        ("CPU reading", lambda line: duration(line["cpu_plain_us"])),
        ("CPU waiting", lambda line: duration(line["cpu_waiting_us"])),
        *COMMON[2:],
    ],
    "idle": [
        ("CPU", lambda line: f"{line['cpu_share'] * 100:.3f} %"),
        *EACH,
        *COMMON[2:],
    ],
    "fleet": [("commands/s", lambda line: f"{line['per_second']:,.0f}"), RATIO, *TIMES, *COMMON],
    "growing fleet": [("commands/s", lambda line: f"{line['per_second']:,.0f}"), RATIO, *TIMES, *EACH, *COMMON],
    "remote": [*TIMES, ("worst", lambda line: duration(line.get("max_us"))), RATIO, *PINNED[:3], *BOTH_ENDS],
    "rate": [("requests/s", lambda line: f"{line['per_second']:,.0f}"), RATIO, *BOTH_ENDS],
    "instructions": [
        ("instructions", lambda line: f"{line['instructions']:,.1f}"),
        ("from run to run", lambda line: f"{line['spread']:.2%}" if "spread" in line else ""),
        *COMMON[2:],
    ],
    "late": [
        *TIMES,
        ("worst", lambda line: duration(line.get("max_us"))),
        ("worst of its own", lambda line: duration(line.get("own_max_us"))),
        ("MB/s", lambda line: number(line.get("output_rate"))),
        *COMMON,
    ],
    "match": [
        ("GB/s of CPU", lambda line: f"{line['megabytes_per_second'] / 1e3:.2f}"),
        RATIO,
        *COMMON[2:],
    ],
    "bytes": [("p50", lambda line: duration(line.get("p50_us"))), RATIO, *COMMON[2:]],
    "speedup": [
        ("one", lambda line: f"{line['per_second']:,.0f}/s"),
        ("two by one", lambda line: ratio(line.get("speedup"))),
        *COMMON[2:],
    ],
    "transfer": [
        ("p50", lambda line: duration(line.get("p50_us"))),
        ("MB/s", lambda line: f"{line['megabytes_per_second']:.1f}"),
        RATIO,
        ("memory client", lambda line: growth(line.get("rss_growth_kb"))),
        ("memory server", lambda line: growth(line.get("rss_growth_server_kb"))),
        *BOTH_ENDS,
    ],
}


def table(kind: str, lines: dict[str, Result]) -> list[list[str]]:
    """The cells of a row's table, the titles first. A line with an error has two cells; one left out has none."""
    measured = [line for line in lines.values() if "error" not in line]
    columns = [it for it in COLUMNS[kind] if it[0] in ALWAYS or any(it[1](line) for line in measured)]
    found = [["", *(title for title, _ in columns)]]
    for name, line in lines.items():
        if "error" not in line:
            found.append([name, *(show(line) for _, show in columns)])
        elif line["error"] != LEFT_OUT:
            found.append([name, str(line["error"])])
    return found


def print_workload(workload: Workload) -> None:
    lines = table(workload.kind, {turn.name: workload.summary(turn.name) for turn in workload.turns})
    # A line with an error has one long cell, which sets no width.
    full = [line for line in lines if len(line) == len(lines[0])]
    first = max(len(line[0]) for line in lines)
    widths = [max(len(line[i]) for line in full) for i in range(1, len(lines[0]))]
    print(f"\n{workload.title}{said_of_ratios(workload.baseline)}")
    for cells in lines:
        if cells in full:
            cells = [cells[0], *(cell.rjust(width) for cell, width in zip(cells[1:], widths, strict=True))]
        print("  " + "  ".join([cells[0].ljust(first), *cells[1:]]).rstrip())
    for name, error in workload.errors.items():
        if name in workload.results:
            print(f"  {name}: {error}")


def said_of_ratios(baseline: str) -> str:
    return f"  (ratio: by {baseline})" if baseline else ""


def target_cells(target: Target) -> tuple[str, str, str, str]:
    """The verdict, what is wanted, what was found, and the limit."""
    sign = "at most" if target.at_most else "at least"
    value = "not measured" if target.value is None else f"{target.value:.4g} {target.unit}".rstrip()
    word = "pass" if target.met else "MISS" if target.value is not None else "----"
    return word, target.text, value, f"{sign} {target.limit:g} {target.unit}".rstrip()


def print_targets(found: list[Target]) -> None:
    print("\ntargets")
    width = max(len(target.text) for target in found)
    for word, text, value, limit in map(target_cells, found):
        print(f"  {word}  {text.ljust(width)}  {value:>14}  ({limit})")
    missing = sum(it.value is None for it in found)
    print(f"{sum(it.met for it in found)} of {len(found) - missing} met, {missing} not measured")
