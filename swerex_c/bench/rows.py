"""Rows of the benchmark: what is asked of which engine. Every answer is checked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .measure import Row, Turn

__all__ = [
    "KEYS",
    "LIMIT",
    "OURS",
    "PEXPECT",
    "PLAIN_C",
    "PRESTARTED",
    "PTYPROCESS",
    "QUICK",
    "SUBPROCESS",
    "SWEREX",
    "TARGET",
    "TUNED",
    "all_rows",
    "turns",
]

OURS = "swerex_c"
PRESTARTED = "swerex_c, pre-started"
"""This package with shells that it started ahead of time, and that have read the startup files."""
LIMIT = "bare terminal"
PLAIN_C = "plain C"
"""The same limit in C; only in the source tree, because it needs a compiler."""
SUBPROCESS = "subprocess.run"
PEXPECT = "pexpect, as it comes"
TUNED = "pexpect, tuned"
PTYPROCESS = "ptyprocess"
SWEREX = "SWE-ReX"
TARGET = "target"
"""The deployment that the caller names, such as a server or an image."""

QUICK = (OURS, TARGET, LIMIT, PLAIN_C, PTYPROCESS, TUNED)


def turns(engines: tuple[str, ...], rounds: int | None = None, **request: Any) -> list[Turn]:
    """Return a turn for each engine; SWE-ReX and pexpect as it comes are slow, and have fewer rounds."""
    return [Turn(name, request, rounds or {SWEREX: 2, PEXPECT: 3}.get(name)) for name in engines]


def all_rows() -> Iterator[Row]:
    """Yield new rows with the turns of all engines on this machine."""
    everyone = (*QUICK, SUBPROCESS, PEXPECT, SWEREX)
    yield Row("true", "A command: true", "command", turns(everyone, text="true"))
    yield Row("bin-true", "A program: /bin/true", "command", turns(everyone, text="/bin/true"))
    # Each start uses up a pre-started shell: without a rest, the next one would wait for a new shell.
    starts = [*turns((*QUICK, PEXPECT, SWEREX)), *turns((PRESTARTED,), rest=0.05)]
    yield Row("start", "Start of a session, until it takes a command", "create", starts)
    many = turns((*QUICK, SUBPROCESS), 2, number=64)
    many.append(Turn(SWEREX, {"number": 4}, 1, f"{SWEREX}, 4 sessions"))  # they run one after the other
    yield Row("sessions-64", "64 sessions at once, each runs true again and again", "sessions", many)
    yield Row("output-1", "1 MB of output", "output", turns(everyone, megabytes=1))
    large = turns((*QUICK, SUBPROCESS), 2, megabytes=64)  # the others search all of it again and again
    yield Row("output-64", "64 MB of output", "output", large)
    yield Row("interrupt", "Interrupt of sleep 100", "interrupt", turns((*QUICK, SWEREX), 3))
    one = turns((OURS, TARGET, SUBPROCESS, SWEREX))
    yield Row("execute", "execute: true without a session", "execute", one, SUBPROCESS)


KEYS = tuple(row.key for row in all_rows())
"""Keys of the rows of `swerex-c bench`."""
