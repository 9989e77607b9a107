"""What is measured: the rows, which engines have a turn in each, and what has to come out.

Nothing here is measured without its answer being looked at: see the operations of `worker`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from swerex_c.bench import rounds

__all__ = ["BYTES", "OURS", "ORIGINAL", "PLACE", "PROGRAMS", "PTY", "ROWS", "WARM", "Row", "Turn", "chosen"]

OURS = "swerex_c"
WARM = "swerex_c, warm"
"""With shells that are started ahead of time, startup files and all."""
PTY = "raw pty"
PROGRAMS = "subprocess.run"
ORIGINAL = "swe-rex"
PLACE = "place"
"""Stands for the place that the caller names: a server, an image."""

BYTES = 1_000_000
"""A MB."""


@dataclass
class Turn(rounds.Turn):
    """What an engine does in a round, for which there has to be time."""

    least: float = 0.01
    """Seconds that the shortest turn takes, as far as it is known: one for which there is less time is left out."""


@dataclass
class Row:
    """One thing that a user waits for."""

    key: str
    title: str
    operation: str
    request: dict[str, Any]
    turns: list[Turn]
    limit: str = PTY
    """The engine by which the ratios are."""

    weight: float = 1.0
    """The share of the time."""

    like: str = ""
    times: float = 1.0
    """Another row, of which one sample takes so many times less: it tells whether there is time for one of these."""

    opens: bool = False
    """Whether that is so only for the first time, when shells are started that stay."""


def _rows() -> list[Row]:
    slow: dict[str, Any] = {"rounds": 2, "least": 0.5}
    rows = []
    for key, title, command in (
        ("builtin", "a builtin: true", "true"),
        ("program", "a program: /bin/true", "/bin/true"),
    ):
        turns = [Turn(OURS), Turn(PTY), Turn(PROGRAMS), Turn(ORIGINAL, rounds=3, least=0.3), Turn(PLACE)]
        rows.append(Row(key, title, "command", {"text": command}, turns))
    # Warm shells are made again after each session: who makes sessions without a pause waits for them after all.
    warm = Turn(WARM, {"rest": 0.05}, least=0.1)
    turns = [Turn(OURS), warm, Turn(PTY), Turn(ORIGINAL, **slow), Turn(PLACE, least=0.2)]
    rows.append(Row("create", "a session, until its first prompt", "create", {}, turns))
    turns = [Turn(OURS), Turn(PTY), Turn(PROGRAMS), Turn(ORIGINAL, rounds=1, least=0.5), Turn(PLACE)]
    rows.append(Row("output-1", "1 MB of output", "output", {"megabytes": 1}, turns, weight=0.7))
    turns = [Turn(OURS, **slow), Turn(PTY, **slow), Turn(PROGRAMS, **slow), Turn(PLACE, **slow)]
    rows.append(Row("output-64", "64 MB of output", "output", {"megabytes": 64}, turns, like="output-1", times=64))
    for sessions in (16, 64):
        turns = [Turn(OURS, least=0.1), Turn(PTY, least=0.2), Turn(PROGRAMS, least=0.1)]
        if sessions == 16:
            turns.append(Turn(ORIGINAL, {"sessions": 4}, f"{ORIGINAL}, 4 sessions", 1, 2.0))
        turns.append(Turn(PLACE, least=0.5))
        title = f"{sessions} sessions at once: true"
        asks = {"sessions": sessions}
        rows.append(Row(f"fleet-{sessions}", title, "fleet", asks, turns, like="create", times=sessions, opens=True))
    turns = [Turn(OURS, least=0.1), Turn(PTY, least=0.1), Turn(ORIGINAL, rounds=1, least=1.0), Turn(PLACE, least=0.2)]
    rows.append(Row("interrupt", "interrupt of sleep 100", "interrupt", {}, turns))
    turns = [Turn(OURS), Turn(PROGRAMS), Turn(ORIGINAL, rounds=3), Turn(PLACE)]
    rows.append(Row("execute", "execute: true, without a session", "execute", {}, turns, PROGRAMS, 0.7))
    return rows


ROWS = tuple(row.key for row in _rows())
"""The names of all rows, in order."""


def chosen(wanted: list[str], engines: list[str]) -> list[Row]:
    """Fresh rows: those wanted, or all, with the turns of these engines."""
    rows = [row for row in _rows() if not wanted or row.key in wanted]
    for row in rows:
        row.turns = [turn for turn in row.turns if turn.engine in engines]
    return rows
