"""A place that is reached by calls and is this machine: what libraries do elsewhere, done here by asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import pty
import signal
import struct
import termios
from collections.abc import Mapping, Sequence
from pathlib import Path

from swerex_c.sandbox.api_backend import ApiBackend
from swerex_c.sandbox.backend import Process
from tests.support.wait import until_ready

__all__ = ["Here", "HereProgram"]


class HereProgram(Process):
    """A process with pipes, or on a terminal."""

    def __init__(self, process: asyncio.subprocess.Process, master: int | None) -> None:
        self.process, self.master = process, master
        self.outputs: asyncio.Queue[tuple[int, bytes] | None] = asyncio.Queue(maxsize=4)
        self.abandoned = 0
        if master is None:
            self.reading = [asyncio.create_task(self._read(1)), asyncio.create_task(self._read(2))]
        else:
            self.reading = [asyncio.create_task(self._read_terminal(master))]
        self.open = len(self.reading)

    async def _read(self, stream: int) -> None:
        pipe = self.process.stdout if stream == 1 else self.process.stderr
        assert pipe is not None
        while data := await pipe.read(65536):
            await self.outputs.put((stream, data))
        await self.outputs.put(None)

    async def _read_terminal(self, master: int) -> None:
        while True:
            await until_ready(master)
            try:
                data = os.read(master, 65536)
            except OSError:
                data = b""
            if not data:
                break
            await self.outputs.put((1, data))
        await self.outputs.put(None)

    async def send(self, data: bytes) -> None:
        if self.master is None:
            assert self.process.stdin is not None
            self.process.stdin.write(data)
            await self.process.stdin.drain()
            return
        while data:
            try:
                data = data[os.write(self.master, data) :]
            except BlockingIOError:
                await until_ready(self.master, write=True)

    async def end_input(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()

    async def receive(self) -> tuple[int, bytes] | None:
        while self.open:
            output = await self.outputs.get()
            if output is not None:
                return output
            self.open -= 1
        return None

    async def wait(self) -> int:
        code = await self.process.wait()
        return code if code >= 0 else 128 - code

    async def close(self) -> None:
        self.abandoned += 1
        for each in self.reading:
            each.cancel()
        await asyncio.gather(*self.reading, return_exceptions=True)
        if self.master is not None:
            os.close(self.master)
            self.master = None
        with contextlib.suppress(ProcessLookupError):
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
        if terminal is None:
            pipe = asyncio.subprocess.PIPE
            process = await asyncio.create_subprocess_exec(
                *argv, stdin=pipe, stdout=pipe, stderr=pipe, env=variables, cwd=self.directory, start_new_session=True
            )
            self.programs.append(HereProgram(process, None))
            return self.programs[-1]
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("4H", *terminal, 0, 0))
        os.set_blocking(master, False)
        try:
            process = await asyncio.create_subprocess_exec(
                "setsid", "-c", "-w", *argv, stdin=slave, stdout=slave, stderr=slave, env=variables, cwd=self.directory
            )
        finally:
            os.close(slave)
        self.programs.append(HereProgram(process, master))
        return self.programs[-1]

    async def why_lost(self) -> str | None:
        return self.lost
