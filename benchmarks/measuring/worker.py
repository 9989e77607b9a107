"""Worker process for one benchmark engine.

It reads requests as JSON lines, runs them, and responds with JSON lines. The first request names the engine: its keys
are the arguments of `make`. Each of the others has the name of its `operation`, and the parameters of that.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import signal
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

from .operations import Operations

__all__ = ["serve"]

PATIENCE = 120
"""Seconds that an operation may exceed its `seconds` before the process of a blocking engine ends itself."""

Say = Callable[[dict[str, Any]], None]


async def _requests() -> AsyncIterator[dict[str, Any]]:
    """Yield the driver's requests. The end of standard input, which may come at any time, cancels the calling task."""
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
    """Return the response for an exception; the driver decides how to handle it."""
    return {"error": f"{type(error).__name__}: {error}"}


async def _answer(operations: Operations, say: Say) -> None:
    engine = operations.engine
    requests = _requests()
    try:
        try:
            await engine.start()
            say({"ready": engine.version, "python": platform.python_version()})
            async for request in requests:
                if engine.blocking:  # the event loop may never notice that the driver is gone
                    signal.alarm(int(request.get("seconds", 0)) + PATIENCE)
                try:
                    say(await operations.ask(**request))
                except Exception as error:
                    say(_error(error))
                signal.alarm(0)
        finally:
            await engine.end()
    except Exception as error:
        say(_error(error))


def serve(make: Callable[..., Operations]) -> None:
    """Serve requests until standard input ends, then end every shell."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, as a parent can hand it down, it would hide exit codes
    # Output that a library prints must not mix with the responses.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def say(answer: dict[str, Any]) -> None:
        print(json.dumps(answer), file=answers, flush=True)

    try:
        with open(0, "rb", buffering=0, closefd=False) as requests:
            operations = make(**json.loads(requests.readline() or sys.exit(0)))
    except Exception as error:
        say(_error(error))
        return
    try:
        if factory := operations.engine.loop_factory:
            with asyncio.Runner(loop_factory=factory) as runner:
                runner.run(_answer(operations, say))
        else:
            asyncio.run(_answer(operations, say))
    except (asyncio.CancelledError, BrokenPipeError):
        sys.exit(0)
