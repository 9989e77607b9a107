"""Output of a batch: a line for each result, and a table at the end."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from swerex_c.examples._results import Result
from swerex_c.pool.pool import PoolStats
from swerex_c.utils.visible import visible

__all__ = ["print_result", "print_summary"]


def print_result(result: Result, number: int, all_tasks: int) -> None:
    """Print the result of a task, the `number`th that is done."""
    more = f" {result.error}: {result.message}" if result.error else ""
    line = f"{number}/{all_tasks} {result.id}: {result.outcome} in {result.seconds:.2f} s{more}"
    print(visible(line.replace("\n", " ")), flush=True)


def print_summary(
    all_tasks: int, results: Sequence[Result], new: Sequence[Result], *, seconds: float, pool: PoolStats
) -> None:
    """Print a table of the results.

    Args:
        results: results of this run and of earlier runs.
        new: results of this run, which took `seconds`.
    """
    counts: Counter[str] = Counter(result.outcome for result in results)
    rows = [("tasks", str(all_tasks)), ("resolved", str(counts["resolved"])), ("failed", str(counts["failed"]))]
    for outcome, name in (("limit", "at a limit"), ("error", "errors")):
        rows.append((name, str(counts[outcome])))
        kinds = Counter(result.error for result in results if result.outcome == outcome)
        rows += [(f"  {kind}", str(count)) for kind, count in kinds.most_common()]
    rows.append(("not done", str(all_tasks - len(results))))
    rows.append(("done again in a fresh environment", str(sum(result.attempts > 1 for result in results))))
    times = sorted(result.seconds for result in results if result.outcome in ("resolved", "failed"))
    for share in (50, 95) if times else ():
        # The smallest time such that at least this share of the others do not exceed it.
        rows.append((f"time of a task, p{share}", f"{times[math.ceil(len(times) * share / 100) - 1]:.2f} s"))
    rows += [
        ("this run", f"{len(new)} tasks in {seconds:.1f} s"),
        ("commands a second", f"{sum(result.commands for result in new) / seconds:,.1f}"),
        ("environments started", f"{pool.counts.started}, {pool.counts.starting_seconds.mean:.3f} s each"),
        ("environments replaced", str(pool.counts.replaced)),
        ("waiting for an environment", f"{pool.counts.waiting_seconds.mean:.3f} s on average"),
    ]
    print("Batch")
    for name, value in rows:
        print(f"{name:34}{value:>24}")
