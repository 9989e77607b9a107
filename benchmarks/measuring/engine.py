"""Base class of all engines, which run commands in shells named by keys."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

__all__ = ["GIVE_UP", "Answer", "Engine", "is_right"]

Answer = tuple[str | bytes, int | None]
"""Output and exit code."""

GIVE_UP = 0.2
"""Seconds that the caller of `begin` waits before it gives up on the command, which must have started by then."""


def is_right(answer: Answer | None, output: str = "") -> bool:
    """Check whether a command exited with 0 and its output equals `output`."""
    said, code = answer or ("", None)
    return code == 0 and (said.decode(errors="replace") if isinstance(said, bytes) else said) == output


class Engine:
    """One way to run commands.

    The rows select the engines, so unsupported operations are not called.
    """

    blocking = False
    """True if commands block the event loop, so that a signal must end the process without the event loop."""

    threads = False
    """True if many shells at once need a thread each, which calls `run_now`."""

    version = ""
    """Version of the measured package, if it is not this one."""

    loop_factory: Callable[[], Any] | None = None
    """Factory of the event loop; None means that of asyncio."""

    async def start(self) -> None:
        """Prepare the engine; called once."""

    async def end(self) -> None:
        """End every shell."""

    async def open(self, key: str) -> None:
        """Start a shell, and wait until it accepts commands."""
        raise NotImplementedError

    async def close(self, key: str) -> None:
        """End a shell."""
        raise NotImplementedError

    async def run(self, key: str, text: str) -> Answer:
        """Run a command in a shell."""
        return self.run_now(key, text)

    def run_now(self, key: str, text: str) -> Answer:
        """Run a command in a shell, without an event loop."""
        raise NotImplementedError

    async def begin(self, key: str, text: str) -> None:
        """Run a command that does not end by itself, and return after `GIVE_UP`."""
        raise NotImplementedError

    async def interrupt(self, key: str) -> None:
        """Interrupt the command that `begin` left running; wait until the shell is ready."""
        raise NotImplementedError

    async def execute(self, text: str) -> Answer | None:
        """Run a command without a persistent shell.

        Returns:
            None from an engine that does not run the command, but only moves as many bytes.
        """
        raise NotImplementedError

    async def fleet(self, keys: list[str], text: str, count: int, until: float) -> tuple[list[float], int]:
        """Run a command again and again in all shells at once.

        Each shell runs it `count` times, or until `until` by `time.perf_counter`, but at least once.

        Returns:
            the microseconds of each run, and the number of wrong answers.
        """
        samples: list[float] = []
        clock = time.perf_counter_ns

        async def work(key: str) -> int:
            wrong = 0
            for _ in range(count):
                start = clock()
                answer = await self.run(key, text)
                samples.append((clock() - start) / 1e3)
                wrong += not is_right(answer)
                if time.perf_counter() >= until:
                    break
            return wrong

        def work_now(key: str) -> int:
            wrong = 0
            for _ in range(count):
                start = clock()
                answer = self.run_now(key, text)
                samples.append((clock() - start) / 1e3)
                wrong += not is_right(answer)
                if time.perf_counter() >= until:
                    break
            return wrong

        if not self.threads:
            return samples, sum(await asyncio.gather(*map(work, keys)))
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(len(keys)) as pool:
            done = await asyncio.gather(*(loop.run_in_executor(pool, work_now, key) for key in keys))
        return samples, sum(done)

    async def place(self, path: str) -> str:
        """Copy a local file to the machine of the commands, and return its path there."""
        return path
