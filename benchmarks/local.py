"""Rows of sessions on this machine: those of `swerex-c bench`, and the large ones that only the suite measures."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

from swerex_c.bench import engines, rows
from swerex_c.bench.engines import Answer
from swerex_c.bench.measure import Contender, Row
from swerex_c.bench.rows import LIMIT, OURS, PTYPROCESS, QUICK, SUBPROCESS, SWEREX, TUNED, turns
from swerex_c.bench.worker import Operations, Result

__all__ = ["ACTIONS", "LargeOperations", "all_rows", "with_large_rows"]

PATTERNS = [*(rf"\(step {number}\) [$#>] " for number in range(19)), "Password:"]
"""Regular expressions of an `expect`."""

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


def all_rows() -> Iterator[Row]:
    """Yield new rows with the turns of all engines on this machine."""
    # Before the long outputs, after which this process keeps memory that sessions would use.
    many = turns(tuple(name for name in QUICK if name != TUNED), 2, number=1000)
    yield Row("sessions-1000", "1,000 sessions at once, each runs true again and again", "sessions", many)
    yield from rows.all_rows()
    line = turns((*QUICK, SUBPROCESS), 2, megabytes=64, end=" ")
    yield Row("line-64", "64 MB of output in one line", "output", line)
    large = turns((*QUICK, SUBPROCESS), 2, megabytes=1000)
    yield Row("output-1000", "1,000 MB of output", "output", large)
    title = f"16 MB of output, and one of {len(PATTERNS)} patterns behind it"
    yield Row("expect-16", title, "expect", turns((OURS, TUNED), 2, megabytes=16), TUNED)
    title = f"An agent's day: {len(ACTIONS)} actions with git, grep and tests"
    yield Row("day", title, "day", turns((OURS, LIMIT, PTYPROCESS, SWEREX), 3))
    imports = [*turns((OURS,), module="swerex_c.runtime.local"), *turns((SWEREX,), module="swerex.runtime.local")]
    yield Row("import", "Import of the package's LocalRuntime", "imports", imports, SWEREX)


def with_large_rows(contenders: list[Contender]) -> list[Contender]:
    """Give the engines of `swerex-c bench` the operations of this module's rows too."""
    for contender in contenders:
        contender.options = {"engine": contender.kind.partition(":")[2], **contender.options}
        contender.kind = f"{__name__}:LargeOperations"
    return contenders


class LargeOperations(Operations):
    """Operations of all rows, on an engine of `swerex_c.bench.engines`.

    Args:
        engine: name of its class.
        options: keyword arguments of that.
    """

    def __init__(self, engine: str, **options: Any) -> None:
        super().__init__(getattr(engines, engine)(**options))

    async def expect(self, path: str, count: int, seconds: float) -> Result:
        """Measure `cat` of a file until the last of the patterns matches, which comes behind the file."""
        key, engine = await self.session("expect"), self.engine
        text = f"cat {path}; printf '%s' {PATTERNS[-1]}"

        async def ours(engine: engines.Ours) -> Answer:
            action = engine.api.BashAction(command=text, session=key, check="silent", expect=PATTERNS)
            answer = await engine.runtime.run_in_session(action)
            return answer.output, answer.exit_code

        async def pexpect(engine: Any) -> Answer:
            child = engine.shells[key]
            child.sendline(text)
            child.expect(PATTERNS)
            output = child.before
            engine.wait(child)
            return output, None

        until_match: Any = ours if isinstance(engine, engines.Ours) else pexpect
        found = await self.calls(lambda: until_match(engine), lambda answer: self.is_file(answer, path), count, seconds)
        return {**found, "bytes": os.path.getsize(path)}

    async def day(self, count: int, seconds: float) -> Result:
        """Measure the actions, each with the output and exit code that it must have."""
        key = await self.session("day")

        async def one() -> tuple[float, bool]:
            took, right = 0.0, True
            for text, output, code in ACTIONS:
                more, (said, ended) = await self.timed(lambda text=text: self.engine.run(key, text))  # type: ignore[misc]
                said = said.decode() if isinstance(said, bytes) else said
                took, right = took + more, right and (said, ended) == (output, code)
            return took, right

        return await self.sample(one, count, seconds)

    async def imports(self, module: str, count: int, seconds: float) -> Result:
        """Measure a new interpreter that imports a module, less one that imports nothing."""

        async def one() -> tuple[float, bool]:
            times = []
            for code in ("pass", f"import {module}"):
                began = time.perf_counter()
                right = subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
                times.append((time.perf_counter() - began) * 1e6)
            return max(0.01, times[1] - times[0]), right

        return await self.sample(one, count, seconds)
