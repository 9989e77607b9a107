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
    """What a program has printed."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.asked = 0
        self.ended = False
        self.changed = asyncio.Condition()

    async def add(self, data: bytes) -> None:
        async with self.changed:
            await self.changed.wait_for(lambda: len(self.data) - self.asked < KEPT)
            self.data += data
            self.ended = not data
            self.changed.notify_all()

    async def read(self, offset: int) -> bytes:
        """Bytes from there on; b"" at the end."""
        async with self.changed:
            self.asked = max(self.asked, offset)
            self.changed.notify_all()
            await self.changed.wait_for(lambda: self.ended or offset < len(self.data))
            return bytes(self.data[offset : offset + 65536])


class Exec:
    """A program, what it has printed, and how much of its input it has got."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.outputs = {stream: Stream() for stream in (STDOUT, STDERR)}
        self.written = 0
        self.writing = asyncio.Lock()
        self.tasks = [asyncio.create_task(self._read(stream)) for stream in self.outputs]

    async def _read(self, stream: int) -> None:
        data = b"..."
        while data:
            data = await self.program.read(stream) if stream in self.program.outputs else b""
            await self.outputs[stream].add(data)

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
        self.status = self.code = 0
        self.ended = asyncio.Event()
        self.vanished = False
        self.execs: dict[str, Exec] = {}

    def start(self, argv: Sequence[str], variables: Mapping[str, str]) -> None:
        own = {"PATH": os.environ["PATH"], "HOME": str(self.directory), "TMPDIR": str(self.directory)}
        self.variables = own | dict(variables) | {"MODAL_SANDBOX_ID": self.id}
        self.main = Exec(Program(argv, self.variables, self.directory))
        self.watching = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        """Ends when the main program does."""
        code = await self.main.program.wait()
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
