"""How rows and targets are printed: a column is a title and what it shows of a line."""

from __future__ import annotations

from measure import LEFT_OUT
from measuring import report
from measuring.report import Column, times
from rows import Result, Target, Workload

__all__ = ["print_targets", "print_workload", "said_of_ratios", "table", "target_cells"]


def ratio(number: float | None) -> str:
    return "" if number is None else f"{number:.2f}x"


def growth(kb: float | None) -> str:
    return "" if kb is None else f"+{kb / 1e3:.1f} MB"


def number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


COMMON: list[Column] = [
    times("CPU self", "cpu_self_us"),
    times("CPU shells", "cpu_children_us"),
    ("n", lambda line: str(line["count"])),
]
PINNED: list[Column] = [
    times("lowest", "lowest_us"),
    times("pinned", "pinned_us"),
    ("by base", lambda line: ratio(line.get("pinned_ratio"))),
    times("its CPU", "pinned_cpu_self_us"),
]
"""The best round, and both ends on one processor."""
EACH: list[Column] = [
    ("kB each", lambda line: number(line.get("rss_per_session_kb"))),
    ("fds each", lambda line: number(line.get("fds_per_session"))),
    ("at work", lambda line: number(line.get("fds_per_session_at_work"))),
]
"""What a session takes of this process: at rest, and of files also while something is done with it."""
TIMES: list[Column] = [
    times("p50", "p50_us"),
    times("p99", "p99_us"),
]
RATIO: Column = ("ratio", lambda line: ratio(line.get("ratio")))
BOTH_ENDS: list[Column] = [
    times("CPU client", "cpu_self_us"),
    times("CPU server", "cpu_server_us"),
    *COMMON[2:],
]
COLUMNS: dict[str, list[Column]] = {
    "latency": [*TIMES, RATIO, *PINNED, *COMMON],
    "import": [*TIMES, RATIO, *COMMON[2:]],
    "rested": [*TIMES, RATIO, *COMMON[2:]],
    "output": [
        times("p50", "p50_us"),
        ("MB/s", lambda line: f"{line['megabytes_per_second']:.1f}"),
        RATIO,
        ("memory", lambda line: growth(line.get("rss_growth_kb"))),
        *COMMON,
    ],
    "patterns": [
        times("reading", "plain_p50_us"),
        times("waiting", "p50_us"),
        ("added", lambda line: f"{line['added_share'] * 100:+.1f} %"),
        times("CPU reading", "cpu_plain_us"),
        times("CPU waiting", "cpu_waiting_us"),
        *COMMON[2:],
    ],
    "idle": [
        ("CPU", lambda line: f"{line['cpu_share'] * 100:.3f} %"),
        *EACH,
        *COMMON[2:],
    ],
    "fleet": [("commands/s", lambda line: f"{line['per_second']:,.0f}"), RATIO, *TIMES, *COMMON],
    "growing fleet": [("commands/s", lambda line: f"{line['per_second']:,.0f}"), RATIO, *TIMES, *EACH, *COMMON],
    "remote": [*TIMES, times("worst", "max_us"), RATIO, *PINNED[:3], *BOTH_ENDS],
    "rate": [("requests/s", lambda line: f"{line['per_second']:,.0f}"), RATIO, *BOTH_ENDS],
    "instructions": [
        ("instructions", lambda line: f"{line['instructions']:,.1f}"),
        ("from run to run", lambda line: f"{line['spread']:.2%}" if "spread" in line else ""),
        *COMMON[2:],
    ],
    "late": [
        *TIMES,
        times("worst", "max_us"),
        times("worst of its own", "own_max_us"),
        ("MB/s", lambda line: number(line.get("output_rate"))),
        *COMMON,
    ],
    "match": [
        ("GB/s of CPU", lambda line: f"{line['megabytes_per_second'] / 1e3:.2f}"),
        RATIO,
        *COMMON[2:],
    ],
    "bytes": [times("p50", "p50_us"), RATIO, *COMMON[2:]],
    "speedup": [
        ("one", lambda line: f"{line['per_second']:,.0f}/s"),
        ("two by one", lambda line: ratio(line.get("speedup"))),
        *COMMON[2:],
    ],
    "transfer": [
        times("p50", "p50_us"),
        ("MB/s", lambda line: f"{line['megabytes_per_second']:.1f}"),
        RATIO,
        ("memory client", lambda line: growth(line.get("rss_growth_kb"))),
        ("memory server", lambda line: growth(line.get("rss_growth_server_kb"))),
        *BOTH_ENDS,
    ],
}


def table(kind: str, lines: dict[str, Result]) -> list[list[str]]:
    """The cells of a row's table, the titles first. A line with an error has two cells; one left out has none."""
    return report.table(COLUMNS[kind], {n: line for n, line in lines.items() if line.get("error") != LEFT_OUT})


def print_workload(row: Workload) -> None:
    lines = {turn.name: row.summary(turn.name) for turn in row.turns}
    shown = {n: line for n, line in lines.items() if line.get("error") != LEFT_OUT}
    report.print_row(row.title + said_of_ratios(row.baseline), COLUMNS[row.kind], shown)


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
