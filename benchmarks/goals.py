"""The goals, as data: a number of a run, what it may be at most or has to be at least, and where it comes from.

They are looked up in a record, so a record says by itself whether it meets them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import goals_places
from growth import GROWTHS
from rows import Target
from values import Goal, Value, beside, best, by, inverse, of

__all__ = ["GOALS", "targets"]

def power(text: str, line: str) -> Value:
    """The exponent of a growth."""
    (growth,) = [it for it in GROWTHS if it.text == text]
    return lambda record: growth.exponents(record).get(line)


def single(row: str, what: str, line: str, limit: float) -> list[Goal]:
    """A latency by the C loop's, in three ways: it varies with where the scheduler puts both ends."""
    return [
        Goal(f"{what}: median, by the C loop", of(row, line, "ratio"), limit),
        Goal(f"{what}: lowest round, by the C loop", of(row, line, "lowest_ratio"), limit),
        Goal(f"{what}: on one processor, by the C loop", of(row, line, "pinned_ratio"), limit),
    ]


def share_of_c(sessions: str, row: str) -> list[Goal]:
    rate = best(of(row, "core", "ratio"), of(row, "core, one thread", "ratio"))
    return [
        Goal(f"{sessions} sessions, asyncio: commands/s by the C epoll loop", of(row, "ours", "ratio"), 0.55, False),
        Goal(f"{sessions} sessions, asyncio: CPU of this process", of(row, "ours", "cpu_self_us"), 20, True, "us"),
        Goal(f"{sessions} sessions, core: commands/s by the C epoll loop", rate, 0.85, False),
    ]


def outputs() -> Iterator[Goal]:
    names = {"output": "MB in lines", "line": "MB in one line"}
    for row, what in names.items():
        for size in (1, 8, 64, 100, 1000):
            share = inverse(of(f"{row}-{size}", "ours", "ratio"))
            yield Goal(f"{size} {what}: bytes/s by the C loop", share, 0.9, False)
    for what in ("lines", "one line"):
        exponent = power(f"time of output in {what}, by its size", "ours")
        yield Goal(f"output in {what}: exponent of its time", exponent, 1.05, True, "")
    speeds = [of(f"{row}-100", "ours", "megabytes_per_second") for row in ("line", "output")]
    yield Goal("100 MB in one line: bytes/s by those in lines", by(*speeds), 0.9, False)
    for size in (64, 100, 1000):
        kept = of(f"output-{size}", "ours", "rss_growth_kb", 1000 / (size * 1e6))
        yield Goal(f"{size} MB kept: memory by their size (bytes and text are 2)", kept, 2.2)
        for line, limit in (("ours, bounded", 16), ("ours, streamed", 64)):
            yield Goal(
                f"{size} MB, {line[6:]}: memory", of(f"output-{size}", line, "rss_growth_kb", 1e-3), limit, True, "MB"
            )


GOALS: list[Goal] = [
    *single("true", "true, asyncio", "ours", 2.0),
    Goal("true, asyncio: CPU of this process", of("true", "ours", "cpu_self_us"), 30, True, "us"),
    *single("true", "true, sync core", "core", 1.2),
    Goal("true: times faster than the original", inverse(beside("true", "ours", "original")), 1000, False),
    *(Goal(f"true: by {it} by hand", beside("true", "ours", it), 1.5) for it in ("pexpect", "ptyprocess")),
    Goal("true, shell asleep, asyncio: by the C loop", of("true-rested", "ours", "ratio"), 2.0),
    *single("bin-true", "/bin/true, asyncio", "ours", 1.1),
    Goal("create_session: by a bare bash's start", of("create", "ours", "ratio"), 1.15),
    Goal("create_session from a warm pool", of("create-warm", "ours", "p50_us"), 200, True, "us"),
    *outputs(),
    Goal("20 literals: CPU GB/s", of("match-literal", "ours", "megabytes_per_second", 1e-3), 1.5, False, "GB/s"),
    Goal("5 regexes: CPU GB/s", of("match-regex", "ours", "megabytes_per_second", 1e-3), 1.0, False, "GB/s"),
    Goal("one of 20 in 16 MB: time added to reading", of("patterns", "ours", "added_share", 100), 20, True, "%"),
    *share_of_c("64", "fleet"),
    *share_of_c("1,000", "fleet-1000"),
    Goal("1,000 sessions: memory of ours a session", of("idle-1000", "ours", "rss_per_session_kb"), 10, True, "kB"),
    Goal("1,000 sessions: descriptors a session at rest", of("idle-1000", "ours", "fds_per_session"), 2, True, ""),
    Goal("1,000 idle sessions: CPU (0.0 %)", of("idle-1000", "ours", "cpu_share", 100), 0.05, True, "%"),
    Goal("event loop: longest stall of our own", of("stall", "ours", "own_max_us", 1e-3), 1, True, "ms"),
    Goal("event loop: p99 of a timer's delay, whatever its cause", of("stall", "ours", "p99_us", 1e-3), 1, True, "ms"),
    Goal("interrupt of sleep 100", of("interrupt", "ours", "p50_us", 1e-3), 3, True, "ms"),
    *goals_places.remote(),
    *goals_places.docker(),
    *(
        Goal(f"frames: {operation} {size:,} bytes, by ormsgpack", of(f"{operation}-{size}", "ours", "ratio"), 1.0)
        for size in (100, 1_000_000)
        for operation in ("encode", "decode")
    ),
    Goal("import of the runtime, by the original's", of("import", "ours", "ratio"), 0.334),
    Goal("two threads, two sessions: by one", of("threads", "core", "speedup"), 1.8, False),
]


def targets(record: dict[str, Any]) -> Iterator[Target]:
    """Every goal with what a record says of it, None where it was not measured."""
    for goal in GOALS:
        yield Target(goal.text, goal.value(record), goal.limit, goal.at_most, goal.unit)
