"""What the tests' own clouds share: a loop in a thread, programs of this machine, certificates."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pty
import shutil
import signal
import ssl
import subprocess
import termios
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, TypeVar

from aiohttp import web

from tests.support.wait import DEADLINE, until_ready

T = TypeVar("T")

STDOUT, STDERR = 1, 2


class LoopThread:
    """An event loop in a thread, for a server that tests look at and give orders from threads of their own."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop, and return what it gives."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(DEADLINE)

    def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function in the loop, and return what it gives."""

        async def call() -> T:
            return function(*arguments)

        return self.do(call())

    def end(self) -> None:
        """Cancel whatever runs in the loop, and end the thread."""

        async def cancel() -> None:
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        self.do(cancel())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(DEADLINE)
        self.loop.close()


async def serve(
    application: web.Application, port: int = 0, context: ssl.SSLContext | None = None
) -> tuple[web.AppRunner, int]:
    """Serve on 127.0.0.1; return what ends it with `cleanup`, and the port."""
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port, reuse_address=True, ssl_context=context).start()
    return runner, runner.addresses[0][1]


def abort(socket: web.WebSocketResponse) -> None:
    """Break off a connection."""
    if socket._req is not None and socket._req.transport is not None:
        socket._req.transport.abort()


class Program:
    """A process of this machine in a session of its own, on pipes or on a terminal.

    Args:
        size: rows and columns of the terminal; None: pipes.

    Raises:
        OSError: if a program on pipes cannot be started. One on a terminal ends with 127 then.
    """

    def __init__(
        self, argv: Sequence[str], variables: Mapping[str, str], directory: Path, size: tuple[int, int] | None = None
    ) -> None:
        where: dict[str, Any] = {"cwd": directory, "env": dict(variables), "bufsize": 0}
        self.input: IO[bytes]
        self.outputs: dict[int, IO[bytes]]
        self.has_terminal = size is not None
        if size is None:
            pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
            self.process = subprocess.Popen([*argv], **pipes, **where, start_new_session=True)
            assert self.process.stdin is not None and self.process.stdout and self.process.stderr
            self.input = self.process.stdin
            self.outputs = {STDOUT: self.process.stdout, STDERR: self.process.stderr}
        else:
            master, slave = pty.openpty()
            self.input = open(master, "r+b", buffering=0)
            self.outputs = {STDOUT: self.input}
            self.resize(*size)
            ends: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), slave)
            # What is started from a process with threads may not run code before its program.
            self.process = subprocess.Popen([shutil.which("setsid") or "setsid", "-c", *argv], **ends, **where)
            os.close(slave)
        for file in (self.input, *self.outputs.values()):
            os.set_blocking(file.fileno(), False)

    def resize(self, rows: int, columns: int) -> None:
        termios.tcsetwinsize(self.input, (rows, columns))

    async def read(self, stream: int, size: int = 65536) -> bytes:
        """Return what an output has next; nothing at its end."""
        file, data = self.outputs[stream], None
        while data is None:
            await until_ready(file.fileno())
            try:
                data = file.read(size)
            except OSError:  # a terminal that nobody else has
                return b""
        return data

    async def write_some(self, data: bytes) -> int:
        """Return how many bytes are written; what the program reads no more counts too."""
        await until_ready(self.input.fileno(), write=True)
        try:
            return self.input.write(data) or 0
        except OSError:
            return len(data)

    async def write(self, data: bytes) -> None:
        while data and not self.input.closed:
            data = data[await self.write_some(data) :]

    def end_input(self) -> None:
        """Close a pipe; the input of a terminal has no end."""
        if not self.has_terminal:
            self.input.close()

    async def wait(self) -> int:
        """Return the exit code when it has ended, or the signal's number as a negative one."""
        if self.process.poll() is None:
            descriptor = os.pidfd_open(self.process.pid)
            try:
                await until_ready(descriptor)
            finally:
                os.close(descriptor)
        return self.process.wait()

    def kill(self) -> None:
        """Kill its process group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Close this side of its streams, which nobody may be reading."""
        for file in (self.input, *self.outputs.values()):
            file.close()
