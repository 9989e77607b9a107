"""Worker process that measures one engine.

It reads requests as JSON lines, and responds with JSON lines. The first request names the class of the engine and its
options. Each other one names an operation of `Operations`, and its parameters.

Times are taken beside the call that a user would write, so they include no pipe between processes, and every answer is
checked outside of them. The time of a wrong answer is discarded, and the answer is counted. This module needs only the
standard library.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import itertools
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from typing import IO, Any

from .engines import Answer, Engine

__all__ = ["Operations", "Result", "serve"]

Result = dict[str, Any]
"""Result of an operation: `count`, `wrong`, `samples_us`, and `per_second` or `bytes`."""

MOST = 4000
"""Maximum number of samples of a turn; more samples would add no information."""

PIECE = 1 << 20
"""Bytes that are compared at a time, so that a comparison needs little memory."""

CLOSE_SECONDS = 10.0
"""Seconds for the end of all shells, some of which a server may have that no longer answers."""


def result(count: int, samples: list[float], **more: object) -> Result:
    """Return the result of an operation with `count` answers, of which those with a sample were right."""
    return {"count": count, "wrong": count - len(samples), "samples_us": [round(it, 2) for it in samples], **more}


class Operations:
    """Operations on an engine. An operation ends after `seconds` or `count` samples, but takes at least one."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.opened: set[str] = set()
        self.kept: set[str] = set()
        self.uploaded: dict[str, str] = {}
        self.unique = os.urandom(4).hex()  # a server may have sessions of other users

    async def open(self, key: str) -> None:
        """Open a shell, which `end` closes if `close` has not."""
        self.opened.add(key)  # before it is there: a start that is cancelled or fails may leave a shell
        await self.engine.open(key)

    async def close(self, key: str) -> None:
        self.opened.discard(key)
        await self.engine.close(key)

    async def end(self) -> None:
        """Close the shells that are open, within `CLOSE_SECONDS`, and end the engine."""
        closing = asyncio.gather(*map(self.engine.close, self.opened), return_exceptions=True)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(closing, CLOSE_SECONDS)
        await self.engine.end()

    async def session(self, key: str) -> str:
        """Return the key of a shell that stays open between rounds; it is opened and checked at the first call."""
        name = f"{key}-{self.unique}"
        if name not in self.kept:
            await self.open(name)
            self.kept.add(name)
            await self.check(name)
        return name

    async def check(self, key: str) -> int:
        """Run `echo` of a random token, and return the number of wrong answers: 0 or 1."""
        token = os.urandom(6).hex()
        return not self.engine.is_right(await self.engine.run(key, f"echo {token}"), f"{token}\n")

    async def sample(self, one: Callable[[], Awaitable[tuple[float, bool]]], count: int, seconds: float) -> Result:
        """Take samples: `one` returns its microseconds, and whether the answer was right."""
        samples: list[float] = []
        until, taken = time.perf_counter() + seconds, 0
        while taken < min(count, MOST) and (not taken or time.perf_counter() < until):
            took, right = await one()
            taken += 1
            if right:
                samples.append(took)
        return result(taken, samples)

    async def timed(self, call: Callable[[], Awaitable[Any]]) -> tuple[float, Any]:
        """Return the microseconds of a call, and its answer."""
        began = time.perf_counter_ns()
        answer = await call()
        return (time.perf_counter_ns() - began) / 1e3, answer

    async def calls(
        self, call: Callable[[], Awaitable[Any]], is_right: Callable[[Any], bool], count: int, seconds: float
    ) -> Result:
        """Time calls, and check their answers outside of the clock."""

        async def one() -> tuple[float, bool]:
            took, answer = await self.timed(call)
            return took, is_right(answer)

        return await self.sample(one, count, seconds)

    async def command(self, text: str, count: int, seconds: float) -> Result:
        """Measure a command without output, run repeatedly in one shell."""
        key, run = await self.session("command"), self.engine.run
        until = time.perf_counter() + seconds / 10
        while time.perf_counter() < until and await run(key, text) and count > 1:
            pass
        found = await self.calls(lambda: run(key, text), self.engine.is_right, count, seconds)
        return {**found, "wrong": found["wrong"] + await self.check(key)}

    async def create(self, count: int, seconds: float, rest: float = 0.0) -> Result:
        """Measure the start of a shell until it accepts commands; its check and its end are not timed.

        Args:
            rest: seconds to wait before each start, for an engine that prepares the next shell meanwhile.
        """
        names = (f"create{number}-{self.unique}" for number in itertools.count())

        async def one() -> tuple[float, bool]:
            key = next(names)
            await asyncio.sleep(rest)
            took, _ = await self.timed(lambda: self.open(key))
            right = not await self.check(key)
            await self.close(key)
            return took, right

        return await self.sample(one, count, seconds)

    async def output(self, path: str, count: int, seconds: float) -> Result:
        """Measure `cat` of a file, whose output must equal the file."""
        key = await self.session("output")
        if path not in self.uploaded:
            self.uploaded[path] = await self.engine.upload(path)
        text = f"cat {self.uploaded[path]}"
        found = await self.calls(
            lambda: self.engine.run(key, text), lambda answer: self.is_file(answer, path), count, seconds
        )
        return {**found, "bytes": os.path.getsize(path)}

    def is_file(self, answer: Answer, path: str) -> bool:
        """Check whether a command succeeded and printed the content of a file."""
        output, code = answer
        if not self.engine.is_right(("", code)) or len(output) != os.path.getsize(path):
            return False
        with open(path, "rb") as file:
            for start in range(0, len(output), PIECE):
                piece = output[start : start + PIECE]
                if file.read(PIECE) != (piece.encode() if isinstance(piece, str) else piece):
                    return False
        return True

    async def sessions(self, number: int, count: int, seconds: float) -> Result:
        """Measure the rate of `true` in many shells at once, which are opened before and closed after it."""
        keys = [f"many{at}-{self.unique}" for at in range(number)]
        groups = [keys[start : start + 16] for start in range(0, number, 16)]

        async def open_one(key: str) -> int:
            await self.open(key)
            return await self.check(key)

        try:
            wrong = 0
            for group in groups:  # shells start on all processors, and none waits too long
                wrong += sum(await asyncio.gather(*map(open_one, group)))
            began = time.perf_counter()
            samples, more = await self.engine.at_once(keys, "true", count, began + seconds)
            total, took = len(samples) + more, time.perf_counter() - began
            wrong += more + sum([await self.check(key) for key in keys])
            return {**result(total, samples, per_second=total / took), "wrong": wrong}
        finally:
            for group in groups:
                await asyncio.gather(*map(self.close, group), return_exceptions=True)

    async def interrupt(self, count: int, seconds: float) -> Result:
        """Measure the time from a command's interrupt until the shell is ready."""
        key = await self.session("interrupt")

        async def one() -> tuple[float, bool]:
            await self.engine.begin(key, "sleep 100")
            took, _ = await self.timed(lambda: self.engine.interrupt(key))
            return took, took < 90e6 and not await self.check(key)  # it did not end by itself

        return await self.sample(one, count, seconds)

    async def execute(self, count: int, seconds: float) -> Result:
        """Measure a command without a persistent shell."""
        told = self.engine.is_right(await self.engine.execute("echo told"), "told\n")
        found = await self.calls(lambda: self.engine.execute("true"), self.engine.is_right, count, seconds)
        return {**found, "wrong": found["wrong"] + (not told)}


# The process


def _make(kind: str, options: dict[str, Any]) -> Any:
    """Return the operations of a new engine; `kind` ("module:Class") is the engine, or operations that make theirs."""
    module, _, name = kind.partition(":")
    made = getattr(importlib.import_module(module), name)(**options)
    return Operations(made) if isinstance(made, Engine) else made


def serve() -> None:
    """Serve requests until standard input ends, then end every shell."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, as a parent can hand it down, it would hide exit codes
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_IGN:  # as under nohup: shells would hand that down to programs
            signal.signal(number, signal.SIG_DFL)
    # Output that a library prints must not mix with the responses.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def say(answer: Result) -> None:
        print(json.dumps(answer), file=answers, flush=True)

    try:
        # Without a buffer: Python cannot end while a thread reads from one.
        with open(0, "rb", buffering=0, closefd=False) as source:
            operations = _make(**json.loads(source.readline() or sys.exit(0)))
            asyncio.run(_answer(operations, source, say))
    except (asyncio.CancelledError, BrokenPipeError):
        sys.exit(0)
    except Exception as error:
        say({"error": f"{type(error).__name__}: {error}"})


async def _answer(operations: Any, source: IO[bytes], say: Callable[[Result], None]) -> None:
    """Answer requests, until the end of their source cancels what is done then."""
    engine, requests = operations.engine, asyncio.Queue[Result]()
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None

    def read() -> None:
        for line in source:
            loop.call_soon_threadsafe(requests.put_nowait, json.loads(line))
        if engine.blocking:
            os._exit(0)  # the event loop would notice too late; shells end with their terminals
        with contextlib.suppress(RuntimeError):  # the loop is closed: the engine could not be started
            loop.call_soon_threadsafe(task.cancel)

    threading.Thread(target=read, daemon=True).start()
    try:
        await engine.start()
        say({"ready": engine.version})
        while True:
            request = await requests.get()
            try:
                say(await getattr(operations, request.pop("operation"))(**request))
            except Exception as error:
                say({"error": f"{type(error).__name__}: {error}"})
    finally:
        await operations.end()
