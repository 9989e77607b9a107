"""What a row of the tables is: what each contender is asked, what came of it, and the one line that says so."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from measuring import results
from measuring.operations import Result
from measuring.results import p50_of, percentile

__all__ = ["Result", "Target", "Turn", "Workload"]

SUMS = ("cpu_server_us", "cpu_plain_us", "cpu_waiting_us")
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


@dataclass
class Turn(results.Turn):
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
class Workload(results.Row):
    turns: Sequence[Turn]
    baseline: str = "bare C"
    rounds: int = 5
    pinned: bool = False
    """Each turn is followed by one with all threads and shells of the contender on one processor."""
    pinned_results: dict[str, list[Result]] = field(default_factory=dict)
    beside: str = ""
    """What goes on meanwhile: a key of `BESIDE` in servers.py."""

    def keep(self, name: str, result: Result, results: dict[str, list[Result]] | None = None) -> None:
        super().keep(name, result, results)
        if name in self.wrong:
            self.pinned_results.pop(name, None)

    def summary(self, name: str) -> Result:
        """One line of the table."""
        line = super().summary(name)
        if "error" in line:
            return line
        results = self.results[name]
        line |= {key: sum(r[key] for r in results) / line["count"] for key in SUMS if key in results[0]}
        line |= {key: statistics.median(r[key] for r in results) for key in MEDIANS if key in results[0]}
        line |= {key: max(r[key] for r in results) for key in WORST if key in results[0]}
        if "plain_us" in results[0]:
            line["plain_p50_us"] = percentile([s for r in results for s in r["plain_us"]], 0.5)
            line["added_share"] = line["p50_us"] / line["plain_p50_us"] - 1
        if self.kind == "idle":
            used = sum(r["cpu_self_us"] + r["cpu_children_us"] for r in results)
            line["cpu_share"] = used / (1e6 * sum(r["seconds"] for r in results))
        if "per_second" in line:
            if "ratio" in line:  # of rates, not of times
                line["ratio"] = 1 / line["ratio"]
        elif "p50_us" in line:
            line["lowest_us"] = lowest(results)
            if "ratio" in line:
                line["lowest_ratio"] = line["lowest_us"] / sum(map(lowest, self.bases(self.results)))
        return line | self.summary_pinned(name)

    def summary_pinned(self, name: str) -> Result:
        """The same turns with both ends on one processor."""
        results = self.pinned_results.get(name, [])
        if not results:
            return {}
        line: Result = {"pinned_us": statistics.median(map(p50_of, results))}
        if "cpu_self_us" in results[0]:
            line["pinned_cpu_self_us"] = sum(r["cpu_self_us"] for r in results) / sum(r["count"] for r in results)
        ratios = self.rounds_of(name, self.pinned_results)
        if ratios and self.baseline and name != self.baseline:
            line["pinned_ratio"] = statistics.median(ratios.values())
        return line


def lowest(results: list[Result]) -> float:
    """The best round's median."""
    return min(map(p50_of, results))


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
