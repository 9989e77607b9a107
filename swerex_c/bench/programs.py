"""`subprocess.run` for each command: what somebody has who keeps no shell."""

from __future__ import annotations

import asyncio
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

from swerex_c.bench.engines import Answer, Engine, is_right

__all__ = ["Programs"]


def _run(words: list[str]) -> Answer:
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True)
    return done.stdout, done.returncode


class Programs(Engine):
    """A new shell for each command. Nothing that one changes is there for the next."""

    blocking = True

    async def open(self, key: str) -> None:
        pass

    async def close(self, key: str) -> None:
        pass

    async def run(self, key: str, text: str) -> Answer:
        return _run(["bash", "-c", text])

    async def execute(self, text: str) -> Answer:
        return _run(["sh", "-c", text])

    async def fleet(self, keys: list[str], text: str, until: float) -> tuple[int, int]:
        def work(_: str) -> tuple[int, int]:
            count = wrong = 0
            while not count or time.perf_counter() < until:
                wrong += not is_right(_run(["bash", "-c", text]))
                count += 1
            return count, wrong

        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(len(keys)) as pool:
            done = await asyncio.gather(*(loop.run_in_executor(pool, work, key) for key in keys))
        return sum(each[0] for each in done), sum(each[1] for each in done)
