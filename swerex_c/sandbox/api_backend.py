"""Base class for sandboxes that a library reaches, and the server that the clients of their sessions connect to.

Such a library is the client of the Kubernetes API or a cloud SDK. The engine runs programs on this machine. The client
of such a session is therefore a small program, `terminal_client.py`, which hands its terminal over a socket to this
process. This process forwards the terminal by calls of the library, in the event loop of `background`.

    engine == terminal of terminal_client.py == ApiBackend -- library calls --> sandbox

The client sends the length of its head as 4 bytes in little-endian order, with the terminal's descriptor, and the head:
words with NULs between them. They are the client's token, the rows and columns of the terminal, the number of
variables, each as NAME=value, and the command line to run. The answer is one byte, the exit code. Only this user (or
root) may connect, once with each token.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import io
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

from swerex_c.exceptions import ResourceError, SandboxLostError
from swerex_c.sandbox.backend import Backend, Process
from swerex_c.sandbox.terminal_client import UNKNOWN
from swerex_c.utils import background
from swerex_c.utils.threads import in_thread
from swerex_c.utils.visible import error_line
from swerex_c.utils.wait import end_tasks

__all__ = ["ApiBackend"]

_CLIENT = str(Path(__file__).with_name("terminal_client.py"))

_PIECE = 64 << 10
"""Maximum number of bytes to read from a terminal at once."""

_HEAD_SECONDS = 10.0
"""Maximum seconds for a client to send its head."""

_PAUSE_SECONDS = 1.0
"""Seconds until connections are accepted again if there is no descriptor for one."""

_ABANDON_SECONDS = 10.0
"""Maximum seconds for `Process.close`."""


class ApiBackend(Backend):
    """Sandbox that is reached by library calls. Subclasses start programs and report whether the sandbox is lost."""

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
        token = secrets.token_hex(16)
        _backends[token] = self
        # -I and -S skip the user's settings and site-packages, which halves the start time.
        return [sys.executable, "-I", "-S", _CLIENT, _address(), token, *argv, " ".join(names)]

    async def unsure(self, client: Sequence[str], code: int, printed: str) -> str | None:
        is_unsure = code == UNKNOWN and not self._lost_exit_codes.isdisjoint(client)
        return f"The connection to a program in the {self.name} was lost" if is_unsure else None

    @functools.cached_property
    def _lost_exit_codes(self) -> set[str]:
        """Tokens of the clients whose program's exit code could not be read."""
        return set()


_backends: weakref.WeakValueDictionary[str, ApiBackend] = weakref.WeakValueDictionary()
"""Backend of each token that no client has sent yet."""


_starting = threading.Lock()


def _address() -> str:
    """Return the address at which clients are served, which the first call starts."""
    with _starting:  # two threads may be first
        return _listen()


@functools.cache
def _listen() -> str:
    """Start to serve clients; return the address. It is abstract, so that no socket file is left behind."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        name = f"swerex-c-{os.getpid()}-{secrets.token_hex(8)}"
        listening.bind(f"\0{name}")
        listening.listen(4096)
        listening.setblocking(False)
        background.keep_from_children(listening)
        background.spawn(_accept(listening))  # not awaited: the caller may be in that loop
    except BaseException:
        listening.close()
        raise
    return name


def _forget() -> None:
    """Have a forked process serve its own clients."""
    global _starting
    _starting = threading.Lock()
    _listen.cache_clear()


os.register_at_fork(after_in_child=_forget)


async def _accept(listening: socket.socket) -> None:
    with listening:
        while True:
            try:
                connection, _ = await asyncio.get_running_loop().sock_accept(listening)
            except OSError:
                await asyncio.sleep(_PAUSE_SECONDS)
            else:
                background.spawn(_serve(connection))


async def _serve(connection: socket.socket) -> None:
    """Serve one client until its program or it itself has ended."""
    loop = asyncio.get_running_loop()
    background.keep_from_children(connection)
    with connection, contextlib.suppress(OSError):
        words, terminal = await in_thread(_receive_head, connection)
        background.keep_from_children(terminal)
        with terminal:
            running = asyncio.ensure_future(_run(words, terminal))
            gone = asyncio.ensure_future(loop.sock_recv(connection, 1))
            await asyncio.wait((running, gone), return_when=asyncio.FIRST_COMPLETED)
            await end_tasks(gone, running)
        if not running.cancelled():
            await loop.sock_sendall(connection, bytes([running.result()]))


def _receive_head(connection: socket.socket) -> tuple[list[str], io.FileIO]:
    """Return the words of a client's head, and its terminal. Blocks.

    Raises:
        OSError: if the client is another user's, or sends something else.
    """
    size = struct.calcsize("3i")
    _, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    if user not in (os.geteuid(), 0):
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
    connection.settimeout(_HEAD_SECONDS)
    length, descriptors, _, _ = socket.recv_fds(connection, 4, 1)
    if len(descriptors) != 1:
        raise ConnectionError(errno.EPROTO, os.strerror(errno.EPROTO))
    terminal = io.FileIO(descriptors[0], "r+")
    try:
        os.set_blocking(terminal.fileno(), False)
        with connection.makefile("rb") as file:
            data = file.read(int.from_bytes(length, "little"))
        connection.setblocking(False)
        return [os.fsdecode(word) for word in data.split(b"\0")], terminal
    except BaseException:
        terminal.close()
        raise


async def _run(words: Sequence[str], terminal: io.FileIO) -> int:
    """Run a client's program on its terminal, and return the exit code for the client."""
    token, *words = words
    backend = _backends.pop(token, None)
    try:
        rows, columns, count, *words = words
        variables, argv = words[: int(count)], words[int(count) :]
        environment = dict(each.split("=", 1) for each in variables)
        if backend is None:
            raise SandboxLostError("The sandbox was closed")
        starting = asyncio.ensure_future(backend.exec(argv, environment, (int(rows), int(columns))))
        code = await _forward(starting, terminal)
        if 0 <= code < 256:  # the system would keep only the lowest 8 bits, which may mean success
            return code
        raise ResourceError(f"The sandbox reports an exit code outside 0 to 255: {code}")
    except Exception as error:
        if backend is not None:
            backend._lost_exit_codes.add(token)
        with contextlib.suppress(OSError):
            await _write(terminal, error_line(error).encode(errors="replace")[:4000] + b"\r\n")
        return UNKNOWN


async def _forward(starting: asyncio.Future[Process], terminal: io.FileIO) -> int:
    """Forward a terminal to a program that starts; return its exit code, or any if the terminal is hung up first."""
    reading = writing = None
    try:
        program = await asyncio.shield(starting)
        reading = asyncio.ensure_future(_send_input(program, terminal))
        writing = asyncio.ensure_future(_send_output(program, terminal))
        await asyncio.wait((reading, writing), return_when=asyncio.FIRST_COMPLETED)
        if not writing.done():
            return UNKNOWN
        await writing
        return await program.wait()
    finally:
        # If the client ends during the start, the program may run already: it is waited for, and closed.
        await asyncio.wait((starting,), timeout=_ABANDON_SECONDS)
        await end_tasks(*(task for task in (starting, reading, writing) if task is not None))
        if not starting.cancelled() and starting.exception() is None:
            with contextlib.suppress(Exception):
                await asyncio.wait_for(starting.result().close(), _ABANDON_SECONDS)


async def _send_input(program: Process, terminal: io.FileIO) -> None:
    with contextlib.suppress(OSError):  # it is hung up
        while (data := terminal.read(_PIECE)) != b"":
            if data is None:
                await _ready(terminal)
                continue
            with contextlib.suppress(Exception):  # the program takes no more input, and its end comes with its output
                await program.send(data)
            await asyncio.sleep(0)


async def _send_output(program: Process, terminal: io.FileIO) -> None:
    while (output := await program.receive()) is not None:
        await _write(terminal, output[1])
        await asyncio.sleep(0)


async def _write(terminal: io.FileIO, data: bytes) -> None:
    left = memoryview(data)
    while left:
        written = terminal.write(left)
        if written is None:
            await _ready(terminal, write=True)
        else:
            left = left[written:]


async def _ready(terminal: io.FileIO, *, write: bool = False) -> None:
    """Wait until a terminal can be read, or written."""
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    add, remove = (loop.add_writer, loop.remove_writer) if write else (loop.add_reader, loop.remove_reader)
    add(terminal.fileno(), ready.set)
    try:
        await ready.wait()
    finally:
        remove(terminal.fileno())
