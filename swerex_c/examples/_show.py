"""What a batch shows while it runs, and when it has run."""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from swerex_c.examples._results import Result
from swerex_c.pool import PoolStats

__all__ = ["progress", "summary"]

_STYLES = {"resolved": "green", "failed": "yellow", "limit": "magenta", "error": "red"}


@contextlib.contextmanager
def progress(console: Console, all_tasks: int, before: Iterable[Result]) -> Iterator[Callable[[Result], None]]:
    """A function that is told of each result: a bar on a terminal, else a line for each."""
    counts: Counter[str] = Counter(result.outcome for result in before)
    done = counts.total()
    if not console.is_terminal:

        def print_line(result: Result) -> None:
            nonlocal done
            done += 1
            more = f" {result.error}: {result.message}" if result.error else ""
            line = f"{done}/{all_tasks} {result.id}: {result.outcome} in {result.seconds:.2f} s{more}"
            console.print(Text(line.replace("\n", " ")), soft_wrap=True)

        yield print_line
        return

    columns = (
        *(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[counts]}")),
        *(TimeElapsedColumn(), TimeRemainingColumn()),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("tasks", total=all_tasks, completed=done, counts=_told(counts))

        def advance(result: Result) -> None:
            counts[result.outcome] += 1
            bar.update(task, advance=1, counts=_told(counts))

        yield advance


def _told(counts: Counter[str]) -> str:
    return "  ".join(f"[{style}]{counts[outcome]} {outcome}[/]" for outcome, style in _STYLES.items())


def summary(
    console: Console,
    all_tasks: int,
    results: Sequence[Result],
    *,
    new: int,
    seconds: float,
    commands: int,
    pool: PoolStats,
) -> None:
    """A table of what came of the tasks, those of earlier runs among them, and how quickly."""
    table = Table(title="Batch", box=None, show_header=False, title_justify="left", padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    counts: Counter[str] = Counter(result.outcome for result in results)
    rows: list[tuple[str, str]] = [
        ("tasks", str(all_tasks)),
        ("resolved", str(counts["resolved"])),
        ("failed", str(counts["failed"])),
    ]
    for outcome, name in (("limit", "at a limit"), ("error", "errors")):
        rows.append((name, str(counts[outcome])))
        kinds = Counter(result.error for result in results if result.outcome == outcome)
        rows += [(f"  {kind}", str(count)) for kind, count in kinds.most_common()]
    rows.append(("not done", str(all_tasks - len(results))))
    rows.append(("done again in a fresh environment", str(sum(result.attempts > 1 for result in results))))
    times = sorted(result.seconds for result in results if result.outcome in ("resolved", "failed"))
    if times:
        rows += [(f"time of a task, p{share}", f"{_percentile(times, share):.2f} s") for share in (50, 95)]
    rows.append(("this run", f"{new} tasks in {seconds:.1f} s"))
    rows.append(("commands a second", f"{commands / seconds:,.1f}" if seconds > 0 else "-"))
    rows.append(("environments started", f"{pool.counts.started}, {pool.counts.starting_seconds.mean:.3f} s each"))
    rows.append(("environments replaced", str(pool.counts.replaced)))
    rows.append(("waiting for an environment", f"{pool.counts.waiting_seconds.mean:.3f} s on average"))
    for name, value in rows:
        table.add_row(name, value)
    console.print(table)


def _percentile(ordered: Sequence[float], share: int) -> float:
    """The smallest value that at least this share of the values does not exceed."""
    return ordered[max(0, math.ceil(len(ordered) * share / 100) - 1)]
