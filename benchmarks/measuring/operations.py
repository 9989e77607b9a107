"""Operations that measure an engine, in the process that has it.

Times are taken next to the call that a user would write, so that they never include pipes between processes. An
operation ends after `seconds`, or when it has `count` samples, but takes at least one. Wrong answers are counted.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import time
from collections.abc import Awaitable, Callable
from typing import Any

from .engine import Answer, Engine, is_right
from .measured import Measured

__all__ = ["Operations", "Result", "Sample", "is_file"]

Result = dict[str, Any]
"""Result of an operation: `count`, `wrong`, `samples_us` or `per_second`, CPU in microseconds."""

Sample = Callable[[], Awaitable["tuple[float, bool]"]]
"""Takes a sample: its microseconds, and whether the answer was right."""

PIECE = 1 << 20
"""Bytes that are compared at a time, so that a comparison needs no memory worth mentioning."""

MOST = 4000
"""Maximum number of samples of a turn; more samples would add no information."""


class Operations:
    """Operations of an engine.

    Each public coroutine can be requested; its parameters are those of the request. `limits` are `count` and `seconds`
    of `sample`.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.kept: set[str] = set()
        self.placed: dict[str, str] = {}
        self.unique = os.urandom(4).hex()

    async def ask(self, operation: str, **parameters: Any) -> Result:
        """Run the operation of a request."""
        result: Result = await getattr(self, operation)(**parameters)
        return result

    def measuring(self) -> Measured:
        """Return a context manager that measures what is done within."""
        return Measured()

    async def session(self, key: str) -> str:
        """Return the key of a shell that stays open between rounds.

        Each operation has its own shell, which is opened and checked when it is first needed.
        """
        name = f"{key}-{self.unique}"  # a server may have sessions of other users
        if name not in self.kept:
            await self.engine.open(name)
            self.kept.add(name)
            await self.check(name)
        return name

    async def check(self, key: str) -> int:
        """Check a shell with `echo` of a random token.

        Returns:
            the number of wrong answers, 0 or 1.
        """
        token = os.urandom(6).hex()
        return not is_right(await self.engine.run(key, f"echo {token}"), f"{token}\n")

    async def sample(
        self,
        one: Sample,
        *,
        count: int = MOST,
        seconds: float = math.inf,
        measured: Measured | None = None,
    ) -> Result:
        """Take samples. The times of wrong answers are discarded.

        Args:
            measured: where `one` measures something aside.
        """
        samples: list[float] = []
        until = time.perf_counter() + seconds
        taken = 0
        with measured or self.measuring() as measured:
            while taken < count and (not taken or time.perf_counter() < until):
                took, right = await one()
                taken += 1
                if right:
                    samples.append(took)
        return measured.result(count=taken, wrong=taken - len(samples), samples_us=[round(it, 2) for it in samples])

    async def timed(self, answer: Callable[[], Awaitable[Any]]) -> tuple[float, Any]:
        """Return the microseconds of a call, and its answer."""
        start = time.perf_counter_ns()
        said = await answer()
        return (time.perf_counter_ns() - start) / 1e3, said

    async def command(self, text: str, warm: int = 3, rest_us: int = 0, **limits: Any) -> Result:
        """Measure a command without output, run repeatedly in one shell.

        Args:
            warm: number of runs before.
            rest_us: microseconds of computing before each run, in which the shell falls asleep.
        """
        key, run, clock = await self.session("command"), self.engine.run, time.perf_counter_ns
        for _ in range(warm):
            await run(key, text)

        async def one() -> tuple[float, bool]:
            if rest_us:
                until = clock() + rest_us * 1000
                while clock() < until:
                    pass
            start = clock()
            answer = await run(key, text)
            return (clock() - start) / 1e3, is_right(answer)

        found = await self.sample(one, **limits)
        return {**found, "wrong": found["wrong"] + await self.check(key)}

    async def create(self, rest: float = 0.0, **limits: Any) -> Result:
        """Measure the start of a shell until it accepts commands.

        The check and the end of the shell are not timed.

        Args:
            rest: seconds to wait before each start, for engines that prepare the next shell in the background.
        """
        names = (f"create{number}-{self.unique}" for number in itertools.count())

        async def one() -> tuple[float, bool]:
            key = next(names)
            if rest:
                await asyncio.sleep(rest)
            took, _ = await self.timed(lambda: self.engine.open(key))
            right = not await self.check(key)
            await self.engine.close(key)
            return took, right

        return await self.sample(one, **limits)

    async def output(self, path: str, **limits: Any) -> Result:
        """Measure `cat` of a file, whose output must equal the file."""
        key = await self.session("output")
        if path not in self.placed:
            self.placed[path] = await self.engine.place(path)
        text, measured = f"cat {self.placed[path]}", self.measuring()

        async def one() -> tuple[float, bool]:
            took, answer = await self.timed(lambda: self.engine.run(key, text))
            with measured.aside():
                return took, is_file(answer, path)

        return {**await self.sample(one, measured=measured, **limits), "bytes": os.path.getsize(path)}

    async def fleet(self, sessions: int, count: int = 1 << 30, seconds: float = math.inf) -> Result:
        """Measure the rate of `true` in many shells at once."""
        keys = await asyncio.gather(*(self.session(f"fleet{number}") for number in range(sessions)))
        return await self.at_once(keys, count, seconds)

    async def at_once(self, keys: list[str], count: int, seconds: float = math.inf) -> Result:
        """Measure the rate of `true` in these shells at once."""
        with self.measuring() as measured:
            samples, wrong = await self.engine.fleet(keys, "true", count, time.perf_counter() + seconds)
        rate = len(samples) / measured.seconds
        return measured.result(count=len(samples), wrong=wrong, samples_us=samples, per_second=rate)

    async def interrupt(self, **limits: Any) -> Result:
        """Measure the time from a command's interrupt until the shell is ready."""
        key = await self.session("interrupt")

        async def one() -> tuple[float, bool]:
            await self.engine.begin(key, "sleep 100")
            took, _ = await self.timed(lambda: self.engine.interrupt(key))
            return took, not await self.check(key)

        return await self.sample(one, **limits)

    async def execute(self, **limits: Any) -> Result:
        """Measure a command without a persistent shell."""
        await self.engine.execute("true")

        async def one() -> tuple[float, bool]:
            took, answer = await self.timed(lambda: self.engine.execute("true"))
            return took, is_right(answer)

        found = await self.sample(one, **limits)
        told = await self.engine.execute("echo told")
        return {**found, "wrong": found["wrong"] + (told is not None and not is_right(told, "told\n"))}


def is_file(answer: Answer, path: str) -> bool:
    """Check whether a command exited with 0 and printed the content of a file."""
    output, code = answer
    if code != 0 or len(output) != os.path.getsize(path):
        return False
    with open(path, "rb") as file:
        for start in range(0, len(output), PIECE):
            piece = output[start : start + PIECE]
            if file.read(PIECE) != (piece.encode() if isinstance(piece, str) else piece):
                return False
    return True
