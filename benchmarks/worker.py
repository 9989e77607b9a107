"""One engine in a process of its own: reads requests as JSON lines, runs them, answers with JSON lines.

bench.py starts one of these per engine, with the interpreter in which that engine lives, and asks them in turn.
Everything is measured here, next to the call that a user would write, so that pipes between processes never count.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import time

from engines import make
from engines.base import is_empty
from measured import Measured, serve
from worker_many import ManySessions
from worker_output import LongOutput

__all__ = ["Workloads"]


class Workloads(LongOutput, ManySessions):
    """Each method is one operation that bench.py may ask for; its parameters are those of the request."""

    async def command(self, text: str, count: int, warm: int, rest_us: int = 0) -> dict[str, object]:
        key, run, clock = await self.session("command"), self.contender.run, time.perf_counter_ns
        samples: list[int] = []
        wrong = 0
        for _ in range(warm):
            await run(key, text)
        with Measured() as measured:
            for _ in range(count):
                if rest_us:
                    until = clock() + rest_us * 1000
                    while clock() < until:
                        pass
                start = clock()
                answer = await run(key, text)
                samples.append(clock() - start)
                wrong += not is_empty(answer)
        return measured.result(count=count, wrong=wrong, samples_us=[s / 1e3 for s in samples])

    async def create(self, count: int) -> dict[str, object]:
        samples: list[float] = []
        wrong = 0
        with Measured() as measured:
            for i in range(count):
                start = time.perf_counter_ns()
                await self.contender.open(f"create{i}")
                samples.append((time.perf_counter_ns() - start) / 1e3)
                wrong += not is_empty(await self.contender.run(f"create{i}", "true"))
                await self.contender.close(f"create{i}")
        return measured.result(count=count, wrong=wrong, samples_us=samples)

    async def create_warm(self, count: int, together: int = 1, files: tuple[str, ...] = ()) -> dict[str, object]:
        """From shells that wait, so many at once; the time of a turn until all are there, by their number."""
        samples: list[float] = []
        wrong = 0
        with Measured() as measured:
            for i in range(count):
                keys = [f"warm{i}-{j}" for j in range(together)]
                await self.contender.ready()
                start = time.perf_counter_ns()
                if together > 1:
                    await asyncio.gather(*(self.contender.open_with(key, list(files)) for key in keys))
                else:
                    await self.contender.open_with(keys[0], list(files))
                samples.append((time.perf_counter_ns() - start) / 1e3 / together)
                for key in keys:
                    wrong += not is_empty(await self.contender.run(key, "true"))
                    await self.contender.close(key)
        return measured.result(count=count * together, wrong=wrong, samples_us=samples)

    async def replay(self, actions: list[tuple[str, str | None, int]], count: int) -> dict[str, object]:
        """All actions, one after the other; the time of them together."""
        key = await self.session("replay")
        samples: list[float] = []
        wrong = 0
        with Measured() as measured:
            for _ in range(count):
                took = 0
                for text, expected, code in actions:
                    start = time.perf_counter_ns()
                    output, ended = await self.contender.run(key, text)
                    took += time.perf_counter_ns() - start
                    said = output.decode() if isinstance(output, bytes) else output
                    wrong += ended != code or (expected is not None and said != expected)
                samples.append(took / 1e3)
        return measured.result(count=count, wrong=wrong, samples_us=samples)

    async def interrupt(self, count: int) -> dict[str, object]:
        key = await self.session("interrupt")
        samples: list[float] = []
        wrong = 0
        with Measured() as measured:
            for _ in range(count):
                await self.contender.begin(key, "sleep 100")
                start = time.perf_counter_ns()
                await self.contender.interrupt(key)
                samples.append((time.perf_counter_ns() - start) / 1e3)
                wrong += not is_empty(await self.contender.run(key, "true"))
        return measured.result(count=count, wrong=wrong, samples_us=samples)

    async def interrupt_running(self, count: int) -> dict[str, object]:
        key = await self.session("interrupt_running")
        samples: list[float] = []
        wrong = 0
        with Measured() as measured:
            for _ in range(count):
                samples.append(await self.contender.interrupt_running(key, "sleep 100") * 1e6)
                wrong += not is_empty(await self.contender.run(key, "true"))
        return measured.result(count=count, wrong=wrong, samples_us=samples)

    async def execute(self, text: str, count: int) -> dict[str, object]:
        samples: list[float] = []
        wrong = 0
        await self.contender.execute(text)
        with Measured() as measured:
            for _ in range(count):
                start = time.perf_counter_ns()
                answer = await self.contender.execute(text)
                samples.append((time.perf_counter_ns() - start) / 1e3)
                wrong += not is_empty(answer)
        return measured.result(count=count, wrong=wrong, samples_us=samples)

    async def imports(self, count: int, module: str = "") -> dict[str, object]:
        """A new interpreter that imports the runtime, or another module, less one that imports nothing."""

        def took(code: str) -> float:
            start = time.perf_counter_ns()
            subprocess.run([sys.executable, "-c", code], check=True)
            return (time.perf_counter_ns() - start) / 1e3

        code = f"import {module or self.contender.package + '.runtime.local'}"
        took(code)
        with Measured() as measured:
            pairs = [(took("pass"), took(code)) for _ in range(count)]
        nothing = statistics.median(pair[0] for pair in pairs)
        return measured.result(count=count, wrong=0, samples_us=[pair[1] - nothing for pair in pairs])


if __name__ == "__main__":
    serve(lambda name: Workloads(make(name)))
