"""How each cost grows as the work grows: curves through rows whose names end with a size, and their exponents."""

from __future__ import annotations

import math
import re
import statistics
from dataclasses import dataclass
from typing import Any

from rows import Result

__all__ = ["GROWTHS", "Growth", "exponent", "print_growth"]

Points = list[tuple[float, float]]


@dataclass(frozen=True)
class Growth:
    text: str
    rows: str
    """How the rows' names begin; a dash and the size follow."""

    key: str
    """What grows, of each line."""

    expected: float
    """The exponent that there should be, or less."""

    least: float = 0.0
    """What is less counts as this: a memory that does not grow is not one that grows from nothing."""

    def curves(self, record: Result) -> dict[str, Points]:
        """By engine: sizes and values, in order."""
        found: dict[str, Points] = {}
        for name, row in record["rows"].items():
            size = re.fullmatch(re.escape(self.rows) + r"-(\d+)", name)
            for line, values in row["lines"].items():
                if size and self.key in values:
                    found.setdefault(line, []).append((float(size[1]), max(self.least, float(values[self.key]))))
        return {line: sorted(points) for line, points in found.items()}

    def exponents(self, record: Result) -> dict[str, float]:
        """By engine, of those with three sizes or more."""
        powers = {line: exponent(points) for line, points in self.curves(record).items()}
        return {line: power for line, power in powers.items() if power is not None}


GROWTHS = [
    Growth("time of output in lines, by its size", "output", "p50_us", 1.0),
    Growth("time of output in one line, by its size", "line", "p50_us", 1.0),
    Growth("memory for an output, by its size", "output", "rss_growth_kb", 1.0, least=1000),
    Growth("CPU of this process for an output, by its size", "output", "cpu_self_us", 1.0),
    Growth("time to type a here-document, by its size", "typed", "p50_us", 1.0),
    Growth("CPU of this process a command, by the number of sessions", "fleet", "cpu_self_us", 0.0),
    Growth("wait for an answer, by the number of sessions at once", "fleet", "p50_us", 1.0),
    Growth("idle CPU, by the number of sessions", "idle", "cpu_share", 1.0, least=1e-5),
    Growth("CPU to match, by the size of the stream", "match-in", "p50_us", 1.0),
    Growth("CPU to match, by the number of literals", "match-of", "p50_us", 0.0),
    Growth("time to encode an answer, by its size", "encode", "p50_us", 1.0),
    Growth("time to decode an answer, by its size", "decode", "p50_us", 1.0),
]


def exponent(points: Points) -> float | None:
    """The power of the size with which a cost grows, by least squares on both logarithms; of three points or more."""
    if len(points) < 3 or any(value <= 0 for _, value in points):
        return None
    xs, ys = [[math.log(it[i]) for it in points] for i in (0, 1)]
    x, y = statistics.mean(xs), statistics.mean(ys)
    return sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True)) / sum((a - x) ** 2 for a in xs)


def print_growth(record: dict[str, Any]) -> None:
    """With which power of its size each cost grows, for each engine."""
    for growth in GROWTHS:
        if powers := growth.exponents(record):
            print(f"\n{growth.text}: to the power of (expected: {growth.expected:g} at most)")
            for line, power in powers.items():
                print(f"  {line:24} {power:5.2f}")
