"""The sandboxes of `modal_server`: what runs in them runs on this machine, in a directory, with a mark of its own."""

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
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

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
    """A program."""

    def __init__(self) -> None:
        self.stdout, self.stderr = Stream(), Stream()
        self.written = 0
        self.writing = asyncio.Lock()
        self.process: asyncio.subprocess.Process
        self.master: int | None = None
        self.tasks: list[asyncio.Task[None]] = []

    async def start(
        self, argv: Sequence[str], variables: Mapping[str, str], directory: Path, size: tuple[int, int] | None
    ) -> None:
        pipe = asyncio.subprocess.PIPE
        if size is None:
            self.process = await asyncio.create_subprocess_exec(
                *argv, stdin=pipe, stdout=pipe, stderr=pipe, env=variables, cwd=directory, start_new_session=True
            )
            assert self.process.stdout is not None and self.process.stderr is not None
            self._do(self._read_pipe(self.process.stdout, self.stdout))
            self._do(self._read_pipe(self.process.stderr, self.stderr))
            return
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("4H", *size, 0, 0))
        os.set_blocking(self.master, False)
        try:
            self.process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=slave,
                stdout=slave,
                stderr=slave,
                env=variables,
                cwd=directory,
                start_new_session=True,
                preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # type: ignore[arg-type, return-value]
            )
        finally:
            os.close(slave)
        await self.stderr.end()
        self._do(self._read_terminal(self.master))

    def _do(self, work: object) -> None:
        self.tasks.append(asyncio.create_task(work))  # type: ignore[arg-type]

    async def _read_pipe(self, pipe: asyncio.StreamReader, stream: Stream) -> None:
        while data := await pipe.read(65536):
            await stream.add(data)
        await stream.end()

    async def _read_terminal(self, master: int) -> None:
        while data := await self._from_terminal(master):
            await self.stdout.add(data)
        await self.stdout.end()

    async def _from_terminal(self, master: int) -> bytes:
        await _ready(master, reading=True)
        try:
            return os.read(master, 65536)
        except OSError:
            return b""

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
                count = await self._write_some(data)
                self.written += count
                data = data[count:]
            if eof and self.master is None:
                assert self.process.stdin is not None
                self.process.stdin.close()

    async def _write_some(self, data: bytes) -> int:
        if self.master is None:
            assert self.process.stdin is not None
            self.process.stdin.write(data)
            with contextlib.suppress(ConnectionError):
                await self.process.stdin.drain()
            return len(data)
        await _ready(self.master, reading=False)
        return os.write(self.master, data)

    async def close(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        if self.master is not None:
            os.close(self.master)
            self.master = None


async def _ready(descriptor: int, *, reading: bool) -> None:
    loop = asyncio.get_running_loop()
    future = loop.create_future()
    add, remove = (loop.add_reader, loop.remove_reader) if reading else (loop.add_writer, loop.remove_writer)
    add(descriptor, lambda: future.done() or future.set_result(None))
    try:
        await future
    finally:
        remove(descriptor)


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
        self.words = ""
        self.ended = asyncio.Event()
        self.vanished = False
        self.variables: dict[str, str] = {}
        self.main = Exec()
        self.execs: dict[str, Exec] = {}
        self.tunnels: list[tuple[int, bool, int]] = []
        self.servers: list[asyncio.Server] = []
        self.watching: asyncio.Task[None] | None = None

    async def start(self, argv: Sequence[str], variables: Mapping[str, str], seconds: float) -> None:
        own = {"PATH": os.environ["PATH"], "HOME": str(self.directory), "TMPDIR": str(self.directory)}
        self.variables = own | dict(variables) | {"MODAL_SANDBOX_ID": self.id}
        await self.main.start(argv, self.variables, self.directory, None)
        self.watching = asyncio.create_task(self._watch(seconds))

    async def _watch(self, seconds: float) -> None:
        """Ends when the main program does, or when its time is over."""
        try:
            code = await asyncio.wait_for(self.main.process.wait(), seconds)
        except TimeoutError:
            await self.end("TIMEOUT", 0)
        else:
            await self.end("SUCCESS" if code == 0 else "FAILURE", code if code >= 0 else 128 - code)

    async def open_port(self, port: int, context: ssl.SSLContext | None) -> None:
        """A tunnel to a port of the sandbox, with TLS or without."""

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                there, here = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                writer.close()
                return
            await asyncio.gather(_copy(reader, here), _copy(there, writer))

        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
        self.servers.append(server)
        self.tunnels.append((port, context is None, server.sockets[0].getsockname()[1]))

    async def end(self, status: str, code: int, words: str = "") -> None:
        """Kill all that runs in it."""
        from modal_proto import api_pb2

        if self.ended.is_set():
            return
        self.status = api_pb2.GenericResult.GenericStatus.Value(f"GENERIC_STATUS_{status}")
        self.code, self.words = code, words
        self.ended.set()
        for server in self.servers:
            server.close()
        await asyncio.get_running_loop().run_in_executor(None, _kill_marked, f"MODAL_SANDBOX_ID={self.id}".encode())
        if self.watching is not None and self.watching is not asyncio.current_task():
            self.watching.cancel()
        for each in (self.main, *self.execs.values()):
            await each.close()
        shutil.rmtree(self.directory, ignore_errors=True)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


def _kill_marked(mark: bytes) -> None:
    """Until there is none: while they are looked for they may start others."""
    for _ in range(100):
        found = 0
        for entry in os.scandir("/proc"):
            with contextlib.suppress(OSError, ValueError):
                if entry.name.isdigit() and mark in Path(entry.path, "environ").read_bytes().split(b"\0"):
                    os.kill(int(entry.name), signal.SIGKILL)
                    found += 1
        if not found:
            return
        time.sleep(0.02)


def certificate(directory: Path) -> tuple[ssl.SSLContext, Path]:
    """A certificate for 127.0.0.1 that nobody has signed, and a context that shows it."""
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
