"""Turns and rows of a benchmark, and the statistics of their results.

A row runs in rounds, in which each engine has a turn, in random order. A ratio is the median over the rounds of "this
engine's value divided by the baseline's value in that round", so that a change in the machine's speed between rounds
affects both values.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from .operations import Result

__all__ = ["Row", "Turn", "document", "in_order", "p50_of", "percentile", "value_of"]


def percentile(values: list[float], share: float) -> float:
    """Return the value below which `share` (0 to 1) of all values lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def p50_of(result: Result) -> float:
    """Return the median of a turn's samples in microseconds."""
    return percentile(result["samples_us"], 0.5)


def value_of(result: Result) -> float | None:
    """Return a turn's value in microseconds; smaller is better.

    Returns:
        the time per run if the result is a rate, else the median of the samples; None if there are none.
    """
    if "per_second" in result:
        return 1e6 / float(result["per_second"])
    return p50_of(result) if result.get("samples_us") else None


@dataclass
class Turn:
    """Work of an engine in each round of a row."""

    engine: str
    request: dict[str, Any] = field(default_factory=dict)
    """Parameters of the operation."""

    label: str = ""
    """Label that replaces the engine's name."""

    rounds: int | None = None
    """Maximum number of rounds with this turn, for slow engines; None means all rounds."""

    @property
    def name(self) -> str:
        return self.label or self.engine


T = TypeVar("T", bound=Turn)


def in_order(turns: Iterable[T], number: int, order: random.Random) -> list[T]:
    """Return the turns that take part in a round, in random order.

    Args:
        number: the round, counted from 0.
        order: source of the random order.
    """
    found = [turn for turn in turns if turn.rounds is None or number < turn.rounds]
    order.shuffle(found)
    return found


@dataclass
class Row:
    """One measured operation, its turns, and their results by the names of the turns."""

    key: str
    title: str
    turns: Sequence[Turn]
    baseline: str = ""
    """Name of the turn that is the base of the ratios, or several with " + " between them, whose times are added."""

    kind: str = "latency"
    """Kind of the table that shows the row."""

    results: dict[str, list[Result]] = field(default_factory=dict, kw_only=True)
    errors: dict[str, str] = field(default_factory=dict, kw_only=True)
    wrong: dict[str, int] = field(default_factory=dict, kw_only=True)
    """Numbers of wrong answers, if there were any: such a line has no time."""

    def keep(self, name: str, result: Result, results: dict[str, list[Result]] | None = None) -> None:
        """Add the result of a turn to `results`, by default to those of the row.

        After a wrong answer, all results of its line are dropped.
        """
        if result["wrong"]:
            self.wrong[name] = self.wrong.get(name, 0) + result["wrong"]
        if name in self.wrong:
            self.errors[name] = f"{self.wrong[name]} WRONG answers: no time"
            self.results.pop(name, None)
        else:
            (self.results if results is None else results).setdefault(name, []).append(result)

    def bases(self, results: dict[str, list[Result]]) -> list[list[Result]]:
        """Return the results of each part of the baseline."""
        return [results.get(base, []) for base in self.baseline.split(" + ") if base]

    def rounds_of(self, name: str, results: dict[str, list[Result]]) -> dict[str, float]:
        """Return a line's value in each round, by the number of the round.

        If there is a baseline, each value is divided by the baseline's.
        """
        bases = [{it["round"]: value_of(it) for it in base} for base in self.bases(results)]
        found: dict[str, float] = {}
        for result in results.get(name, []):
            value, parts = value_of(result), [base.get(result["round"]) for base in bases]
            if value is not None and None not in parts:
                found[str(result["round"])] = value / sum(it for it in parts if it is not None) if bases else value
        return found

    def summary(self, name: str) -> Result:
        """Return all numbers of a line, or its error."""
        results = self.results.get(name, [])
        if not results:
            wrong = {"wrong": self.wrong[name]} if name in self.wrong else {}
            return {"error": self.errors.get(name, "not run"), **wrong}
        count = sum(it["count"] for it in results)
        line: Result = {"count": count, "wrong": 0}
        if name in self.errors:
            line["failed"] = self.errors[name]
        if samples := [it for result in results for it in result.get("samples_us", [])]:
            line |= {"p50_us": percentile(samples, 0.5), "p99_us": percentile(samples, 0.99)}
            line |= {"min_us": min(samples), "max_us": max(samples)}
            if "bytes" in results[0]:
                line |= {"bytes": results[0]["bytes"], "megabytes_per_second": results[0]["bytes"] / line["p50_us"]}
        if "per_second" in results[0]:
            line["per_second"] = statistics.median(it["per_second"] for it in results)
        for key in ("cpu_self_us", "cpu_children_us"):
            if key in results[0]:
                line[key] = sum(it[key] for it in results) / count
        line["rounds"] = self.rounds_of(name, self.results)
        if line["rounds"] and self.baseline and name != self.baseline:
            line["ratio"] = statistics.median(line["rounds"].values())
        return line


def document(about: Result, rows: Iterable[Row], absent: dict[str, str]) -> Result:
    """Return everything measured as JSON data, in the format of records."""
    table = {}
    for row in rows:
        lines = {turn.name: {"rounds": {}, **row.summary(turn.name)} for turn in row.turns}
        table[row.key] = {"title": row.title, "kind": row.kind, "baseline": row.baseline, "lines": lines}
    return {"machine": about, "rows": table, "absent": absent}
