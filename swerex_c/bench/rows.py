"""Rows of `swerex-c bench`: the operation of each row, and its engines.

The operations check the answer of everything that is measured here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from . import results

__all__ = ["OURS", "ORIGINAL", "PLACE", "PROGRAMS", "PTY", "ROWS", "WARM", "Row", "Turn", "chosen"]

OURS = "swerex_c"
WARM = "swerex_c, warm"
"""Engine with pre-started shells that have already read their startup files."""
PTY = "raw pty"
PROGRAMS = "subprocess.run"
ORIGINAL = "swe-rex"
PLACE = "place"
"""Engine name for the deployment that the caller specifies, such as a server or an image."""


@dataclass
class Turn(results.Turn):
    """Work of an engine in a round, with the time that it needs at least."""

    least: float = 0.01
    """Estimated seconds of the shortest possible turn; the turn is left out if there is less time."""


@dataclass
class Row(results.Row):
    """One measured operation, which a user waits for."""

    turns: Sequence[Turn]
    baseline: str = PTY
    operation: str = ""
    request: dict[str, Any] = field(default_factory=dict)
    """Parameters of the operation; those of a turn override them."""

    weight: float = 1.0
    """Weight of the row's share of the time."""

    like: Row | None = None
    times: float = 1.0
    """`times` samples of the row `like` take as long as one of this row, to predict whether there is time for it."""

    opens: bool = False
    """True if that applies only to the first turn, which starts the shells that later turns use."""


def _rows() -> list[Row]:
    slow: dict[str, Any] = {"rounds": 2, "least": 0.5}
    rows = []
    for key, title, text in (("builtin", "a builtin: true", "true"), ("program", "a program: /bin/true", "/bin/true")):
        turns = [Turn(OURS), Turn(PTY), Turn(PROGRAMS), Turn(ORIGINAL, rounds=3, least=0.3), Turn(PLACE)]
        rows.append(Row(key, title, turns, operation="command", request={"text": text}))
    # Each session uses up a pre-started shell: without a pause, the next sessions would wait for new shells.
    warm = Turn(WARM, {"rest": 0.05}, least=0.1)
    turns = [Turn(OURS), warm, Turn(PTY), Turn(ORIGINAL, **slow), Turn(PLACE, least=0.2)]
    create = Row("create", "a session, until its first prompt", turns, operation="create")
    turns = [Turn(OURS), Turn(PTY), Turn(PROGRAMS), Turn(ORIGINAL, rounds=1, least=0.5), Turn(PLACE)]
    output = Row("output-1", "1 MB of output", turns, operation="output", request={"megabytes": 1}, weight=0.7)
    turns = [Turn(OURS, **slow), Turn(PTY, **slow), Turn(PROGRAMS, **slow), Turn(PLACE, **slow)]
    long: dict[str, Any] = {"operation": "output", "request": {"megabytes": 64}}
    rows += [create, output, Row("output-64", "64 MB of output", turns, **long, like=output, times=64)]
    for sessions in (16, 64):
        turns = [Turn(OURS, least=0.1), Turn(PTY, least=0.2), Turn(PROGRAMS, least=0.1)]
        if sessions == 16:
            turns.append(Turn(ORIGINAL, {"sessions": 4}, f"{ORIGINAL}, 4 sessions", 1, 2.0))
        turns.append(Turn(PLACE, least=0.5))
        many: dict[str, Any] = {"operation": "fleet", "request": {"sessions": sessions}}
        title = f"{sessions} sessions at once: true"
        rows.append(Row(f"fleet-{sessions}", title, turns, **many, like=create, times=sessions, opens=True))
    turns = [Turn(OURS, least=0.3), Turn(PTY, least=0.3), Turn(ORIGINAL, rounds=1, least=1.0), Turn(PLACE, least=0.3)]
    rows.append(Row("interrupt", "interrupt of sleep 100", turns, operation="interrupt"))
    turns = [Turn(OURS), Turn(PROGRAMS), Turn(ORIGINAL, rounds=3), Turn(PLACE)]
    title = "execute: true, without a session"
    rows.append(Row("execute", title, turns, PROGRAMS, operation="execute", weight=0.7))
    return rows


ROWS = tuple(row.key for row in _rows())
"""Keys of all rows, in order."""


def chosen(wanted: list[str], engines: list[str]) -> list[Row]:
    """Return new rows, with the turns of these engines only.

    Args:
        wanted: keys of the rows; empty means all rows.
        engines: names of the engines.
    """
    rows = [row for row in _rows() if not wanted or row.key in wanted]
    for row in rows:
        row.turns = [turn for turn in row.turns if turn.engine in engines]
    return rows
