"""Count the instructions of pieces of work by callgrind: the same from run to run, on any machine, at any load.

`python -m benchmarks --instructions` compares the counts with instructions.json; `--keep` writes them to the file. A
count includes all threads of this process in user mode, but neither the kernel nor the shells. Each piece is counted
several times, and the median is used, because the work depends on the order of events in the shell and in this process.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import os
import re
import select
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from swerex_c import _core
from swerex_c.bench.engines import Answer, Engine, Ours
from swerex_c.bench.machine import environment, first_line
from swerex_c.engine import completions
from swerex_c.engine.patterns import make_matcher

from .floor import build
from .local import ACTIONS

__all__ = ["check"]

ROOT = Path(__file__).resolve().parents[1]
BASELINE = Path(__file__).with_suffix(".json")

TOLERANCE = 0.03
"""Tolerance with the compiler and the Python of the baseline. From run to run the medians differ by less than 1 %;
another processor's memcpy and other releases of libc and of libraries such as pydantic add up to 2 %."""

LOOSE = 0.3
"""Tolerance with another compiler or Python, whose code differs by a fifth: only far slower work is reported then."""

VARIED = {"create": 0.15}
"""Tolerances of pieces that depend on the order in which a shell and its terminal come up."""

REPEATS = 5

PATIENCE = 1_000_000
"""Microseconds that the calling thread waits for the shell by itself. Callgrind makes this process fifty times slower,
and the count should be that of a shell that answers within the usual 150 us."""

LITERALS = [f"needle-{i:02d}-in-the-stack" for i in range(20)]
REGEXES = [
    r"error: [a-z]+ at line \d+",
    r"\(gdb\) $",
    r"Traceback \(most recent call last\)",
    r"(?:fatal|panic): .+",
    r"found [0-9]{4} of [0-9]{4}!",
]
LINE = b"0123456789 the quick brown fox jumps over the lazy dog \x1b[31mred\x1b[0m\n"

Work = tuple[int, Callable[[], Awaitable[object]]]
"""Number of units in a piece of work, and a function that does them and returns a true value after a wrong answer."""


# Work in a process under callgrind


class Core(Engine):
    """The core by itself: no event loop, no models."""

    def __init__(self) -> None:
        self.completions = _core.Completions()
        self.poller = select.poll()
        self.poller.register(self.completions.fileno(), select.POLLIN)

    def finish(self, operation: Any) -> Any:
        while not operation.done:
            self.poller.poll()
            self.completions.take()
        return operation

    async def open(self, key: str) -> None:
        variables = [os.fsencode(f"{name}={value}") for name, value in os.environ.items()]
        self.shell = _core.Session(os.fsencode(shutil.which("bash") or ""), variables, None, 24, 80, 1 << 30)
        startup = b"[[ ! -r /etc/bash.bashrc ]] || . /etc/bash.bashrc\n[[ ! -r ~/.bashrc ]] || . ~/.bashrc\n"
        self.finish(self.shell.start(startup, 10.0, self.completions, None))

    async def run(self, key: str, text: str) -> Answer:
        operation = self.shell.run(text, -1, None, None, None, self.completions, None, None, PATIENCE)
        self.finish(operation)
        return operation.output, operation.code


async def commands(engine: Engine, number: int) -> Work:
    await engine.open("count")

    async def act() -> int:
        answers = [await engine.run("count", "true") for _ in range(number)]
        return sum(bool(output) or code != 0 for output, code in answers)

    return number, act


async def create() -> Work:
    engine, number = Ours(), 10

    async def act() -> None:
        for _ in range(number):
            await engine.open("count")
            await engine.close("count")

    return number, act


async def match(patterns: list[str]) -> Work:
    chunk, number = (LINE * 100)[:4096], 250
    matcher = make_matcher(patterns)

    async def act() -> bool:
        return any(matcher.feed(chunk) is not None for _ in range(number))

    return number * len(chunk) // 1024, act


async def strip() -> Work:
    data = LINE * 15_000
    plain = re.sub(rb"\x1b\[\d+m", b"", data)

    async def act() -> bool:
        return bool(_core.Strip().feed(data) != plain)

    return len(data) // 1024, act


async def scan() -> Work:
    texts = [text for text, _, _ in ACTIONS] * 20
    verdicts = [_core.scan(text)[0] for text in texts]

    async def act() -> bool:
        return [_core.scan(text)[0] for text in texts] != verdicts or "complete" not in verdicts

    return len(texts), act


ANSWER = {"output": "x" * 100, "exit_code": 0, "failure_reason": "", "expect_string": "", "session_type": "bash"}


async def encode() -> Work:
    encoder, number = _core.FrameEncoder(), 2000
    expected = encoder.encode(ANSWER)

    async def act() -> bool:
        return any(encoder.encode(ANSWER) != expected for _ in range(number))

    return number, act


async def decode() -> Work:
    frame, decoder, number = _core.FrameEncoder().encode(ANSWER), _core.FrameDecoder(), 2000

    async def act() -> bool:
        return any(decoder.feed(frame) != [ANSWER] for _ in range(number))

    return number, act


WORKS: dict[str, tuple[str, Callable[[], Awaitable[Work]]]] = {
    "runtime": ("a command, LocalRuntime", lambda: commands(Ours(), 300)),
    "session": ("a command, core", lambda: commands(Core(), 1000)),
    "create": ("a session, start and end", create),
    "literals": ("1 KB, 20 literals", lambda: match(LITERALS)),
    "regexes": ("1 KB, 5 regexes", lambda: match(REGEXES)),
    "strip": ("1 KB of colours to plain", strip),
    "scan": ("a command looked at", scan),
    "encode": ("an answer to a frame", encode),
    "decode": ("an answer from a frame", decode),
}
"""Pieces of work by their name in the file: name on the screen, and function that prepares the work."""


def count(work: Callable[[], Awaitable[Work]], switch: ctypes.CDLL, dumps: Path) -> float:
    """Return the instructions of a unit of work.

    Raises:
        RuntimeError: if an answer was wrong.
    """

    async def run() -> float:
        units, act = await work()
        found = []
        await act()
        for _ in range(REPEATS):
            gc.collect()
            gc.disable()
            switch.begin()
            wrong = await act()
            switch.end()
            gc.enable()
            if wrong:
                raise RuntimeError(f"{wrong} wrong answers")
            (dump,) = dumps.parent.glob(f"{dumps.name}.*[0-9]")
            total = re.search(r"^totals: (\d+)", dump.read_text(), re.MULTILINE)
            dump.unlink()
            found.append(int(total[1]) / units if total else 0.0)
        return statistics.median(found)

    return asyncio.run(run())


def main(library: str, dumps: str) -> None:
    """Count every piece of work, and print the counts as JSON; runs under callgrind."""
    switch = ctypes.CDLL(library)
    completions.INLINE_MICROSECONDS = PATIENCE
    print(json.dumps({name: count(work, switch, Path(dumps)) for name, (_, work) in WORKS.items()}))


# The comparison


def counted() -> dict[str, float]:
    """Return the instructions of each piece of work.

    Raises:
        RuntimeError: if valgrind or a PID namespace is missing, or an answer was wrong.
    """
    if shutil.which("valgrind") is None or not Path("/usr/include/valgrind/callgrind.h").exists():
        raise RuntimeError("no valgrind: install valgrind (Debian)")
    with tempfile.TemporaryDirectory(prefix="swerex-c-bench-") as name:
        directory = Path(name)
        switch, dumps = build("instructions.c", directory, "-shared", "-fPIC"), directory / "counts"
        variables = environment(directory, PYTHONHASHSEED="0", PYTHONPATH=str(ROOT))
        command = ["unshare", "--map-root-user", "--pid", "--fork", "--mount-proc"]  # the end of a session looks at all
        command += ["valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={dumps}"]
        command += [f"--log-file={directory}/log", sys.executable, "-c"]
        command += [f"from benchmarks.instructions import main; main({switch!r}, {str(dumps)!r})"]
        allowed = os.sched_getaffinity(0)
        os.sched_setaffinity(0, [max(allowed)])  # child processes inherit one processor, for one order of events
        try:
            done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
        finally:
            os.sched_setaffinity(0, allowed)
    if done.returncode:
        raise RuntimeError(f"the counting process ended with {done.returncode}: {done.stderr.strip()[-500:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def tools() -> dict[str, str]:
    """Return the tools on which the counts depend."""
    return {
        "compiler": first_line(os.environ.get("CC", "cc"), "--version"),
        "python": f"{sys.implementation.name} {sys.version.split()[0]}",
        "platform": sysconfig.get_platform(),
    }


def check(keep: bool = False) -> bool:
    """Count, print each count beside the kept one, and return whether none has grown.

    Args:
        keep: whether to make the counts those that later ones are compared with.
    """
    counts = counted()
    if keep:
        commit = first_line("git", "-C", str(ROOT), "log", "-1", "--format=%H", "--", "csrc", "swerex_c", "setup.py")
        rounded = {name: round(number, 1) for name, number in counts.items()}
        BASELINE.write_text(json.dumps({"commit": commit, "tools": tools(), "counts": rounded}, indent=1) + "\n")
    kept = json.loads(BASELINE.read_text())
    tolerance = TOLERANCE if kept["tools"] == tools() else LOOSE
    good = True
    print("instructions in user mode: kept, now")
    for name, now in counts.items():
        before, most = kept["counts"][name], max(tolerance, VARIED.get(name, 0.0))
        share = now / before - 1
        word = "SLOWER" if share > most else "faster" if share < -most else "same"
        good = good and word != "SLOWER"
        print(f"  {WORKS[name][0]:26} {before:12,.1f} {now:12,.1f} {share:+7.1%} (at most {most:+.0%})  {word}")
    return good
