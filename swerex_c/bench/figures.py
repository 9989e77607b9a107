"""The numbers of a row: of samples taken in rounds, in which each engine has its turn.

A ratio is the median over the rounds of "this engine's value by the limit's in the same round", so that a machine that
changes its mood between rounds changes both sides.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

__all__ = ["Result", "median_ratio", "p50_of", "percentile", "together"]

Result = dict[str, Any]
"""What came of a turn: `round`, `count`, `wrong`, `samples_us` or `per_second`, CPU in microseconds."""


def percentile(values: list[float], share: float) -> float:
    """The value that this share of all of them are below."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def p50_of(result: Result) -> float:
    """The middle of a turn's samples."""
    return percentile(result["samples_us"], 0.5)


def median_ratio(ours: list[Result], bases: list[list[Result]], value: Callable[[Result], float]) -> float | None:
    """By the sum of the bases; pairs the results of the same round. None if no round has all of them."""
    beside = [{result["round"]: value(result) for result in base} for base in bases]
    sums = {a["round"]: sum(base.get(a["round"], 0.0) for base in beside) for a in ours}
    ratios = [value(a) / sums[a["round"]] for a in ours if sums[a["round"]]]
    return statistics.median(ratios) if ratios else None


def together(results: list[Result]) -> Result:
    """The turns of a line as one: how many answers and wrong ones, times over all samples, rates of the middle turn."""
    line: Result = {"count": sum(it["count"] for it in results), "wrong": sum(it["wrong"] for it in results)}
    if samples := [it for result in results for it in result.get("samples_us", [])]:
        line |= {"p50_us": percentile(samples, 0.5), "p99_us": percentile(samples, 0.99)}
        line |= {"min_us": min(samples), "max_us": max(samples)}
        if "bytes" in results[0]:
            line |= {"bytes": results[0]["bytes"], "megabytes_per_second": results[0]["bytes"] / line["p50_us"]}
    if "per_second" in results[0]:
        line["per_second"] = statistics.median(it["per_second"] for it in results)
    return line
