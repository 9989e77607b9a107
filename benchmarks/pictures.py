"""Records, and their pictures and figures for README.md and the pages: SVG for light and for dark pages, and tables.

The pictures are written by hand, because a page shows them without any style sheet.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from swerex_c.bench.report import duration, rate, written
from swerex_c.bench.rows import LIMIT, OURS, PEXPECT, PLAIN_C, PRESTARTED, PTYPROCESS, SUBPROCESS, SWEREX, TUNED

__all__ = ["CHARTS", "FILE", "RECORDS", "draw", "figures", "find", "read", "speed"]

Record = dict[str, Any]

RECORDS = Path(__file__).resolve().parent / "record"
FILE = "run.json"
PICTURES = Path(__file__).resolve().parent / "pictures"
README = Path(__file__).resolve().parents[1] / "README.md"
SPEED = README.parent / "swerex_c" / "docs" / "speed.md"

COLOURS = {
    SWEREX: ("#cf222e", "#ff7b72"),
    PEXPECT: ("#9a6700", "#d29922"),
    TUNED: ("#57606a", "#9198a1"),
    OURS: ("#0969da", "#4493f8"),
}
"""Colours of a line on a light and on a dark page; other lines have that of pexpect, tuned."""

THEMES = {"light": ("#ffffff", "#1f2328", "#d1d9e0"), "dark": ("#0d1117", "#f0f6fc", "#3d444d")}
"""Colours of the background, the text and the lines: GitHub's."""

WIDTH, TOP, BAR, STEP, LEFT, RIGHT = 760, 52, 22, 36, 180, 130
"""Pixels: of the whole, above the bars, of a bar, from bar to bar, and beside the axis for names and numbers."""


class Chart(NamedTuple):
    """A picture: bars of one number of some lines of a row."""

    row: str
    title: str
    unit: str
    names: tuple[str, ...]


MANY = (SWEREX, f"{SWEREX}, 4 sessions", TUNED, "ptyprocess", LIMIT, PLAIN_C, OURS)
CHARTS = {
    "command": Chart(
        "true",
        "Time of one command (true) in a session",
        "milliseconds, shorter is better",
        (SWEREX, PEXPECT, TUNED, OURS),
    ),
    "output": Chart("output-64", "Rate of 64 MB of output", "MB/s, longer is better", MANY),
    "sessions": Chart("sessions-64", "Commands a second in 64 sessions at once", "commands/s, longer is better", MANY),
}


def amount(line: dict[str, Any]) -> float:
    """Return the MB/s of an output, the commands a second of many sessions, or the milliseconds of anything else."""
    found = line["megabytes_per_second"] if "bytes" in line else line.get("per_second", line["p50_us"] / 1e3)
    return float(found)


def values(record: Record, chart: Chart) -> dict[str, float]:
    """Return the numbers of a chart's lines, of those that were measured."""
    lines = record["rows"].get(chart.row, {}).get("lines", {})
    return {name: amount(lines[name]) for name in chart.names if "p50_us" in lines.get(name, {})}


def read(path: Path) -> Record:
    found: Record = json.loads(path.read_text())
    return found


def find(begin: str = "") -> Path:
    """Return the file of the newest record whose directory's name begins so; of any, it has all bars of README.md.

    Raises:
        LookupError: if there is none.
    """
    for path in sorted(RECORDS.glob(f"{begin}*/{FILE}"), reverse=True):
        if begin or len(values(read(path), CHARTS["command"])) == len(CHARTS["command"].names):
            return path
    raise LookupError(f"no record in {RECORDS} suits: make one with `python -m benchmarks`")


def draw(record: Record, directory: Path = PICTURES) -> list[Path]:
    """Write each chart for which the record has numbers, for light and for dark pages."""
    directory.mkdir(exist_ok=True)
    made = []
    for name, chart in CHARTS.items():
        for number, theme in enumerate(THEMES if values(record, chart) else ()):
            path = directory / f"{name}-{theme}.svg"
            path.write_text(svg(record, chart, number))
            made.append(path)
    return made


def svg(record: Record, chart: Chart, theme: int) -> str:
    paper, ink, rule = list(THEMES.values())[theme]
    bars = values(record, chart)
    longest = max(bars.values())
    tick = next(it for power in range(9) for it in (10**power, 2 * 10**power, 5 * 10**power) if longest / it <= 6)
    ticks = range(0, math.ceil(longest / tick) * tick + 1, tick)
    scale = (WIDTH - LEFT - RIGHT) / ticks[-1]
    bottom = TOP + STEP * len(bars)
    height = bottom + 78
    said = "; ".join(f"{name} {written(value)}" for name, value in bars.items())
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'font-family="Helvetica, Arial, sans-serif" font-size="14" role="img">',
        f"<title>{escape(f'{chart.title}, {chart.unit}: {said}')}</title>",
        f'<rect width="{WIDTH}" height="{height}" rx="6" fill="{paper}"/>',
        text(16, 28, chart.title, ink, "start", ' font-weight="bold"'),
    ]
    for value in ticks:
        x = LEFT + value * scale
        parts.append(f'<path d="M{x:.1f} {TOP - 8}V{bottom}" stroke="{rule}"/>')
        parts.append(text(x, bottom + 18, f"{value:,}", ink, "middle"))
    parts.append(text((LEFT + WIDTH - RIGHT) / 2, bottom + 38, f"{chart.unit} (median)", ink, "middle"))
    for i, (name, number) in enumerate(bars.items()):
        y, width, label = TOP + STEP * i, max(2.0, number * scale), written(number)
        colour = COLOURS.get(name.partition(", 4")[0], COLOURS[TUNED])[theme]
        parts.append(text(LEFT - 10, y + 16, name, ink, "end"))
        parts.append(f'<rect x="{LEFT}" y="{y}" width="{width:.1f}" height="{BAR}" fill="{colour}"/>')
        behind = f'width="{10 * len(label)}" height="{BAR}" fill="{paper}"'  # no line of the axis crosses the number
        parts.append(f'<rect x="{LEFT + width + 4:.1f}" y="{y}" {behind}/>')
        parts.append(text(LEFT + width + 8, y + 16, label, ink, "start", ' font-weight="bold"'))
    parts.append(text(16, height - 14, machine(record["machine"]), ink, "start", ' font-size="11"'))
    return "\n".join([*parts, "</svg>", ""])


def text(x: float, y: float, words: str, colour: str, anchor: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y}" fill="{colour}" text-anchor="{anchor}"{more}>{escape(words)}</text>'


def machine(about: dict[str, Any]) -> str:
    """Return a line about the machine and the day."""
    kernel = re.sub(r"(\d+\.\d+).*", r"\1", about["kernel"])
    bash = re.sub(r".*?(?:version |bash )(\d+\.\d+).*", r"bash \1", about["bash"])
    where = f"{about['cpu']}, {about['processors']} processors, {kernel}, {bash}, {about['python']}"
    return f"{str(about['date']).split()[0]}, {where}; one interleaved run, every answer checked"


# Tables


def cells(row: dict[str, Any], names: tuple[str, ...], time: Callable[[float], str] = duration) -> list[str]:
    """Format the numbers of a row's lines; those that were not measured are empty.

    Args:
        time: formats microseconds.
    """
    lines = {name.removesuffix(", 4 sessions"): line for name, line in row.get("lines", {}).items()}
    found = [lines.get(name, {}) for name in names]
    return [rate(line) or time(line["p50_us"]) if "p50_us" in line else "" for line in found]


def figures(record: Record, page: Path = README) -> None:
    """Write a record's numbers into the table of README.md, its date, and the text that stands for the chart."""
    here = (OURS, TUNED, SWEREX)
    wanted = [
        ("`true` in a session", "true", here),
        ("`/bin/true` in a session", "bin-true", here),
        ("start of a session", "start", here),
        ("start, if its shell was started ahead of time", "start", (PRESTARTED, "", "")),
        ("1 MB of output", "output-1", here),
        ("64 MB of output", "output-64", here),
        ("commands in 64 sessions at once", "sessions-64", here),
        ("an interrupt", "interrupt", here),
        ("a container: start to the first answer", "docker-start", (f"{OURS}, docker", "", f"{SWEREX}, docker")),
    ]
    table = [f"| | {' | '.join(here)} |", "|---|---|---|---|"]
    for title, key, names in wanted:
        found = cells(record["rows"].get(key, {}), names, lambda microseconds: f"{written(microseconds / 1e3)} ms")
        if found[0]:
            table.append(f"| {title} | {' | '.join(found)} |")
    said = "; ".join(f"{name} {written(value)} ms" for name, value in values(record, CHARTS["command"]).items())
    now = page.read_text()
    now = re.sub(
        r"(?<=^## Figures\n\n)(.*?)^\|.*?(?=^\n)", lambda m: m[1] + "\n".join(table) + "\n", now, flags=re.M | re.S
    )
    now = re.sub(r"interleaved run on [\d-]+", f"interleaved run on {str(record['machine']['date']).split()[0]}", now)
    now = re.sub(r'(command-light\.svg" alt=")[^"]*', rf"\1Time of one command: {said}", now)
    page.write_text(now)


COLUMNS = {
    "Sessions on this machine": (OURS, PRESTARTED, PLAIN_C, LIMIT, PTYPROCESS, TUNED, PEXPECT, SUBPROCESS, SWEREX),
    "Servers": (f"{OURS}, server", f"{SWEREX}'s client, ours", f"{SWEREX}, server"),
    "Containers": (f"{OURS}, docker", "docker run, exec", f"{SWEREX}, docker"),
}
"""Headings of the tables of speed.md, and the lines of each."""


def speed(record: Record, path: Path, page: Path = SPEED) -> None:
    """Write a record's medians into speed.md, as tables between its marks, and name the record.

    Args:
        path: file of the record.
    """
    parts = []
    for title, names in COLUMNS.items():
        body = []
        for key, row in record["rows"].items():
            found = cells(row, names)
            if found[0] and not (names[0] == OURS and key.startswith("remote-")):  # whose baseline is a session here
                body.append(f"| {row['title'].partition(';')[0]} | {' | '.join(found)} |")
        parts += [f"### {title}", "", f"| | {' | '.join(names)} |", f"|{'---|' * (len(names) + 1)}", *body, ""]
    where = f"../../benchmarks/record/{path.relative_to(RECORDS).parent}"
    parts.append(f"{machine(record['machine'])}: [the run]({where}/tables.md), [all numbers]({where}/{FILE}).")
    text, marked = "\n".join(parts), r"(?<=<!-- figures -->\n\n).*?(?=\n\n<!-- -->)"
    page.write_text(re.sub(marked, lambda _: text, page.read_text(), flags=re.S))
