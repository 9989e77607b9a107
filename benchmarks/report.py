"""A record as markdown: every table, the goals, how costs grow."""

from __future__ import annotations

from pathlib import Path

from goals import targets
from growth import GROWTHS
from rows import Result
from tables import said_of_ratios, table, target_cells

__all__ = ["write_report"]


def markdown_table(cells: list[list[str]]) -> list[str]:
    width = len(cells[0])
    rows = [[*line, *[""] * (width - len(line))] for line in cells]
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return [lines[0], "|---" + "|---:" * (width - 1) + "|", *lines[1:]]


def where(record: Result) -> str:
    text = "{date}, {cpu}, {processors} processors, load {load_before:.1f}, {kernel}, {bash}, {python}"
    return (text + ", commit {commit}. Made by `{command}`.").format(**record["machine"])


def write_report(record: Result, directory: Path, pictures: list[Path]) -> Path:
    """Write all tables of a record as one file; its path."""
    lines = ["# A run of the benchmarks", "", where(record), ""]
    for picture in pictures:
        lines += [f"![{picture.stem}]({picture.name})", ""]
    lines += ["## Goals", ""]
    lines += markdown_table([["", "what", "found", "wanted"], *map(list, map(target_cells, targets(record)))])
    growths = [(it, powers) for it in GROWTHS if (powers := it.exponents(record))]
    if growths:
        names = list(dict.fromkeys(name for _, powers in growths for name in powers))
        cells = [["exponent of", "expected", *names]]
        for growth, powers in growths:
            found = [f"{powers[name]:.2f}" if name in powers else "" for name in names]
            cells.append([growth.text, f"{growth.expected:g} at most", *found])
        lines += ["", "## How costs grow", "", *markdown_table(cells)]
    lines += ["", "## Rows", ""]
    for row in record["rows"].values():
        title = f"**{row['title']}**{said_of_ratios(row['baseline'])}"
        lines += [title, "", *markdown_table(table(row["kind"], row["lines"])), ""]
    if record["absent"]:
        lines += ["Not here: " + "; ".join(f"{name} ({why})" for name, why in record["absent"].items()) + ".", ""]
    path = directory / "tables.md"
    path.write_text("\n".join(lines))
    return path
