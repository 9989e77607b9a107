"""The operations of a worker with many bytes: long output whole, bounded and streamed, long input, patterns in it."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from engines.base import Answer, is_empty
from measured import Measured, give_back, memory_kb, self_cpu
from worker_base import Operations

__all__ = ["LongOutput"]

PIECE = 1 << 20
"""Bytes that are compared at a time, so that a comparison needs no memory worth mentioning."""


class Growth:
    """How far this process's memory peaks above where it was, when it had given back what it does not use."""

    def __init__(self) -> None:
        give_back()
        Path("/proc/self/clear_refs").write_text("5")
        self.before, self.peak = memory_kb("VmRSS"), 0

    def look(self) -> None:
        """Only the first time: what is done afterwards to compare an answer does not count."""
        self.peak = self.peak or memory_kb("VmHWM")

    def result(self) -> dict[str, int]:
        return {"rss_growth_kb": max(0, self.peak - self.before), "rss_peak_kb": self.peak}


class LongOutput(Operations):
    async def output(self, path: str, count: int) -> dict[str, object]:
        """`cat path`; the answer must be the file."""
        key = await self.session("output")
        samples: list[float] = []
        wrong = 0
        growth = Growth()
        with Measured() as measured:
            for _ in range(count):
                start = time.perf_counter_ns()
                answer = await self.contender.run(key, f"cat {path}")
                samples.append((time.perf_counter_ns() - start) / 1e3)
                growth.look()
                with measured.aside():
                    wrong += not is_file(answer, path)
                    del answer
        size = os.path.getsize(path)
        return measured.result(count=count, wrong=wrong, samples_us=samples, bytes=size, **growth.result())

    async def bounded(self, path: str, count: int) -> dict[str, object]:
        """`cat path`, of which the engine keeps a beginning and an end and says how much it has left out between."""
        key = await self.session("bounded")
        samples: list[float] = []
        wrong = 0
        growth, size = Growth(), os.path.getsize(path)
        with Measured() as measured:
            for _ in range(count):
                start = time.perf_counter_ns()
                output, code, dropped = await self.contender.run_bounded(key, f"cat {path}")
                samples.append((time.perf_counter_ns() - start) / 1e3)
                growth.look()
                with measured.aside():
                    wrong += code != 0 or not are_its_ends(output.encode(), dropped, path)
        return measured.result(count=count, wrong=wrong, samples_us=samples, bytes=size, **growth.result())

    async def streamed(self, path: str, count: int) -> dict[str, object]:
        """`cat path`, taken in pieces as they come, each compared with the file; nothing is kept."""
        key = await self.session("streamed")
        samples: list[float] = []
        wrong = 0
        growth, size = Growth(), os.path.getsize(path)
        with Measured() as measured:
            for _ in range(count):
                with open(path, "rb", buffering=0) as file:
                    same = [True]

                    def take(text: str, file: object = file, same: list[bool] = same) -> None:
                        piece = text.encode()
                        same[0] = same[0] and file.read(len(piece)) == piece  # type: ignore[attr-defined]

                    start = time.perf_counter_ns()
                    code = await self.contender.stream(key, f"cat {path}", take)
                    samples.append((time.perf_counter_ns() - start) / 1e3)
                    growth.look()
                    wrong += code != 0 or not same[0] or bool(file.read(1))
        return measured.result(count=count, wrong=wrong, samples_us=samples, bytes=size, **growth.result())

    async def typed(self, kilobytes: int, count: int) -> dict[str, object]:
        """A here-document; its size comes back."""
        key = await self.session("typed")
        line = "0123456789" * 6 + "abc\n"
        text = f"wc -c <<'EOF'\n{line * (kilobytes * 1024 // len(line))}EOF"
        samples: list[float] = []
        wrong = 0
        with Measured() as measured:
            for _ in range(count):
                start = time.perf_counter_ns()
                output, code = await self.contender.run(key, text)
                samples.append((time.perf_counter_ns() - start) / 1e3)
                wrong += code != 0 or int(output) != kilobytes * 1024
        return measured.result(count=count, wrong=wrong, samples_us=samples)

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


def is_file(answer: Answer, path: str) -> bool:
    """Whether it is exactly what is in the file."""
    output, code = answer
    if code != 0 or len(output) != os.path.getsize(path):
        return False
    with open(path, "rb") as file:
        for start in range(0, len(output), PIECE):
            piece = output[start : start + PIECE]
            if file.read(PIECE) != (piece.encode() if isinstance(piece, str) else piece):
                return False
    return True


def are_its_ends(output: bytes, dropped: int, path: str) -> bool:
    """Whether it is a beginning and an end of the file, between which so many bytes are missing."""
    size = os.path.getsize(path)
    if len(output) + dropped != size:
        return False
    with open(path, "rb") as file:
        beginning = file.read(len(output))
        head, beyond = 0, len(output) + 1
        while beyond - head > 1:
            middle = (head + beyond) // 2
            head, beyond = (middle, beyond) if output[:middle] == beginning[:middle] else (head, middle)
        file.seek(size - (len(output) - head))
        return file.read() == output[head:]
