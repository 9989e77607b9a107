"""Client programs of this machine that run a program in a sandbox and forward its streams.

    class Chroot(CommandBackend):
        name = "the directory /srv/root"

        def command(self, argv, names, terminal):
            return ["chroot", "/srv/root", *argv]
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import signal
import subprocess
from abc import abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import IO

from swerex_c.exceptions import ConnectionLostError, InvalidInputError, ResourceError
from swerex_c.sandbox.backend import Backend, Process
from swerex_c.utils.background import keep_from_children
from swerex_c.utils.threads import in_thread, start_thread

__all__ = ["ClientProcess", "CommandBackend", "CompletedCommand", "kill_group", "run_command"]

_CHUNK = 256 * 1024
"""Maximum number of bytes of one read, and the size of the pipe for standard output."""

_MAX_OUTPUT = 64 << 20
"""Maximum number of bytes of each output of a client that runs to completion. Only programs of a sandbox print more."""

_DRAIN_SECONDS = 0.5
"""Seconds from the end of a client to the end of its output: its children may hold its pipes."""

_LINGER_SECONDS = 1.0
"""Seconds for a client to end by itself when its pipes are closed."""

_END_SECONDS = 5.0
"""Seconds to wait for the end of a killed client."""


class CommandBackend(Backend):
    """A sandbox that is reached by client programs of this machine."""

    @abstractmethod
    def command(self, argv: Sequence[str], names: Sequence[str], terminal: bool) -> list[str]:
        """Return the command line of a client that runs `argv`, on a terminal or on three pipes.

        On pipes, standard output and standard error stay separate. For terminals and `names` see `Backend.terminal`.
        """

    def terminal(self, argv: Sequence[str], names: Sequence[str]) -> list[str]:
        return self.command(argv, names, True)

    async def exec(self, argv: Sequence[str], env: Mapping[str, str]) -> Process:
        environment = self.environment() | dict(env)
        return await ClientProcess.start(lambda: self.command(argv, list(env), False), environment, self.unsure)


class ClientProcess(Process):
    """A client program on three pipes."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        unsure: Callable[[Sequence[str], int, str], Awaitable[str | None]] | None = None,
    ) -> None:
        """Take a program that was started with non-blocking pipes. `unsure` is a backend's method, see there."""
        self.process = process
        self._unsure = unsure
        self._printed = b""
        self._loop = asyncio.get_running_loop()
        assert process.stdin and process.stdout and process.stderr
        self._input = process.stdin
        self._outputs = {1: process.stdout, 2: process.stderr}
        self._held: deque[tuple[int, bytes]] = deque()
        self._waiting: set[asyncio.Future[None]] = set()
        self._ended: asyncio.Future[int] = self._loop.create_future()
        try:
            self._pidfd = os.pidfd_open(process.pid)
        except OSError:  # the kernel has none
            self._pidfd = -1
            start_thread(self._wait, "swerex-c client")
        else:
            self._loop.add_reader(self._pidfd, self._reap)

    @classmethod
    async def start(
        cls,
        command: Callable[[], Sequence[str]],
        environment: Mapping[str, str],
        unsure: Callable[[Sequence[str], int, str], Awaitable[str | None]] | None = None,
    ) -> ClientProcess:
        """Start a client with this complete environment. `command` returns its command line, and may block.

        Raises:
            OSError: if the program cannot be started; FileNotFoundError if it does not exist.
            InvalidInputError: if a word contains a NUL byte.
        """
        # In a thread: 64 programs that start at once would hold up the loop for 150 ms.
        starting = asyncio.ensure_future(in_thread(_start, command, environment))
        try:
            return cls(await asyncio.shield(starting), unsure)
        except asyncio.CancelledError:
            starting.add_done_callback(_drop)
            raise

    async def send(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            if self._input.closed:
                raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
            try:
                left = left[os.write(self._input.fileno(), left) :]
            except BlockingIOError:
                await self._ready(self._input)

    async def end_input(self) -> None:
        self._input.close()

    async def receive(self) -> tuple[int, bytes] | None:
        while self._outputs:
            for number, stream in list(self._outputs.items()):
                try:
                    data = os.read(stream.fileno(), _CHUNK)
                except BlockingIOError:
                    continue
                except OSError:
                    data = b""
                del self._outputs[number]
                if data:
                    self._outputs[number] = stream  # as the last one: a flood on one does not hold back the other
                    if number == 2:
                        self._printed = data
                    return number, data
                stream.close()
            if self._outputs:
                await self._ready(*self._outputs.values())
        return self._held.popleft() if self._held else None

    async def wait(self) -> int:
        code = await asyncio.shield(self._ended)
        if code >= 0 and self._unsure is not None:
            client = [str(word) for word in self.process.args]  # type: ignore[union-attr]
            reason = await self._unsure(client, code, self._printed.decode(errors="replace"))
            if reason is not None:
                raise ConnectionLostError(reason)
        return code

    async def close(self) -> None:
        self._close_pipes()
        await asyncio.wait([self._ended], timeout=_LINGER_SECONDS)
        await self.kill()

    async def kill(self) -> None:
        """Kill the client with its process group, and close its pipes. The wait for its end is bounded."""
        kill_group(self.process)
        self._close_pipes()
        await asyncio.wait([self._ended], timeout=_END_SECONDS)

    async def _ready(self, *streams: IO[bytes]) -> None:
        """Wait until one of the pipes is ready, or all are closed."""
        ready = self._loop.create_future()
        self._waiting.add(ready)
        for stream in streams:
            watch = self._loop.add_writer if stream is self._input else self._loop.add_reader
            watch(stream.fileno(), _wake, ready)
        try:
            await ready
        finally:
            self._waiting.discard(ready)
            for stream in streams:
                self._forget(stream)

    def _forget(self, stream: IO[bytes]) -> None:
        if not stream.closed:  # else another file may have its number
            self._loop.remove_reader(stream.fileno())
            self._loop.remove_writer(stream.fileno())

    def _wait(self) -> None:
        self.process.wait()
        self._loop.call_soon_threadsafe(self._reap)

    def _reap(self) -> None:
        code = self.process.poll()
        if code is None or self._ended.done():
            return
        self._ended.set_result(code)
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
        self._loop.call_later(_DRAIN_SECONDS, self._drain)

    def _drain(self) -> None:
        """Close the pipes, and hold what they contain for a reader that is slow. One read returns all of it."""
        for number, stream in self._outputs.items():
            with contextlib.suppress(OSError):
                if data := os.read(stream.fileno(), _CHUNK):
                    self._held.append((number, data))
        self._close_pipes()

    def _close_pipes(self) -> None:
        for stream in (self._input, *self._outputs.values()):
            self._forget(stream)
            with contextlib.suppress(OSError):
                stream.close()
        self._outputs.clear()
        for ready in self._waiting:
            _wake(ready)


def _start(command: Callable[[], Sequence[str]], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    words = command()
    try:
        process = subprocess.Popen(
            words,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(environment),
            start_new_session=True,  # keeps the terminal's ^C away from it
        )
    except ValueError as error:  # a NUL
        raise InvalidInputError(f"`{' '.join(words[:2])}` cannot be run with these words: {error}") from None
    assert process.stdin and process.stdout and process.stderr
    keep_from_children(process.stdin, process.stdout, process.stderr)
    for stream in (process.stdin, process.stdout, process.stderr):
        os.set_blocking(stream.fileno(), False)
    with contextlib.suppress(OSError):  # fewer reads for large output
        fcntl.fcntl(process.stdout.fileno(), fcntl.F_SETPIPE_SZ, _CHUNK)
    return process


def _drop(starting: asyncio.Future[subprocess.Popen[bytes]]) -> None:
    """Kill a client whose start was cancelled, with its process group."""
    if not starting.cancelled() and starting.exception() is None:
        process = starting.result()
        kill_group(process)
        with contextlib.suppress(ResourceError):
            start_thread(process.communicate, "swerex-c client")


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a client that leads its process group, and the group."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


def _wake(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


@dataclass(frozen=True)
class CompletedCommand:
    """Exit code and output of a client program, or of a script in a sandbox."""

    code: int
    """Exit code, or minus the number of the signal that ended the program or the script."""

    stdout: bytes
    stderr: bytes

    @property
    def message(self) -> str:
        """Return the error output as one line, or standard output if it is empty, or the exit code if both are."""
        text = (self.stderr.strip() or self.stdout.strip()).decode(errors="replace")
        return " ".join(text.split()) or f"exit code {self.code}"


async def run_command(
    argv: Sequence[str],
    *,
    environment: Mapping[str, str],
    timeout: float | None = None,
    input: bytes = b"",
    until: bytes = b"",
) -> CompletedCommand:
    """Run a client program to completion. On a timeout or a cancellation it is killed with its process group.

    Args:
        environment: the complete environment.
        timeout: maximum seconds until the program ends; None means no limit.
        input: the program's standard input.
        until: if not empty, a complete line of standard output that begins with this ends the run: the program is
            killed, and the result is its output so far with exit code 0.

    Raises:
        TimeoutError: if the program did not end in time.
        ResourceError: if the program prints more than 64 MiB.
        OSError: if the program cannot be started; FileNotFoundError if it does not exist.
    """
    process = await ClientProcess.start(lambda: argv, environment)
    stdout, stderr, read = bytearray(), bytearray(), 0
    name = f"`{' '.join(argv[:2])}`"

    async def send() -> None:
        with contextlib.suppress(BrokenPipeError):
            await process.send(input)
        await process.end_input()

    sending = asyncio.ensure_future(send())
    try:
        async with asyncio.timeout(timeout):
            while (output := await process.receive()) is not None:
                (stdout if output[0] == 1 else stderr).extend(output[1])
                if max(len(stdout), len(stderr)) > _MAX_OUTPUT:
                    raise ResourceError(f"{name} prints more than {_MAX_OUTPUT >> 20} MiB")
                while until and (end := stdout.find(b"\n", read)) >= 0:
                    if stdout.startswith(until, read):
                        return CompletedCommand(0, bytes(stdout), bytes(stderr))
                    read = end + 1
            return CompletedCommand(await process.wait(), bytes(stdout), bytes(stderr))
    except TimeoutError:
        raise TimeoutError(f"{name} did not answer within {timeout:g} seconds") from None
    finally:
        sending.cancel()
        await process.kill()
