"""One engine in a process of its own: reads requests as JSON lines, runs them, answers with JSON lines.

Everything is timed here, next to the call that a user would write, so that pipes between processes never count. Each
operation ends after its `seconds`, and takes one sample in any case. An answer that is wrong is counted, and the time
that it took is not.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from swerex_c.bench.engines import Engine, is_right, make
from swerex_c.bench.measured import Measured

__all__ = ["Operations", "main"]

PATIENCE = 120
"""Seconds beyond its own that an operation may take before the process ends itself."""

MOST = 4000
"""Samples of a turn; more would say nothing new."""


class Operations:
    """Each method is an operation that may be asked for; its parameters are those of the request."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.kept: set[str] = set()
        self.placed: dict[str, str] = {}

    async def _session(self, key: str) -> str:
        """A shell that stays open between rounds; one for each operation, so that none disturbs another."""
        if key not in self.kept:
            await self.engine.open(key)
            self.kept.add(key)
            await self._true(key)
        return key

    async def _true(self, key: str) -> int:
        """Whether a shell answers what it is asked, and nothing else: how often not, 0 or 1."""
        token = os.urandom(6).hex()
        return not is_right(await self.engine.run(key, f"echo {token}"), f"{token}\n")

    async def _samples(
        self, seconds: float, one: Callable[[int, Measured], Awaitable[tuple[float, bool]]]
    ) -> dict[str, object]:
        """Samples of what gives microseconds and whether the answer was right."""
        samples: list[float] = []
        wrong = 0
        until = time.perf_counter() + seconds
        with Measured() as measured:
            for number in itertools.count(1):
                took, right = await one(number, measured)
                if right:
                    samples.append(took)
                else:
                    wrong += 1
                if number >= MOST or time.perf_counter() >= until:
                    break
        return measured.result(count=number, wrong=wrong, samples_us=[round(it, 2) for it in samples])

    async def command(self, text: str, seconds: float) -> dict[str, object]:
        """A command that says nothing, one after the other."""
        key, run, clock = await self._session("command"), self.engine.run, time.perf_counter_ns
        for _ in range(3):
            await run(key, text)

        async def one(_: int, measured: Measured) -> tuple[float, bool]:
            start = clock()
            answer = await run(key, text)
            return (clock() - start) / 1e3, is_right(answer)

        found = await self._samples(seconds, one)
        return {**found, "wrong": int(str(found["wrong"])) + await self._true(key)}

    async def create(self, seconds: float, rest: float = 0.0) -> dict[str, object]:
        """A shell, until it takes commands; then one command, and its end, which are not timed.

        rest: seconds before each, for engines that get ready for the next one meanwhile.
        """

        async def one(number: int, measured: Measured) -> tuple[float, bool]:
            if rest:
                await asyncio.sleep(rest)
            start = time.perf_counter_ns()
            await self.engine.open(f"create{number}")
            took = (time.perf_counter_ns() - start) / 1e3
            right = not await self._true(f"create{number}")
            await self.engine.close(f"create{number}")
            return took, right

        return await self._samples(seconds, one)

    async def output(self, path: str, seconds: float) -> dict[str, object]:
        """`cat` of a file; the answer has to be the file."""
        key = await self._session("output")
        expected = Path(path).read_bytes()
        if path not in self.placed:
            self.placed[path] = await self.engine.place(path)

        async def one(_: int, measured: Measured) -> tuple[float, bool]:
            start = time.perf_counter_ns()
            said, code = await self.engine.run(key, f"cat {self.placed[path]}")
            took = (time.perf_counter_ns() - start) / 1e3
            with measured.aside():
                right = code == 0 and (said.encode() if isinstance(said, str) else said) == expected
            return took, right

        return {**await self._samples(seconds, one), "bytes": len(expected)}

    async def fleet(self, sessions: int, seconds: float) -> dict[str, object]:
        """`true` in many shells at once, again and again."""
        keys = await asyncio.gather(*(self._session(f"fleet{number}") for number in range(sessions)))
        with Measured() as measured:
            count, wrong = await self.engine.fleet(keys, "true", time.perf_counter() + seconds)
        return measured.result(count=count, wrong=wrong, per_second=count / measured.seconds)

    async def interrupt(self, seconds: float) -> dict[str, object]:
        """From the interrupt of a command that its caller has given up to the shell's being free."""
        key = await self._session("interrupt")

        async def one(_: int, measured: Measured) -> tuple[float, bool]:
            took = await self.engine.interrupt(key)
            return took, not await self._true(key)

        return await self._samples(seconds, one)

    async def execute(self, seconds: float) -> dict[str, object]:
        """A command without a shell that stays."""
        await self.engine.execute("true")

        async def one(_: int, measured: Measured) -> tuple[float, bool]:
            start = time.perf_counter_ns()
            answer = await self.engine.execute("true")
            return (time.perf_counter_ns() - start) / 1e3, is_right(answer)

        found = await self._samples(seconds, one)
        told = await self.engine.execute("echo told")
        return {**found, "wrong": int(str(found["wrong"])) + (not is_right(told, "told\n"))}


async def _requests() -> AsyncIterator[dict[str, Any]]:
    """What the driver asks for, to the end of standard input, which may come at any time: it cancels the caller."""
    loop, me = asyncio.get_running_loop(), asyncio.current_task()
    assert me is not None
    lines: asyncio.Queue[bytes] = asyncio.Queue()
    rest = b""

    def read() -> None:
        nonlocal rest
        if not (piece := os.read(0, 65536)):
            loop.remove_reader(0)
            me.cancel()
            return
        *whole, rest = (rest + piece).split(b"\n")
        for line in whole:
            lines.put_nowait(line)

    loop.add_reader(0, read)
    while True:
        yield json.loads(await lines.get())


def _error(error: Exception) -> dict[str, str]:
    """For the driver, which decides what becomes of it."""
    return {"error": f"{type(error).__name__}: {error}"}


async def _serve(answers: Any) -> None:
    def say(answer: dict[str, Any]) -> None:
        print(json.dumps(answer), file=answers, flush=True)

    requests = _requests()
    first = await anext(requests)
    try:
        engine = make(first["kind"], first["options"])
        try:
            await engine.start()
            say({"ready": getattr(engine, "version", "")})
            operations = Operations(engine)
            async for request in requests:
                operation = getattr(operations, request.pop("operation"))
                if engine.blocking:  # it may never notice that the driver is gone
                    signal.alarm(int(request["seconds"]) + PATIENCE)
                try:
                    say(await operation(**request))
                except Exception as error:
                    say(_error(error))
        finally:
            await engine.end()
    except Exception as error:
        say(_error(error))


def main() -> None:
    """Serve until standard input ends; then end every shell."""
    # Whatever a library prints must not get between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        asyncio.run(_serve(answers))
    except (asyncio.CancelledError, BrokenPipeError):
        sys.exit(0)


if __name__ == "__main__":
    main()
