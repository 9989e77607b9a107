"""What a row of the tables is: what each contender is asked, what came of it, and the one line that says so.

A ratio is the median over the rounds of "p50 of this contender by p50 of the baseline in the same round".
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Any

from shared import of_bench

__all__ = ["Result", "Target", "Turn", "Workload", "median_ratio", "p50_of", "percentile"]

Result = dict[str, Any]

_figures = of_bench("figures")
percentile, p50_of, median_ratio = _figures.percentile, _figures.p50_of, _figures.median_ratio
_Turn: type[Any] = of_bench("rounds").Turn


@dataclass
class Turn(_Turn):
    """What one contender does in each round of a workload."""

    fresh: bool = False
    """In a process of its own, so that its memory and its descriptors are those of this turn."""
    descriptors: int = 0
    """Open files that it may need; the limit is raised so far."""

    @property
    def arguments(self) -> list[object]:
        """Of a contender that is a program."""
        found: list[object] = self.request.get("arguments", [])
        return found


@dataclass
class Workload:
    key: str
    title: str
    turns: list[Turn]
    baseline: str = "bare C"
    """A turn's name, or several with " + " between them: then their times are added up."""
    kind: str = "latency"
    """Which columns make sense: a key of `COLUMNS`."""
    rounds: int = 5
    pinned: bool = False
    """Each turn is followed by one with all threads and shells of the contender on one processor."""
    results: dict[str, list[Result]] = field(default_factory=dict)
    pinned_results: dict[str, list[Result]] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    wrong: dict[str, int] = field(default_factory=dict)
    """Wrong answers, of those that gave any: such a line has no time."""
    beside: str = ""
    """What goes on meanwhile: a key of `BESIDE` in servers.py."""

    def keep(self, name: str, result: Result, results: dict[str, list[Result]]) -> None:
        """Puts a turn's result to the others, which are `results` or `pinned_results`, unless an answer was wrong."""
        if result["wrong"]:
            self.wrong[name] = self.wrong.get(name, 0) + result["wrong"]
        if name in self.wrong:
            self.errors[name] = f"{self.wrong[name]} wrong answers: no time"
            self.results.pop(name, None)
            self.pinned_results.pop(name, None)
        else:
            results.setdefault(name, []).append(result)

    def summary(self, name: str) -> Result:
        return summarise(self, name)


SUMS = ("cpu_self_us", "cpu_children_us", "cpu_server_us", "cpu_plain_us", "cpu_waiting_us")
"""Of all samples of a turn together; a line has them per sample."""
MEDIANS = (
    "speedup",
    "rss_per_session_kb",
    "fds_per_session",
    "fds_per_session_at_work",
    "output_rate",
    "instructions",
)
WORST = ("rss_growth_kb", "rss_growth_server_kb", "own_max_us", "own_p99_us", "spread")


def summarise(workload: Workload, name: str) -> Result:
    """One line of the table."""
    results = workload.results.get(name, [])
    if not results:
        wrong = {"wrong": workload.wrong[name]} if name in workload.wrong else {}
        return {"error": workload.errors.get(name, "not run"), **wrong}
    line: Result = _figures.together(results)
    if name in workload.errors:
        line["failed"] = workload.errors[name]
    if "p50_us" in line:
        line["lowest_us"] = lowest(results)
    line |= {key: sum(r[key] for r in results) / line["count"] for key in SUMS if key in results[0]}
    line |= {key: statistics.median(r[key] for r in results) for key in MEDIANS if key in results[0]}
    line |= {key: max(r[key] for r in results) for key in WORST if key in results[0]}
    if "plain_us" in results[0]:
        line["plain_p50_us"] = percentile([s for r in results for s in r["plain_us"]], 0.5)
        line["added_share"] = line["p50_us"] / line["plain_p50_us"] - 1
    if workload.kind == "idle":
        used = sum(r["cpu_self_us"] + r["cpu_children_us"] for r in results)
        line["cpu_share"] = used / (1e6 * sum(r["seconds"] for r in results))
    bases = [workload.results.get(base, []) for base in workload.baseline.split(" + ")]
    if all(bases) and name != workload.baseline:
        by_rate = "per_second" in results[0]
        line["ratio"] = median_ratio(results, bases, (lambda r: float(r["per_second"])) if by_rate else p50_of)
        if "lowest_us" in line and not by_rate:
            line["lowest_ratio"] = line["lowest_us"] / sum(map(lowest, bases))
    return line | summarise_pinned(workload, name)


def lowest(results: list[Result]) -> float:
    """The best round's median."""
    return min(map(p50_of, results))


def summarise_pinned(workload: Workload, name: str) -> Result:
    """The same turns with both ends on one processor."""
    results = workload.pinned_results.get(name, [])
    if not results:
        return {}
    line: Result = {
        "pinned_us": statistics.median(map(p50_of, results)),
        "pinned_wrong": sum(r["wrong"] for r in results),
    }
    if "cpu_self_us" in results[0]:
        line["pinned_cpu_self_us"] = sum(r["cpu_self_us"] for r in results) / sum(r["count"] for r in results)
    bases = [workload.pinned_results.get(base, []) for base in workload.baseline.split(" + ")]
    if all(bases) and name != workload.baseline:
        line["pinned_ratio"] = median_ratio(results, bases, p50_of)
    return line


@dataclass
class Target:
    text: str
    value: float | None
    limit: float
    at_most: bool
    unit: str = ""

    @property
    def met(self) -> bool:
        return self.value is not None and (self.value <= self.limit if self.at_most else self.value >= self.limit)
