"""Counts the instructions that pieces of work of ours take; runs under callgrind, and talks as worker.py does.

A count is of this process in user mode, all threads: not of the kernel, and not of the shells. Each piece is counted
several times and the median is given, because a part of what is done depends on who was first, the shell or we.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import re
import statistics
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from engines import make
from measuring.engine import Answer, Engine
from measuring.worker import serve
from text_worker import observation
from texts import ACTIONS, LITERALS, REGEXES

__all__ = ["Counts"]

Work = tuple[int, Callable[[], Awaitable[object]]]
"""How many units there are in it, and what does them; it gives back something true if an answer was wrong."""

REPEATS = 5
LINE = b"0123456789 the quick brown fox jumps over the lazy dog \x1b[31mred\x1b[0m\n"
PATIENCE = 1_000_000
"""Microseconds for which the calling thread waits for the shell by itself: callgrind makes us fifty times slower, and
what is counted is to be what happens when the shell answers within the usual 150 us."""


def is_empty(answer: Answer) -> bool:
    """Check an answer by few instructions, which count too."""
    return answer is not None and not answer[0] and answer[1] == 0


class Counts:
    engine = Engine()
    """None: each piece of work makes its own."""

    def __init__(self, library: str) -> None:
        self.switch = ctypes.CDLL(library)
        if not self.switch.inside():
            raise RuntimeError("not under callgrind")
        self.dumps = 0
        self.core: Any = importlib.import_module("swerex_c._core")
        session: Any = importlib.import_module("swerex_c.engine.session")
        if not hasattr(session, "_INLINE_WAIT_MICROSECONDS"):
            raise RuntimeError("the time for which a caller waits by itself has another name now")
        session._INLINE_WAIT_MICROSECONDS = PATIENCE

    async def ask(self, operation: str) -> dict[str, object]:
        """Count one of the methods below; instructions is per unit."""
        units, act = await getattr(self, operation)()
        wrong = 0
        found = []
        await act()
        for _ in range(REPEATS):
            gc.collect()
            gc.disable()
            self.switch.begin()
            wrong += bool(await act())
            self.switch.end()
            gc.enable()
            found.append(self.last_dump() / units)
        middle = statistics.median(found)
        spread = (max(found) - min(found)) / middle
        return {"count": REPEATS * units, "wrong": wrong, "instructions": middle, "spread": spread}

    def last_dump(self) -> int:
        self.dumps += 1
        path = Path(f"{os.environ['SWX_COUNTS']}.{self.dumps}")
        total = re.search(r"^totals: (\d+)", path.read_text(), re.MULTILINE)
        path.unlink()
        if total is None:
            raise RuntimeError("callgrind has counted nothing")
        return int(total[1])

    # ---- the pieces of work ----

    async def runtime(self) -> Work:
        """A command through `LocalRuntime`, on asyncio."""
        return await self.commands("ours", 300)

    async def session(self) -> Work:
        """A command through the core by itself."""
        return await self.commands("core", 1000)

    async def commands(self, name: str, number: int) -> Work:
        engine = make(name)
        if hasattr(engine, "direct"):
            engine.direct = PATIENCE
        await engine.open("count")

        async def act() -> int:
            return sum([not is_empty(await engine.run("count", "true")) for _ in range(number)])

        return number, act

    async def create(self) -> Work:
        """A session from its start to its first prompt, through `LocalRuntime`; it is closed again."""
        engine = make("ours")
        number = 10

        async def act() -> None:
            for _ in range(number):
                await engine.open("count")
                await engine.close("count")

        return number, act

    async def literals(self) -> Work:
        """A kilobyte in which 20 literals are looked for, in chunks of 4 KB."""
        return self.match(LITERALS)

    async def regexes(self) -> Work:
        """A kilobyte in which 5 regular expressions are looked for."""
        return self.match(REGEXES)

    def match(self, patterns: list[str]) -> Work:
        chunk = (LINE * 100)[:4096]
        number = 250
        matcher = importlib.import_module("swerex_c.engine.patterns").make_matcher(patterns)

        async def act() -> bool:
            return any(matcher.feed(chunk) is not None for _ in range(number))

        return number * len(chunk) // 1024, act

    async def strip(self) -> Work:
        """A kilobyte of coloured output made plain."""
        data = LINE * 15_000
        plain = re.sub(rb"\x1b\[\d+m", b"", data)

        async def act() -> bool:
            return bool(self.core.strip(data) != plain)

        return len(data) // 1024, act

    async def scan(self) -> Work:
        """A command of an agent looked at: is it complete?"""
        texts = [text for text, _, _ in ACTIONS] * 20
        verdicts = [self.core.scan(text)[0] for text in texts]

        async def act() -> bool:
            return [self.core.scan(text)[0] for text in texts] != verdicts or "complete" not in verdicts

        return len(texts), act

    async def encode(self) -> Work:
        """An answer with 100 bytes of output made a frame."""
        value, encoder, number = observation(100), self.core.FrameEncoder(), 2000
        expected = encoder.encode(value)

        async def act() -> bool:
            return any(encoder.encode(value) != expected for _ in range(number))

        return number, act

    async def decode(self) -> Work:
        """The same from a frame."""
        value, decoder, number = observation(100), self.core.FrameDecoder(), 2000
        frame = self.core.FrameEncoder().encode(value)

        async def act() -> bool:
            return any(decoder.feed(frame) != [value] for _ in range(number))

        return number, act


if __name__ == "__main__":
    serve(lambda kind: Counts(os.environ["SWX_COUNTS_SWITCH"]))
