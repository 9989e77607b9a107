"""How rows and targets are printed: a column is a title and what it shows of a line."""

from __future__ import annotations

from collections.abc import Callable

from measure import (
    LEFT_OUT,
)
from rows import Result, Target, Workload

__all__ = ["duration", "print_targets", "print_workload"]


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


Column = tuple[str, Callable[[Result], str]]
COMMON: list[Column] = [
    ("CPU self", lambda line: duration(line.get("cpu_self_us"))),
    ("CPU shells", lambda line: duration(line.get("cpu_children_us"))),
    ("wrong", lambda line: str(line["wrong"] or "")),
    ("n", lambda line: str(line["count"])),
]
TIMES: list[Column] = [
    ("p50", lambda line: duration(line.get("p50_us"))),
    ("p99", lambda line: duration(line.get("p99_us"))),
]
RATIO: Column = ("ratio", lambda line: ratio(line.get("ratio")))
BOTH_ENDS: list[Column] = [
    ("CPU client", lambda line: duration(line.get("cpu_self_us"))),
    ("CPU server", lambda line: duration(line.get("cpu_server_us"))),
    *COMMON[2:],
]
COLUMNS: dict[str, list[Column]] = {
    "latency": [*TIMES, RATIO, *COMMON],
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
        ("memory each", lambda line: f"{line['rss_per_session_kb']:.0f} kB"),
        *COMMON[2:],
    ],
    "fleet": [("commands/s", lambda line: f"{line['per_second']:,.0f}"), RATIO, *COMMON],
    "remote": [*TIMES, ("worst", lambda line: duration(line.get("max_us"))), RATIO, *BOTH_ENDS],
    "rate": [("requests/s", lambda line: f"{line['per_second']:,.0f}"), RATIO, *BOTH_ENDS],
    "late": [("p50", TIMES[0][1]), ("p99", TIMES[1][1]), ("worst", lambda line: duration(line.get("max_us")))],
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


def print_workload(workload: Workload) -> None:
    columns = COLUMNS[workload.kind]
    lines = [["", *(title for title, _ in columns)]]
    for turn in workload.turns:
        line = workload.summary(turn.name)
        if "error" in line:
            if line["error"] != LEFT_OUT:
                lines.append([turn.name, line["error"]])
            continue
        lines.append([turn.name, *(show(line) for _, show in columns)])
    # A line with an error has one long cell, which sets no width.
    full = [line for line in lines if len(line) == len(columns) + 1]
    first = max(len(line[0]) for line in lines)
    widths = [max(len(line[i]) for line in full) for i in range(1, len(columns) + 1)]
    beside = f"  (ratio: by {workload.baseline})" if workload.baseline and workload.kind != "idle" else ""
    print(f"\n{workload.title}{beside}")
    for cells in lines:
        if cells in full:
            cells = [cells[0], *(cell.rjust(width) for cell, width in zip(cells[1:], widths, strict=True))]
        print("  " + "  ".join([cells[0].ljust(first), *cells[1:]]).rstrip())


def print_targets(found: list[Target]) -> None:
    print("\ntargets")
    width = max(len(target.text) for target in found)
    for target in found:
        sign = "at most" if target.at_most else "at least"
        value = "not measured" if target.value is None else f"{target.value:.4g} {target.unit}"
        word = "pass" if target.met else "MISS"
        print(f"  {word}  {target.text.ljust(width)}  {value:>14}  ({sign} {target.limit:g} {target.unit})")
