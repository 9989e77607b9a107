"""Base class for sandboxes that a library reaches, and its relay server.

Such a library is the client of the Kubernetes API or a cloud SDK. The engine runs programs on this machine. The client
of such a sandbox is therefore a small program, `relay.py`, that forwards its streams over a socket to this process,
which calls the library in the event loop of `background`.

    engine == terminal or pipes ==> relay.py -- unix socket --> ApiBackend -- library calls --> sandbox

Frames on the socket, in both directions: one byte for the frame type, the length as 4 bytes in little-endian order, and
the payload. From the relay: `H` the head, `I` standard input, `E` end of input. To the relay: `O` and `R` the two
outputs, `A` a number of input bytes that were consumed (the relay may send as many more), `X` the exit code, `F` why
there is none (text). Numbers are decimal. The head has words with NULs between them: the backend's token, the rows and
columns of the terminal (empty for pipes), the number of variables, each as NAME=value, and the command line to run.
Only this user (or root) with the token may connect.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
import struct
import sys
import threading
import weakref
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from swerex_c.sandbox.backend import Backend, Process
from swerex_c.sandbox.relay import HEAD, PIECE, WINDOW
from swerex_c.utils import background

__all__ = ["ApiBackend"]

_RELAY = str(Path(__file__).with_name("relay.py"))

_ABANDON_SECONDS = 10.0
"""Maximum seconds for `Process.close`."""


class ApiBackend(Backend):
    """Sandbox that is reached by library calls.

    Subclasses start programs and report whether the sandbox is lost.
    """

    @abstractmethod
    async def exec(
        self, argv: Sequence[str], env: Mapping[str, str], terminal: tuple[int, int] | None = None
    ) -> Process:
        """Start a program in the sandbox; see `Backend.exec`.

        Args:
            terminal: rows and columns of the program's own terminal; None: three pipes.

        Raises:
            Exception: any; its text is reported to the caller that started the program.
        """

    def terminal(self, argv: Sequence[str], names: Sequence[str]) -> list[str]:
        return _relay_server.command(self, "t", argv, names)

    def pipes(self, argv: Sequence[str], names: Sequence[str]) -> list[str]:
        """Return the command line of a client as `terminal` does, on three pipes."""
        return _relay_server.command(self, "p", argv, names)


class _RelayServer:
    """The socket server that relays connect to, with the backend of each token."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._address: str | None = None
        self._listening: asyncio.Server | None = None
        self._backends: weakref.WeakValueDictionary[str, ApiBackend] = weakref.WeakValueDictionary()
        self._tokens: weakref.WeakKeyDictionary[ApiBackend, str] = weakref.WeakKeyDictionary()

    def command(self, backend: ApiBackend, kind: str, argv: Sequence[str], names: Sequence[str]) -> list[str]:
        """Return the command line of a relay that connects to this process. Thread-safe."""
        with self._lock:
            if self._address is None:
                self._address = self._listen()
            token = self._tokens.get(backend)
            if token is None:
                token = self._tokens[backend] = secrets.token_hex(16)
                self._backends[token] = backend
            address = self._address
        # -I and -S skip the user's settings and site-packages, which halves the start time.
        return [sys.executable, "-I", "-S", _RELAY, address, token, kind, " ".join(names), *argv]

    def _listen(self) -> str:
        """Start to listen; return the address. The address is abstract: no socket file is left behind."""
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            name = f"swerex-c-{os.getpid()}-{secrets.token_hex(8)}"
            listening.bind(f"\0{name}")
            listening.listen(4096)
            listening.setblocking(False)
            self._listening = background.run_blocking(asyncio.start_unix_server(self._serve, sock=listening), None)
        except BaseException:
            listening.close()
            raise
        return name

    def disconnect(self) -> None:
        """Disconnect the server in a forked child: relays belong to the parent."""
        if self._listening is not None:
            background.disconnect_after_fork(each.fileno() for each in self._listening.sockets)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(OSError, EOFError):
                await _Relay(reader, writer).serve(self._backends)
        finally:
            writer.close()


class _Relay:
    """A connection from a relay, and the program whose streams it forwards."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._turn = background.turn()

    async def serve(self, backends: Mapping[str, ApiBackend]) -> None:
        """Start the requested program, and forward its streams until either end ends."""
        if _peer(self._writer) not in (os.geteuid(), 0):
            return
        kind, data = await self._read_frame()
        if kind != b"H":
            return
        token, rows, columns, count, *words = (os.fsdecode(word) for word in data.split(b"\0"))
        backend = backends.get(token)
        if backend is None:
            await self._send_frame(b"F", b"The sandbox was closed")
            return
        variables, argv = words[: int(count)], words[int(count) :]
        environment = dict(each.split("=", 1) for each in variables)
        size = (int(rows), int(columns)) if rows else None
        starting = asyncio.ensure_future(backend.exec(argv, environment, size))
        inputs: asyncio.Queue[bytes | None] = asyncio.Queue()  # bounded by the window
        reading = asyncio.ensure_future(self._read_frames(inputs))
        try:
            await asyncio.wait((starting, reading), return_when=asyncio.FIRST_COMPLETED)
            if not starting.done() and reading.done() and not reading.cancelled():
                # The relay was killed. The program may have been started already: it is abandoned below.
                await asyncio.wait((starting,), timeout=_ABANDON_SECONDS)
                return
            try:
                program = await starting
            except Exception as error:
                await self._send_frame(b"F", _words(error))
                return
            await self._forward(program, inputs, reading)
        finally:
            await _end(reading)
            if not starting.done():
                await _end(starting)
            if not starting.cancelled() and starting.exception() is None:
                with contextlib.suppress(Exception):
                    await asyncio.wait_for(starting.result().close(), _ABANDON_SECONDS)

    async def _forward(
        self, program: Process, inputs: asyncio.Queue[bytes | None], reading: asyncio.Future[None]
    ) -> None:
        writing = asyncio.ensure_future(self._write_input(program, inputs))
        sending = asyncio.ensure_future(self._send_output(program))
        try:
            while not sending.done() and not reading.done():
                await asyncio.wait((sending, reading), return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                try:
                    code = await sending
                except Exception as error:  # may also come from a relay that is gone and cannot be told
                    await self._send_frame(b"F", _words(error))
                else:
                    await self._send_frame(b"X", b"%d" % code)
        finally:
            await _end(writing)
            await _end(sending)

    async def _read_frames(self, inputs: asyncio.Queue[bytes | None]) -> None:
        """Read frames from the relay until it disconnects. It sends at most one window of input, so this never waits
        for the program, and notices the relay's end at once."""
        while True:
            try:
                kind, data = await self._read_frame()
            except (EOFError, OSError):
                return
            inputs.put_nowait(data if kind == b"I" else None)
            await self._turn.over()

    async def _write_input(self, program: Process, inputs: asyncio.Queue[bytes | None]) -> None:
        try:
            while (data := await inputs.get()) is not None:
                await program.send(data)
                await self._send_frame(b"A", b"%d" % len(data))
            await program.end_input()
        except Exception:
            return  # the program takes no more input; `_send_output` reports its outputs and its end

    async def _send_output(self, program: Process) -> int:
        while (output := await program.receive()) is not None:
            stream, data = output
            kind = b"R" if stream == 2 else b"O"
            for i in range(0, len(data), PIECE):
                await self._send_frame(kind, data[i : i + PIECE])
        return await program.wait()

    async def _read_frame(self) -> tuple[bytes, bytes]:
        kind, length = struct.unpack(HEAD, await self._reader.readexactly(struct.calcsize(HEAD)))
        return kind, await self._reader.readexactly(length)

    async def _send_frame(self, kind: bytes, data: bytes) -> None:
        self._writer.write(struct.pack(HEAD, kind, len(data)) + data)
        await self._writer.drain()
        await self._turn.over()


def _peer(writer: asyncio.StreamWriter) -> int:
    """Return the user ID of the process at the other end."""
    connection = writer.get_extra_info("socket")
    size = struct.calcsize("3i")
    _, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return int(user)


async def _end(task: asyncio.Future[Any]) -> None:
    task.cancel()
    with contextlib.suppress(BaseException):
        await task


def _words(error: BaseException) -> bytes:
    text = " ".join(str(error).split())
    return (text or type(error).__name__).encode(errors="replace")[:4000]


def _reset() -> None:
    global _relay_server
    _relay_server.disconnect()
    _relay_server = _RelayServer()


_relay_server = _RelayServer()
os.register_at_fork(after_in_child=_reset)

assert WINDOW >= PIECE
