"""Places that a library reaches, rather than a program: an API of Kubernetes, a cloud's SDK. For those who add one.

The engine talks to programs of this machine. So the client of such a place is a small program, `_relay.py`, that
carries its streams over a socket to this process, where the library is called, in the loop of `swerex_c.exec.loops`.

    engine == terminal or pipes ==> _relay.py -- unix socket --> CalledBackend -- the library's calls --> the place

Frames on the socket, in both directions: a byte that says what it is, the length as 4 bytes, the lowest first, and as
many bytes. From the relay: `H` the head (JSON: what is to be run), `I` standard input, `E` its end. To the relay:
`O` and `R` the two outputs, `A` a number of bytes of input that were taken (JSON; so many more may come), `X` the exit
code (JSON), `F` why there is none (text). Only this user's processes are let in, and only with the backend's token.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import socket
import struct
import sys
import threading
import weakref
from abc import abstractmethod
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from swerex_c.exec import loops
from swerex_c.exec._relay import HEAD, PIECE, WINDOW
from swerex_c.exec.backend import Backend

__all__ = ["CalledBackend", "Program"]

T = TypeVar("T")

_RELAY = str(Path(__file__).with_name("_relay.py"))

_ABANDON_SECONDS = 10.0
"""How long letting go of a program may take."""


class Program:
    """One program that runs in the place, or is about to. Its methods are called in the loop of `loops`."""

    async def send(self, data: bytes) -> None:
        """Give it standard input. Waits while the place takes no more."""
        raise NotImplementedError

    async def end_input(self) -> None:
        """End its standard input: what was sent is read by it first. Not called where it has a terminal."""
        raise NotImplementedError

    async def receive(self) -> tuple[int, bytes] | None:
        """The next output: 1 or 2 (standard output or error; 1 on a terminal) and bytes. None after the last."""
        raise NotImplementedError

    async def wait(self) -> int:
        """Its exit code, 128 plus the number of a signal that ended it. Called after the last output.

        Raises:
            Exception: any, if that cannot be known, because the connection broke. Nothing is made up.
        """
        raise NotImplementedError

    async def abandon(self) -> None:
        """Nobody wants it any more: close what there is of connections. Called once at the end, in any case.

        The program need not end; whether it does is `Backend.outlives`.
        """


class CalledBackend(Backend):
    """A place that is reached by calls. A kind of place says how a program is started there, and what became of it."""

    outlives: ClassVar[bool] = True

    @abstractmethod
    async def start_program(
        self, argv: Sequence[str], environment: Mapping[str, str], terminal: tuple[int, int] | None
    ) -> Program:
        """Start a program in the place. Called in the loop of `loops`, several at once.

        Args:
            environment: variables that it gets beside those of the place. They hold secrets: not for logs.
            terminal: rows and columns of a terminal of its own; None: three pipes.

        Raises:
            Exception: any; its text is told to whoever wanted the program.
        """

    def call(self, work: Coroutine[Any, Any, T], timeout: float | None) -> T:
        """Run a coroutine in the loop of `loops`, for `open`, `close` and `why_lost`. Blocks.

        Raises:
            TimeoutError: if it takes longer than `timeout` seconds.
        """
        return loops.call(work, timeout)

    def terminal(self, argv: Sequence[str], names: Sequence[str]) -> list[str]:
        return _door.relay(self, "t", argv, names)

    def pipes(self, argv: Sequence[str], names: Sequence[str]) -> list[str]:
        return _door.relay(self, "p", argv, names)


class _Door:
    """The socket that relays come to, and whose they are."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._address: str | None = None
        self._listening: asyncio.Server | None = None
        self._backends: weakref.WeakValueDictionary[str, CalledBackend] = weakref.WeakValueDictionary()
        self._tokens: weakref.WeakKeyDictionary[CalledBackend, str] = weakref.WeakKeyDictionary()

    def relay(self, backend: CalledBackend, kind: str, argv: Sequence[str], names: Sequence[str]) -> list[str]:
        """The command line of a relay to this process. Thread-safe."""
        with self._lock:
            if self._address is None:
                self._address = self._listen()
            token = self._tokens.get(backend)
            if token is None:
                token = self._tokens[backend] = secrets.token_hex(16)
                self._backends[token] = backend
            address = self._address
        # -I and -S: neither the user's settings nor site-packages are looked at, which takes half the time.
        return [sys.executable, "-I", "-S", _RELAY, address, token, kind, " ".join(names), *argv]

    def _listen(self) -> str:
        """Begin to listen; the address. It is a name without a file, so that nothing is left behind."""
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            name = f"swerex-c-{os.getpid()}-{secrets.token_hex(8)}"
            listening.bind(f"\0{name}")
            listening.listen(4096)
            listening.setblocking(False)
            self._listening = loops.call(asyncio.start_unix_server(self._serve, sock=listening), None)
        except BaseException:
            listening.close()
            raise
        return name

    def leave(self) -> None:
        """In a process that was forked: the relays that come are its parent's."""
        if self._listening is not None:
            loops.let_go(each.fileno() for each in self._listening.sockets)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(OSError, EOFError):
                await _Relay(reader, writer).serve(self._backends)
        finally:
            writer.close()


class _Relay:
    """A relay that has come, and the program that it carries the streams of."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._turn = loops.turn()

    async def serve(self, backends: Mapping[str, CalledBackend]) -> None:
        """Start what it asks for and carry the streams, until the program or the relay has ended."""
        if _peer(self._writer) not in (os.geteuid(), 0):
            return
        kind, data = await self._frame()
        if kind != b"H":
            return
        head = json.loads(data.decode(errors="surrogateescape"))
        backend = backends.get(head["token"])
        if backend is None:
            await self._tell(b"F", b"The place was closed")
            return
        size = head["terminal"]
        starting = asyncio.ensure_future(
            backend.start_program(head["argv"], head["environment"], tuple(size) if size else None)
        )
        inputs: asyncio.Queue[bytes | None] = asyncio.Queue()  # bounded by the window
        hearing = asyncio.ensure_future(self._hear(inputs))
        try:
            await asyncio.wait((starting, hearing), return_when=asyncio.FIRST_COMPLETED)
            if not starting.done() and hearing.done() and not hearing.cancelled():
                return  # the relay was killed
            try:
                program = await starting
            except Exception as error:
                await self._tell(b"F", _words(error))
                return
            await self._carry(program, inputs, hearing)
        finally:
            await _end(hearing)
            if not starting.done():
                await _end(starting)
            if not starting.cancelled() and starting.exception() is None:
                with contextlib.suppress(Exception):
                    await asyncio.wait_for(starting.result().abandon(), _ABANDON_SECONDS)

    async def _carry(
        self, program: Program, inputs: asyncio.Queue[bytes | None], hearing: asyncio.Future[None]
    ) -> None:
        giving = asyncio.ensure_future(self._give(program, inputs))
        showing = asyncio.ensure_future(self._show(program))
        try:
            while not showing.done() and not hearing.done():
                await asyncio.wait((showing, hearing), return_when=asyncio.FIRST_COMPLETED)
            if showing.done():
                try:
                    code = await showing
                except Exception as error:  # of the relay too, which is not there to be told then
                    await self._tell(b"F", _words(error))
                else:
                    await self._tell(b"X", json.dumps(code).encode())
        finally:
            await _end(giving)
            await _end(showing)

    async def _hear(self, inputs: asyncio.Queue[bytes | None]) -> None:
        """Take what the relay sends until it is gone. It sends no more than the window, so this never waits for the
        program, and the relay's end is noticed at once."""
        while True:
            try:
                kind, data = await self._frame()
            except (EOFError, OSError):
                return
            inputs.put_nowait(data if kind == b"I" else None)
            await self._turn.over()

    async def _give(self, program: Program, inputs: asyncio.Queue[bytes | None]) -> None:
        try:
            while (data := await inputs.get()) is not None:
                await program.send(data)
                await self._tell(b"A", json.dumps(len(data)).encode())
            await program.end_input()
        except Exception:
            return  # it takes no more input; what it does and how it ends is told by its outputs

    async def _show(self, program: Program) -> int:
        while (output := await program.receive()) is not None:
            stream, data = output
            kind = b"R" if stream == 2 else b"O"
            for i in range(0, len(data), PIECE):
                await self._tell(kind, data[i : i + PIECE])
        return await program.wait()

    async def _frame(self) -> tuple[bytes, bytes]:
        kind, length = struct.unpack(HEAD, await self._reader.readexactly(struct.calcsize(HEAD)))
        return kind, await self._reader.readexactly(length)

    async def _tell(self, kind: bytes, data: bytes) -> None:
        self._writer.write(struct.pack(HEAD, kind, len(data)) + data)
        await self._writer.drain()
        await self._turn.over()


def _peer(writer: asyncio.StreamWriter) -> int:
    """The user whose process is at the other end."""
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
    global _door
    _door.leave()
    _door = _Door()


_door = _Door()
os.register_at_fork(after_in_child=_reset)

assert WINDOW >= PIECE
