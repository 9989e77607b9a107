"""The process of one engine: the operations of the core, and those that only the rows of this directory ask for."""

from __future__ import annotations

import asyncio
import itertools
import statistics
import subprocess
import sys
import time

from engines import make
from measuring.engine import is_right
from measuring.worker import serve
from rows import Result
from worker_many import ManySessions
from worker_output import LongOutput

__all__ = ["Workloads"]


class Workloads(LongOutput, ManySessions):
    """All operations of an engine."""

    async def create_warm(self, count: int, together: int = 1, files: tuple[str, ...] = ()) -> Result:
        """From shells that wait, so many at once; the time of a turn until all are there, by their number."""
        numbers = itertools.count()

        async def one() -> tuple[float, bool]:
            keys = [f"warm{next(numbers)}" for _ in range(together)]
            await self.engine.ready()
            start = time.perf_counter_ns()
            if together > 1:
                await asyncio.gather(*(self.engine.open_with(key, list(files)) for key in keys))
            else:
                await self.engine.open_with(keys[0], list(files))
            took = (time.perf_counter_ns() - start) / 1e3 / together
            wrong = 0
            for key in keys:
                wrong += await self.check(key)
                await self.engine.close(key)
            return took, not wrong

        return await self.sample(one, count=count)

    async def replay(self, actions: list[tuple[str, str | None, int]], count: int) -> Result:
        """All actions, one after the other; the time of them together."""
        key = await self.session("replay")

        async def one() -> tuple[float, bool]:
            took, wrong = 0.0, 0
            for text, expected, code in actions:
                us, (output, ended) = await self.timed(lambda text=text: self.engine.run(key, text))  # type: ignore[misc]
                took += us
                said = output.decode() if isinstance(output, bytes) else output
                wrong += ended != code or (expected is not None and said != expected)
            return took, not wrong

        return await self.sample(one, count=count)

    async def interrupt_running(self, count: int) -> Result:
        key = await self.session("interrupt_running")

        async def one() -> tuple[float, bool]:
            took = await self.engine.interrupt_running(key, "sleep 100")
            return took, is_right(await self.engine.run(key, "true"))

        return await self.sample(one, count=count)

    async def imports(self, count: int, module: str = "") -> Result:
        """A new interpreter that imports the runtime, or another module, less one that imports nothing."""

        def took(code: str) -> float:
            start = time.perf_counter_ns()
            subprocess.run([sys.executable, "-c", code], check=True)
            return (time.perf_counter_ns() - start) / 1e3

        code = f"import {module or self.engine.package + '.runtime.local'}"
        took(code)
        with self.measuring() as measured:
            pairs = [(took("pass"), took(code)) for _ in range(count)]
        nothing = statistics.median(pair[0] for pair in pairs)
        return measured.result(count=count, wrong=0, samples_us=[pair[1] - nothing for pair in pairs])


def operations(kind: str) -> Workloads:
    return Workloads(make(kind))


if __name__ == "__main__":
    serve(operations)
