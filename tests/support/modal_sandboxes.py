"""The sandboxes of `modal_server`: what runs in them runs on this machine, in a directory, with a mark of its own."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.fake_cloud import STDERR, STDOUT, Program, kill_all

__all__ = ["Exec", "Sandbox"]

KEPT = 8 << 20
"""Bytes of a stream that may be unread; then the program has to wait."""


class Stream:
    """What a program has printed, from some byte on."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.first = 0
        self.ended = False
        self.changed = asyncio.Condition()

    async def add(self, data: bytes) -> None:
        async with self.changed:
            await self.changed.wait_for(lambda: len(self.data) < KEPT)
            self.data += data
            self.changed.notify_all()

    async def end(self) -> None:
        async with self.changed:
            self.ended = True
            self.changed.notify_all()

    async def read(self, offset: int, size: int = 65536) -> bytes:
        """Bytes from there on; b"" at the end. What is long before is forgotten: it will not be asked for again."""
        async with self.changed:
            await self.changed.wait_for(lambda: self.ended or offset < self.first + len(self.data))
            if offset < self.first:
                raise ValueError("Forgotten")
            old = offset - self.first - (1 << 20)
            if old > 0:
                del self.data[:old]
                self.first += old
                self.changed.notify_all()
            start = offset - self.first
            return bytes(self.data[start : start + size])


class Exec:
    """A program, what it has printed, and how much of its input it has got."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.outputs = {stream: Stream() for stream in (STDOUT, STDERR)}
        self.written = 0
        self.writing = asyncio.Lock()
        self.tasks = [asyncio.create_task(self._read(stream)) for stream in self.outputs]

    async def _read(self, stream: int) -> None:
        if stream in self.program.outputs:
            while data := await self.program.read(stream):
                await self.outputs[stream].add(data)
        await self.outputs[stream].end()

    async def write(self, offset: int, data: bytes, eof: bool) -> None:
        """What is sent again is not written again.

        Raises:
            ValueError: if something before is missing.
        """
        async with self.writing:
            if offset > self.written:
                raise ValueError(f"{offset} comes after {self.written}")
            data = data[self.written - offset :]
            while data:
                count = await self.program.write_some(data)
                self.written += count
                data = data[count:]
            if eof:
                self.program.end_input()

    async def close(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        self.program.close()


class Sandbox:
    """A directory, a mark that all that runs for it has in its environment, and how it ended."""

    def __init__(self, number: str, root: Path, *, tags: dict[str, str], app: str) -> None:
        self.id, self.task = f"sb-{number}", f"ta-{number}V"
        self.directory = root / self.id
        self.directory.mkdir()
        self.tags, self.app = tags, app
        self.created = time.time()
        self.status = 0
        self.code = 0
        self.ended = asyncio.Event()
        self.vanished = False
        self.execs: dict[str, Exec] = {}

    def start(self, argv: Sequence[str], variables: Mapping[str, str], seconds: float) -> None:
        own = {"PATH": os.environ["PATH"], "HOME": str(self.directory), "TMPDIR": str(self.directory)}
        self.variables = own | dict(variables) | {"MODAL_SANDBOX_ID": self.id}
        self.main = Exec(Program(argv, self.variables, self.directory))
        self.watching = asyncio.create_task(self._watch(seconds))

    async def _watch(self, seconds: float) -> None:
        """Ends when the main program does, or when its time is over."""
        try:
            code = await asyncio.wait_for(self.main.program.wait(), seconds)
        except TimeoutError:
            await self.end("TIMEOUT", 0)
        else:
            await self.end("SUCCESS" if code == 0 else "FAILURE", code if code >= 0 else 128 - code)

    async def end(self, status: str, code: int) -> None:
        """Kill all that runs in it."""
        from modal_proto import api_pb2

        if self.ended.is_set():
            return
        self.status = api_pb2.GenericResult.GenericStatus.Value(f"GENERIC_STATUS_{status}")
        self.code = code
        self.ended.set()
        await asyncio.to_thread(kill_all, f"MODAL_SANDBOX_ID={self.id}")
        if self.watching is not asyncio.current_task():
            self.watching.cancel()
        for each in (self.main, *self.execs.values()):
            await each.close()
        shutil.rmtree(self.directory, ignore_errors=True)
