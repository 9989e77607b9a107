"""One engine in a process of its own: reads requests as JSON lines, runs them, answers with JSON lines.

bench.py starts one of these per engine, with the interpreter in which that engine lives, and asks them in turn.
Everything is measured here, next to the call that a user would write, so that pipes between processes never count.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

from engines import make
from engines.base import Answer, Contender, is_empty
from engines.core import Core
from measured import Measured, memory_kb, self_cpu, serve

__all__ = ["Workloads"]


class Workloads:
    """Each method is one operation that bench.py may ask for; its parameters are those of the request."""

    def __init__(self, contender: Contender) -> None:
        self.contender = contender
        self.kept: set[str] = set()

    async def session(self, key: str) -> str:
        """A session that stays open between rounds; one for each operation, so that none disturbs another."""
        if key not in self.kept:
            await self.contender.open(key)
            self.kept.add(key)
        return key

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

    async def output(self, path: str, count: int) -> dict[str, object]:
        """`cat path`; the answer must be the file.  rss_growth_kb: how far memory peaked above where it was."""
        key = await self.session("output")
        samples: list[float] = []
        wrong = 0
        Path("/proc/self/clear_refs").write_text("5")
        before, peak = memory_kb("VmRSS"), 0
        with Measured() as measured:
            for _ in range(count):
                start = time.perf_counter_ns()
                answer = await self.contender.run(key, f"cat {path}")
                samples.append((time.perf_counter_ns() - start) / 1e3)
                peak = peak or memory_kb("VmHWM")
                wrong += not self.is_file(answer, path)
                del answer
        growth = {"rss_growth_kb": peak - before, "rss_peak_kb": peak, "bytes": os.path.getsize(path)}
        return measured.result(count=count, wrong=wrong, samples_us=samples, **growth)

    @staticmethod
    def is_file(answer: Answer, path: str) -> bool:
        output = answer[0].encode() if isinstance(answer[0], str) else answer[0]
        return answer[1] == 0 and output == Path(path).read_bytes()

    async def patterns(
        self, path: str, patterns: list[str], needle: str, expected: str, count: int
    ) -> dict[str, object]:
        """Reading the file with and without waiting for one of the patterns, in turn."""
        key = await self.session("patterns")
        samples: list[float] = []
        plain: list[float] = []
        cpu_plain = cpu_waiting = 0.0
        wrong = 0
        text = f"cat {path}; echo {needle}"
        with Measured() as measured:
            for _ in range(count):
                cpu_plain -= self_cpu()
                start = time.perf_counter_ns()
                answer = await self.contender.run(key, text)
                plain.append((time.perf_counter_ns() - start) / 1e3)
                cpu_plain += self_cpu()
                wrong += answer[1] != 0 or len(answer[0]) != os.path.getsize(path) + len(needle) + 1
                cpu_waiting -= self_cpu()
                start = time.perf_counter_ns()
                found = await self.contender.wait_for(key, text, patterns)
                samples.append((time.perf_counter_ns() - start) / 1e3)
                cpu_waiting += self_cpu()
                wrong += found != expected
                await asyncio.sleep(0.05)
                wrong += not is_empty(await self.contender.run(key, "true"))
        cpu = {"cpu_plain_us": cpu_plain, "cpu_waiting_us": cpu_waiting}
        return measured.result(count=count, wrong=wrong, samples_us=samples, plain_us=plain, **cpu)

    async def idle(self, sessions: int, seconds: float) -> dict[str, object]:
        before = memory_kb("VmRSS")
        for i in range(sessions):
            await self.contender.open(f"idle{i}")
        memory = memory_kb("VmRSS") - before
        await asyncio.sleep(0.5)
        with Measured() as measured:
            await asyncio.sleep(seconds)
        wrong = 0
        for i in range(sessions):
            wrong += not is_empty(await self.contender.run(f"idle{i}", "true"))
            await self.contender.close(f"idle{i}")
        return measured.result(count=sessions, wrong=wrong, rss_per_session_kb=memory / sessions)

    async def fleet(self, sessions: int, commands: int, one_waker: bool = False) -> dict[str, object]:
        keys = [f"fleet{i}" for i in range(sessions)]
        wrong: list[int] = []
        for key in keys:
            await self.contender.open(key)
            await self.contender.run(key, "true")

        async def work(key: str) -> None:
            run = self.contender.run
            wrong.append(sum([not is_empty(await run(key, "true")) for _ in range(commands)]))

        def work_now(key: str) -> None:
            run = self.contender.run_now
            wrong.append(sum(not is_empty(run(key, "true")) for _ in range(commands)))

        if one_waker:
            assert isinstance(self.contender, Core)
            with Measured() as measured:
                wrong = [0] * (sessions - 1) + [self.contender.run_all(keys, "true", commands)]
        elif self.contender.threads:
            threads = [threading.Thread(target=work_now, args=(key,)) for key in keys]
            with Measured() as measured:
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
        else:
            with Measured() as measured:
                await asyncio.gather(*(work(key) for key in keys))
        for key in keys:
            await self.contender.close(key)
        total = sessions * commands
        missing = commands * (sessions - len(wrong))
        return measured.result(count=total, wrong=sum(wrong) + missing, per_second=total / measured.seconds)

    async def stall(self, sessions: int, megabytes: int) -> dict[str, object]:
        """How late a timer of 1 ms is on the event loop, while sessions run commands and one prints."""
        keys = [f"stall{i}" for i in range(sessions)]
        for key in keys:
            await self.contender.open(key)
        late: list[float] = []
        ended, wrong = asyncio.Event(), 0

        async def tick() -> None:
            while not ended.is_set():
                due = time.perf_counter() + 0.001
                await asyncio.sleep(0.001)
                late.append(max(0.0, time.perf_counter() - due) * 1e6)

        async def work(key: str) -> int:
            bad = 0
            while not ended.is_set():
                bad += not is_empty(await self.contender.run(key, "sleep 0.5"))
            return bad

        with Measured() as measured:
            ticking = asyncio.ensure_future(tick())
            working = [asyncio.ensure_future(work(key)) for key in keys[1:]]
            if megabytes:
                for _ in range(megabytes // 10):
                    output, code = await self.contender.run(keys[0], "head -c 10000000 /dev/zero | tr '\\0' x")
                    wrong += len(output) != 10_000_000 or code != 0
            else:
                await asyncio.sleep(1)
            ended.set()
            wrong += sum(await asyncio.gather(*working))
            await ticking
        for key in keys:
            await self.contender.close(key)
        return measured.result(count=len(late), wrong=wrong, samples_us=late)

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

    async def threads(self, count: int) -> dict[str, object]:
        """Commands of one thread in its session, and of two in theirs: how many more a second."""
        text = "for ((i = 0; i < 300; i++)); do :; done"
        for i in (0, 1):
            await self.session(f"threads{i}")
        wrong: list[int] = []

        def work(key: str) -> None:
            wrong.append(sum(not is_empty(self.contender.run_now(key, text)) for _ in range(count)))

        def rate(number: int) -> float:
            threads = [threading.Thread(target=work, args=(f"threads{i}",)) for i in range(number)]
            start = time.perf_counter()
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            return number * count / (time.perf_counter() - start)

        with Measured() as measured:
            one, two = rate(1), rate(2)
        missing = count * (3 - len(wrong))
        return measured.result(count=3 * count, wrong=sum(wrong) + missing, per_second=one, speedup=two / one)

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

    async def imports(self, count: int) -> dict[str, object]:
        """A new interpreter that imports the runtime, less one that imports nothing."""

        def took(code: str) -> float:
            start = time.perf_counter_ns()
            subprocess.run([sys.executable, "-c", code], check=True)
            return (time.perf_counter_ns() - start) / 1e3

        code = f"import {self.contender.package}.runtime.local"
        took(code)
        with Measured() as measured:
            pairs = [(took("pass"), took(code)) for _ in range(count)]
        nothing = statistics.median(pair[0] for pair in pairs)
        return measured.result(count=count, wrong=0, samples_us=[pair[1] - nothing for pair in pairs])


if __name__ == "__main__":
    serve(lambda name: Workloads(make(name)))
