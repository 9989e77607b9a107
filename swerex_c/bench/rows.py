"""Rows of the benchmark: what is asked of which engine. Every answer is checked.

A row that only the source tree's `benchmarks/` measures has `full`.
"""

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
    "SUBPROCESS",
    "SWEREX",
    "TARGET",
    "TUNED",
    "all_rows",
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

PATTERNS = [*(rf"\(step {number}\) [$#>] " for number in range(19)), "Password:"]
"""Regular expressions of an `expect`."""

QUICK = (OURS, TARGET, LIMIT, PLAIN_C, PTYPROCESS, TUNED)

ACTIONS = [
    ("cd $(mktemp -d) && git init -q . && git config user.name a && git config user.email a@b.c", "", 0),
    ("cat >calc.py <<'EOF'\ndef add(a, b):\n    return a - b  # wrong\nEOF", "", 0),
    (
        "cat >test_calc.py <<'EOF'\nimport unittest\nfrom calc import add\n\n"
        "class T(unittest.TestCase):\n    def test(self):\n        self.assertEqual(add(1, 2), 3)\nEOF",
        "",
        0,
    ),
    ("git add -A && git commit -qm first", "", 0),
    ("ls -1", "calc.py\ntest_calc.py\n", 0),
    ("grep -n wrong calc.py", "2:    return a - b  # wrong\n", 0),
    ("python3 -B -m unittest -q 2>&1 | tail -1", "FAILED (failures=1)\n", 0),
    ("sed -i 's/a - b  # wrong/a + b/' calc.py", "", 0),
    ("python3 -B -m unittest -q 2>&1 | tail -1", "OK\n", 0),
    ("git diff --stat | tail -1", " 1 file changed, 1 insertion(+), 1 deletion(-)\n", 0),
    ("cat calc.py", "def add(a, b):\n    return a + b\n", 0),
    ("seq 20000", "".join(f"{number}\n" for number in range(1, 20001)), 0),
    ("find . -name '*.py' | sort", "./calc.py\n./test_calc.py\n", 0),
    ("false", "", 1),
    ("export X=1; echo $X; pwd >/dev/null", "1\n", 0),
    ("git commit -qam second && git log --oneline | wc -l", "2\n", 0),
    ('rm -rf "$PWD"; cd /', "", 0),
]
"""An agent's small day, which mends a fault: commands, what they print, their exit codes."""


def _turns(engines: tuple[str, ...], rounds: int | None = None, **request: Any) -> list[Turn]:
    """Return a turn for each engine; SWE-ReX and pexpect as it comes are slow, and have fewer rounds."""
    return [Turn(name, request, rounds or {SWEREX: 2, PEXPECT: 3}.get(name)) for name in engines]


def all_rows() -> Iterator[Row]:
    """Yield new rows with the turns of all engines on this machine."""
    everyone = (*QUICK, SUBPROCESS, PEXPECT, SWEREX)
    yield Row("true", "A command: true", "command", _turns(everyone, text="true"))
    yield Row("bin-true", "A program: /bin/true", "command", _turns(everyone, text="/bin/true"))
    # Each start uses up a pre-started shell: without a rest, the next one would wait for a new shell.
    starts = [*_turns((*QUICK, PEXPECT, SWEREX)), *_turns((PRESTARTED,), rest=0.05)]
    yield Row("start", "Start of a session, until it takes a command", "create", starts)
    # Before the long outputs, after which this process keeps memory that sessions would use.
    title = "{:,} sessions at once, each runs true again and again"
    engines: tuple[str, ...] = tuple(name for name in QUICK if name != TUNED)
    yield Row("sessions-1000", title.format(1000), "sessions", _turns(engines, 2, number=1000), full=True)
    turns = _turns((*QUICK, SUBPROCESS), 2, number=64)
    turns.append(Turn(SWEREX, {"number": 4}, 1, f"{SWEREX}, 4 sessions"))  # they run one after the other
    yield Row("sessions-64", title.format(64), "sessions", turns)
    for megabytes, one_line in ((1, False), (64, False), (64, True), (1000, False)):
        small = megabytes == 1
        engines = everyone if small else (*QUICK, SUBPROCESS)  # the others search all of it again and again
        turns = _turns(engines, None if small else 2, megabytes=megabytes, one_line=one_line)
        title = f"{megabytes:,} MB of output" + (" in one line" if one_line else "")
        key = f"{'line' if one_line else 'output'}-{megabytes}"
        yield Row(key, title, "output", turns, full=one_line or megabytes > 64)
    turns = _turns((OURS, TUNED), 2, megabytes=16, one_line=False, patterns=PATTERNS)
    title = f"16 MB of output, and one of {len(PATTERNS)} patterns behind it"
    yield Row("expect-16", title, "output", turns, TUNED, full=True)
    yield Row("interrupt", "Interrupt of sleep 100", "interrupt", _turns((*QUICK, SWEREX), 3))
    turns = _turns((OURS, TARGET, SUBPROCESS, SWEREX))
    yield Row("execute", "execute: true without a session", "execute", turns, SUBPROCESS)
    turns = _turns((OURS, LIMIT, PTYPROCESS, SWEREX), 3, actions=ACTIONS)
    yield Row("day", f"An agent's day: {len(ACTIONS)} actions with git, grep and tests", "day", turns, full=True)
    turns = [*_turns((OURS,), module="swerex_c.runtime.local"), *_turns((SWEREX,), module="swerex.runtime.local")]
    yield Row("import", "Import of the package's LocalRuntime", "imports", turns, SWEREX, full=True)


KEYS = tuple(row.key for row in all_rows() if not row.full)
"""Keys of the rows of `swerex-c bench`."""
