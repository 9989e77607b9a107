"""Programs of a backend, on pipes and without a runtime between."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from collections.abc import AsyncIterator

from swerex_c.sandbox.backend import Backend, Process
from swerex_c.utils import background

__all__ = ["collect", "run", "started"]

SECONDS = 60.0


@contextlib.asynccontextmanager
async def started(backend: Backend, *argv: str, **variables: str) -> AsyncIterator[Process]:
    """Start a program, in the private event loop, and close it after the block."""
    process = await backend.exec(argv, variables)
    try:
        yield process
    finally:
        await process.close()


async def collect(process: Process, outputs: dict[int, bytes]) -> int:
    """Read what a program prints, and return its exit code."""
    while (output := await process.receive()) is not None:
        outputs[output[0]] += output[1]
    return await process.wait()


def run(backend: Backend, *argv: str, input: bytes = b"", **variables: str) -> subprocess.CompletedProcess[bytes]:
    """Run a program to its end. An error is an exit code of 255, with a line on standard error. Blocks."""
    outputs = {1: b"", 2: b""}

    async def work() -> int:
        async with started(backend, *argv, **variables) as process:
            collecting = asyncio.ensure_future(collect(process, outputs))
            if input:
                await process.send(input)
            await process.end_input()
            return await collecting

    try:
        code = background.run_blocking(work(), SECONDS)
    except Exception as error:
        code = 255
        outputs[2] += " ".join(str(error).split()).encode() + b"\n"
    return subprocess.CompletedProcess(argv, code, outputs[1], outputs[2])
