"""The cases of many sessions at once: commands, doing nothing, the event loop, threads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from extent import Extent
from files import Files
from rows import Turn, Workload

__all__ = ["rows"]

COMMANDS = 6400
"""In all sessions of a turn together."""

FILES = 4
"""That a session may have open at work."""


def rows(extent: Extent, files: Files) -> Iterator[Workload]:
    yield fleet()
    for sessions in extent.sessions:
        yield growing_fleet(sessions)
    for sessions in extent.idle:
        yield idle(extent, sessions)
    yield stall(extent)
    threads = {"operation": "threads", "count": 500 if extent.quick else 3000}
    turns = [Turn(name, threads) for name in ("core", "ptyprocess")]
    title = "two threads, a session each, beside one alone (commands that compute)"
    yield Workload("threads", title, turns, "", "speedup", 3)


def fleet() -> Workload:
    many = {"operation": "fleet", "sessions": 64, "commands": 50}
    turns = [
        Turn("bare C", {"arguments": ["fleet", 64, 50]}),
        *(Turn(name, many) for name in ("ours", "ours, uvloop", "core", "ptyprocess", "pipes")),
        Turn("core, one thread", many),
        Turn("pexpect", many, rounds=1),
        Turn("original", {**many, "sessions": 4, "commands": 3}, "original, 4 sessions", rounds=1),
    ]
    return Workload("fleet", "64 sessions, 50 commands each, at once", turns, kind="fleet")


def growing_fleet(sessions: int) -> Workload:
    """Each engine in a new process, so that its memory is what these sessions take."""
    commands = max(4, min(400, COMMANDS // sessions))
    many: dict[str, Any] = {"operation": "fleet", "sessions": sessions, "commands": commands, "rests": True}
    need = FILES * sessions
    turns = [
        Turn("bare C", {"arguments": ["fleet", sessions, commands]}),
        Turn("ours", many, fresh=True, descriptors=need),
        Turn("core, one thread", many, "core", fresh=True, descriptors=need),
        Turn("ptyprocess", many, fresh=True, descriptors=need),
        Turn("pipes", many, fresh=True, descriptors=need),
    ]
    title = f"{sessions} sessions at once, `true`"
    return Workload(f"fleet-{sessions}", title, turns, kind="growing fleet", rounds=3 if sessions <= 64 else 2)


def idle(extent: Extent, sessions: int) -> Workload:
    nothing = {"operation": "idle", "sessions": sessions, "seconds": extent.idle_seconds}
    names = ("ours", "core", "ptyprocess", "pipes")
    turns = [Turn(name, nothing, fresh=True, descriptors=FILES * sessions) for name in names]
    if not extent.quick and sessions == 10:
        turns.append(Turn("original", nothing, fresh=True))
    return Workload(f"idle-{sessions}", f"{sessions} idle sessions for {extent.idle_seconds:g} s", turns, "", "idle", 1)


def stall(extent: Extent) -> Workload:
    loaded: dict[str, Any] = {"operation": "stall", "sessions": extent.stalled, "pieces": 20 if extent.quick else 300}
    need = FILES * extent.stalled
    turns = [Turn(name, loaded, fresh=True, descriptors=need) for name in ("ours", "ours, uvloop", "pipes")]
    turns += [
        Turn("ours", {**loaded, "size": 10_000_000, "pieces": loaded["pieces"] // 10}, "ours, 10 MB at a time"),
        Turn("ours", {**loaded, "sessions": 1, "pieces": 0}, "nothing but the timer"),
    ]
    title = f"how late a timer of 1 ms is: {extent.stalled} sessions, 1 MB of output again and again, 100 MB/s at most"
    return Workload("stall", title, turns, "nothing but the timer", "late", 2)
