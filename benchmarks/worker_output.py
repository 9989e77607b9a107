"""The operations of a worker with many bytes: long output whole, bounded and streamed, long input, patterns in it."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from measuring.engine import is_right
from measuring.measured import self_cpu
from rows import Result
from worker_base import Operations, Peaks

__all__ = ["LongOutput"]


class LongOutput(Operations):
    async def output(self, path: str, **limits: Any) -> Result:
        """`cat path`; the answer must be the file."""
        await self.session("output")
        peaks = Peaks()
        return {**await super().output(path, **limits), **peaks.growth()}

    async def bounded(self, path: str, count: int) -> Result:
        """`cat path`, of which the engine keeps a beginning and an end and says how much it has left out between."""
        key, measured = await self.session("bounded"), self.measuring()
        peaks = Peaks()

        async def one() -> tuple[float, bool]:
            took, answer = await self.timed(lambda: self.engine.run_bounded(key, f"cat {path}"))
            output, code, dropped = answer
            with measured.aside():
                return took, code == 0 and are_its_ends(output.encode(), dropped, path)

        found = await self.sample(one, count=count, measured=measured)
        return {**found, "bytes": os.path.getsize(path), **peaks.growth()}

    async def streamed(self, path: str, count: int) -> Result:
        """`cat path`, taken in pieces as they come, each compared with the file; nothing is kept."""
        key = await self.session("streamed")
        peaks = Peaks()

        async def one() -> tuple[float, bool]:
            with open(path, "rb", buffering=0) as file:
                same = True

                def take(text: str) -> None:
                    nonlocal same
                    piece = text.encode()
                    same = same and file.read(len(piece)) == piece

                took, code = await self.timed(lambda: self.engine.stream(key, f"cat {path}", take))
                return took, code == 0 and same and not file.read(1)

        return {**await self.sample(one, count=count), "bytes": os.path.getsize(path), **peaks.growth()}

    async def typed(self, kilobytes: int, count: int) -> Result:
        """A here-document; its size comes back."""
        key = await self.session("typed")
        line = "0123456789" * 6 + "abc\n"
        text = f"wc -c <<'EOF'\n{line * (kilobytes * 1024 // len(line))}EOF"

        async def one() -> tuple[float, bool]:
            took, (output, code) = await self.timed(lambda: self.engine.run(key, text))
            return took, code == 0 and int(output) == kilobytes * 1024

        return await self.sample(one, count=count)

    async def patterns(self, path: str, patterns: list[str], needle: str, expected: str, count: int) -> Result:
        """Reading the file with and without waiting for one of the patterns, in turn."""
        key = await self.session("patterns")
        text, size = f"cat {path}; echo {needle}", os.path.getsize(path) + len(needle) + 1
        plain: list[float] = []
        cpu = {"cpu_plain_us": 0.0, "cpu_waiting_us": 0.0}

        async def one() -> tuple[float, bool]:
            before = self_cpu()
            took, (output, code) = await self.timed(lambda: self.engine.run(key, text))
            plain.append(took)
            between = self_cpu()
            took, found = await self.timed(lambda: self.engine.wait_for(key, text, patterns))
            cpu["cpu_plain_us"] += between - before
            cpu["cpu_waiting_us"] += self_cpu() - between
            await asyncio.sleep(0.05)
            right = code == 0 and len(output) == size and found == expected
            return took, is_right(await self.engine.run(key, "true")) and right

        return {**await self.sample(one, count=count), "plain_us": plain, **cpu}


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
