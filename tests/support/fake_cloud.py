"""What the tests' own clouds share: a loop in a thread, programs of this machine, certificates."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import pty
import shutil
import signal
import ssl
import struct
import subprocess
import termios
import threading
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, TypeVar

from tests.support import needs
from tests.support.wait import DEADLINE, until, until_ready

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
        fcntl.ioctl(self.input, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))

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


def kill_all(variable: str) -> None:
    """Kill the processes that have this `NAME=VALUE`, until none is left of those that they start meanwhile."""

    def none_is_left() -> bool:
        found = needs.mentioning(variable)
        for pid in found:
            needs.kill(pid, signal.SIGKILL)
        return not found

    until(none_is_left)


def certificate(directory: Path) -> tuple[ssl.SSLContext, Path]:
    """Make a certificate for 127.0.0.1 that nobody has signed, and a context that shows it."""
    key, certified = directory / "key.pem", directory / "certificate.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1"]
        + ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key)]
        + ["-out", str(certified)],
        check=True,
        capture_output=True,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certified, key)
    return context, certified
