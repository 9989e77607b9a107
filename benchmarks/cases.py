"""The cases of one session: what is measured with which engines, and what they have to answer.

Those of many sessions are in cases_many.py, those of many bytes in cases_bytes.py; the goals are in goals.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import cases_bytes
import cases_many
import cases_places
import counts
from extent import Extent
from files import Files
from rows import Turn, Workload
from texts import ACTIONS

__all__ = ["workloads"]

SLOW = ("original", "tmux", "replwrap", "pexpect, as it comes", "subprocess")
"""Engines that have fewer rounds."""

PROGRAMS = ("bare C", "engine", "Tcl Expect")
"""Engines that are programs, and get arguments."""

OURS = ("ours", "ours, uvloop", "core")
BY_HAND = {"pexpect": 500, "ptyprocess": 2000, "pipes": 1000, "Tcl Expect": 1000}
"""Commands in a turn of the engines that are quick: each turn is to take a tenth of a second or so."""


def workloads(extent: Extent, files: Files) -> Iterator[Workload]:
    """Every row of the table. Numbers are chosen so that each contender has about the same time, the original less."""
    for rows in (commands, sessions, cases_bytes.outputs, cases_bytes.patterns, cases_many.rows, actions):
        for row in rows(extent, files):
            row.rounds = min(row.rounds, extent.rounds)
            yield row
    places = (cases_places.remote, cases_places.docker)
    for rows in (cases_bytes.matching, cases_bytes.frames, interrupts, calls, counts.rows, *places):
        for row in rows(extent, files):
            row.rounds = min(row.rounds, extent.rounds)
            yield row


def command(extent: Extent, key: str, title: str, text: str, counts: dict[str, int], rest_us: int = 0) -> Workload:
    """One command again and again in one session."""
    turns = []
    for name, usual in counts.items():
        number = extent.number(usual)
        if name in PROGRAMS:
            turns.append(Turn(name, {"arguments": ["command", number, text, rest_us]}))
            continue
        request = {"text": text, "count": number, "warm": min(50, number // 2), "rest_us": rest_us}
        turns.append(Turn(name, {"operation": "command", **request}, rounds=2 if name in SLOW else None))
    # While resting the contenders burn time, so the CPU of a rested row says nothing.
    return Workload(key, title, turns, kind="rested" if rest_us else "latency", pinned=not rest_us)


def commands(extent: Extent, files: Files) -> Iterator[Workload]:
    slow = {"subprocess": 100, "tmux": 20, "replwrap": 10, "pexpect, as it comes": 10, "original": 10}
    everyone = {"bare C": 2000, "engine": 2000, **dict.fromkeys(OURS, 2000), **BY_HAND, **slow}
    some = {"bare C": 300, "engine": 300, **dict.fromkeys(OURS, 300), **dict.fromkeys(BY_HAND, 200), "original": 5}
    yield command(extent, "true", 'true (run_in_session, check="silent"), back to back', "true", everyone)
    yield command(extent, "true-rested", "true, 200 us after the last: shell asleep", "true", everyone, 200)
    yield command(extent, "bin-true", "/bin/true", "/bin/true", some)


def sessions(extent: Extent, files: Files) -> Iterator[Workload]:
    starts = 10 if extent.quick else 30
    create = {"operation": "create", "count": starts}
    turns = [
        Turn("bare C", {"arguments": ["start", starts, "user"]}),
        Turn("bare C", {"arguments": ["start", starts, "rc"]}, "bare C, no readline"),
        Turn("bare C", {"arguments": ["start", starts, "bare"]}, "bare C, no startup files"),
        *(Turn(name, create) for name in ("ours", "core")),
        Turn("pexpect", create, "pexpect, no startup files"),
        Turn("Tcl Expect", {"arguments": ["create", 5]}, "Tcl Expect, no startup files", rounds=2),
        Turn("replwrap", {**create, "count": 2}, rounds=1),
        Turn("tmux", {**create, "count": 2}, rounds=1),
        Turn("original", {**create, "count": 3}, rounds=1),
    ]
    yield Workload("create", "a session: start until its first prompt", turns)

    warm = {"operation": "create_warm", "count": starts}
    turns = [
        Turn("ours", create, "started then"),
        Turn("ours, warm", warm, "ours"),
        Turn("ours, warm", {**warm, "files": ["/dev/null"]}, "ours, with a startup_source"),
        Turn("ours, warm", {**warm, "count": 2, "together": 64}, "ours, 64 at once, each"),
        Turn("ours, warm, files read then", warm, "ours, startup files read then"),
    ]
    yield Workload("create-warm", "a session, from shells that wait", turns, "started then")


def actions(extent: Extent, files: Files) -> Iterator[Workload]:
    replay = {"operation": "replay", "count": 2 if extent.quick else 5, "actions": ACTIONS}
    turns = [Turn(name, replay) for name in ("ours", "core", "ptyprocess", "pipes")]
    turns.append(Turn("original", {**replay, "count": 1}, rounds=1))
    title = f"an agent's {len(ACTIONS)} actions: here-documents, grep, tests, git, long output"
    yield Workload("replay", title, turns, "ptyprocess", rounds=3)


def interrupts(extent: Extent, files: Files) -> Iterator[Workload]:
    interrupt = {"operation": "interrupt", "count": 2 if extent.quick else 5}
    turns = [
        Turn("bare C", {"arguments": ["interrupt", 3]}),
        *(Turn(name, interrupt) for name in ("ours", "core", "pexpect", "ptyprocess")),
        Turn("ours", {**interrupt, "operation": "interrupt_running"}, "ours, while its caller waits"),
        Turn("original", {**interrupt, "count": 2}, rounds=1),
    ]
    yield Workload("interrupt", "interrupt of `sleep 100`, after its caller gave up on it", turns, rounds=2)


def calls(extent: Extent, files: Files) -> Iterator[Workload]:
    execute = {"operation": "execute", "count": 40 if extent.quick else 150}
    turns = [Turn(name, execute) for name in ("ours", "subprocess", "original")]
    yield Workload("execute", 'execute(Command("true", shell=True))', turns, "subprocess")
    imports = {"operation": "imports", "count": 3 if extent.quick else 5}
    turns = [Turn(name, imports) for name in ("ours", "original")]
    turns.append(Turn("ours", {**imports, "module": "pydantic"}, "pydantic alone"))
    yield Workload("import", "import of runtime.local", turns, "original", "import", 3)
