"""Where the number of a goal comes from: something that finds it in a record, or None where it was not measured."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

from rows import Result

__all__ = ["Goal", "Value", "beside", "best", "by", "inverse", "of"]

Value = Callable[[Result], float | None]


@dataclass(frozen=True)
class Goal:
    text: str
    value: Value
    limit: float
    at_most: bool = True
    unit: str = "x"


def of(row: str, line: str, key: str, scale: float = 1.0) -> Value:
    """A number of a line."""

    def find(record: Result) -> float | None:
        value = record["rows"].get(row, {}).get("lines", {}).get(line, {}).get(key)
        return value * scale if isinstance(value, int | float) else None

    return find


def by(one: Value, other: Value) -> Value:
    """One number by another."""

    def find(record: Result) -> float | None:
        a, b = one(record), other(record)
        return a / b if a is not None and b else None

    return find


def inverse(value: Value) -> Value:
    return by(lambda _: 1.0, value)


def beside(row: str, line: str, *others: str) -> Value:
    """The median over the rounds of a line's time by another's, or by that of several together."""

    def find(record: Result) -> float | None:
        lines = record["rows"].get(row, {}).get("lines", {})
        one, *rest = [lines.get(name, {}).get("rounds", {}) for name in (line, *others)]
        found = [one[number] / sum(it[number] for it in rest) for number in one if all(it.get(number) for it in rest)]
        return statistics.median(found) if found else None

    return find


def best(*values: Value) -> Value:
    """The largest of those that there are."""

    def find(record: Result) -> float | None:
        return max((found for value in values if (found := value(record)) is not None), default=None)

    return find
