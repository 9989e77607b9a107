"""This machine as a sandbox that a library reaches; the library is asyncio."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from swerex_c.sandbox.api_backend import ApiBackend
from swerex_c.sandbox.backend import Process
from tests.support.fake_cloud import Program

__all__ = ["Here", "HereProgram"]


class HereProgram(Process):
    """A process with pipes, or on a terminal."""

    def __init__(self, program: Program) -> None:
        self.program, self.process = program, program.process
        self.abandoned = 0
        self.reading = {asyncio.create_task(program.read(stream)): stream for stream in program.outputs}

    async def send(self, data: bytes) -> None:
        await self.program.write(data)

    async def end_input(self) -> None:
        self.program.end_input()

    async def receive(self) -> tuple[int, bytes] | None:
        while self.reading:
            done, _ = await asyncio.wait(self.reading, return_when=asyncio.FIRST_COMPLETED)
            read = done.pop()
            stream = self.reading.pop(read)
            if data := read.result():
                self.reading[asyncio.create_task(self.program.read(stream))] = stream
                return stream, data
        return None

    async def wait(self) -> int:
        code = await self.program.wait()
        return code if code >= 0 else 128 - code

    async def close(self) -> None:
        self.abandoned += 1
        for each in self.reading:
            each.cancel()
        await asyncio.gather(*self.reading, return_exceptions=True)
        self.program.close()
        self.process.send_signal(signal.SIGHUP)


class Here(ApiBackend):
    """This machine, with a directory to start in."""

    name = "this machine by calls"

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.lost: str | None = None
        self.refuses: str | None = None
        self.programs: list[HereProgram] = []

    async def exec(
        self, argv: Sequence[str], env: Mapping[str, str], terminal: tuple[int, int] | None = None
    ) -> Process:
        if self.refuses:
            raise RuntimeError(self.refuses)
        variables = {"PATH": os.environ["PATH"], "HOME": str(self.directory), **env}
        self.programs.append(HereProgram(Program(argv, variables, self.directory, terminal)))
        return self.programs[-1]

    async def why_lost(self) -> str | None:
        return self.lost
