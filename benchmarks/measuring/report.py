"""Tables of benchmark rows.

A column is a title and a function that formats a number of a line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from .operations import Result

__all__ = ["Column", "duration", "print_row", "table", "times"]

Column = tuple[str, Callable[[Result], str]]


def duration(us: float | None) -> str:
    """Format microseconds with a suitable unit."""
    if us is None:
        return ""
    if us < 1:
        return f"{us * 1e3:.0f} ns"
    if us < 1000:
        return f"{us:.1f} us"
    return f"{us / 1e3:.2f} ms" if us < 1e6 else f"{us / 1e6:.2f} s"


def times(title: str, key: str) -> Column:
    """Return the column of a number of microseconds."""
    return title, lambda line: duration(line.get(key))


def table(columns: Iterable[Column], lines: dict[str, Result]) -> list[list[str]]:
    """Return the cells of a table without empty columns, the titles first.

    A line with an error has two cells: its name and the error.
    """
    measured = [line for line in lines.values() if "error" not in line]
    shown = [it for it in columns if any(it[1](line) for line in measured)]
    found = [["", *(title for title, _ in shown)]]
    for name, line in lines.items():
        found.append([name, str(line["error"])] if "error" in line else [name, *(cell(line) for _, cell in shown)])
    return found


def print_row(title: str, columns: Iterable[Column], lines: dict[str, Result]) -> None:
    """Print a row's title and table, and why turns of measured lines have failed."""
    cells = table(columns, lines)
    # A line with an error has one long cell, which sets no width.
    full = [it for it in cells if len(it) == len(cells[0])]
    first = max(len(it[0]) for it in cells)
    widths = [max(len(it[at]) for it in full) for at in range(1, len(cells[0]))]
    print(f"\n{title}")
    for each in cells:
        if each in full:
            each = [each[0], *(cell.rjust(width) for cell, width in zip(each[1:], widths, strict=True))]
        print("  " + "  ".join([each[0].ljust(first), *each[1:]]).rstrip())
    for name, line in lines.items():
        if "failed" in line:
            print(f"  {name}: {line['failed']}")
