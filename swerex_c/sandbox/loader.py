"""Drive a bash in the sandbox that runs scripts one after another, over a program's three pipes.

    this process                                                  the sandbox
      stdin  --[ nonce, words, input ]-->  loader.bash: reads the words, then starts
      stdout <--[ nonce B ... nonce E0 ]-- a subshell that runs the script
      stderr <--[ nonce B ... nonce E0 ]--

The loader sends a greeting when it can take a script. It frames the script's output on both streams with records. Each
record begins with a nonce of 128 bits, which arrives on standard input and is only in the loader's memory, so that no
output can imitate a record. The last record carries the exit code, and is sent when the script itself has ended:
children that it left may hold the streams open and print more, but that output is discarded.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
from collections import deque
from collections.abc import Callable, Sequence

from swerex_c.exceptions import ConnectionLostError, SwerexException
from swerex_c.sandbox.backend import Process
from swerex_c.utils.shell_script import bash_command, read_script
from swerex_c.utils.visible import error_line
from swerex_c.utils.wait import end_tasks

__all__ = ["MERGED", "NO_INPUT", "REUSABLE", "Frames", "Loader", "encode_request"]

_LOADER = read_script("sandbox/scripts/loader.bash")

REUSABLE, MERGED, NO_INPUT = 1, 2, 4
"""Flags for the kind of a script. `REUSABLE`: it leaves the loader reusable, and therefore reads only announced input
and does not pass its standard input to its children. `MERGED`: its standard error goes to its standard output.
`NO_INPUT`: its standard input is empty."""

_RECORD = re.compile(rb"([BHENR])((?<=[BHR])|(?<=H)\d{1,4}\.\d{1,4}\.1?\.\d*|(?<=[EN])-?\d{1,9});")
_LONGEST_RECORD = 24
_NOISE_KEPT = 8 * 1024

_SETTLE_SECONDS = 2.0
"""Maximum seconds for a loader to become ready for another script. It decides within 0.1 seconds."""

_PIECE = 1 << 20
"""Maximum number of bytes to send at a time: requests of some providers are limited."""

_CLOSE_SECONDS = 10.0
"""Maximum seconds for `Process.close`."""


def encode_request(nonce: bytes, number: int, words: Sequence[bytes]) -> bytes:
    """Return a header and words, of any length and without NUL bytes, in the format that words_lib.bash reads."""
    return b"%s %d %s\n" % (nonce, number, b" ".join(b"%d" % len(word) for word in words)) + b"".join(words)


class Frames:
    """Parser of one of the two streams. It removes the records of one script and passes its output on."""

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.records: dict[bytes, bytes] = {}
        self.noise = bytearray()  # output before the script: a banner, a warning, the error of a failing client
        self.pieces: deque[bytes] = deque()
        self.sink: Callable[[bytes], object] | None = None  # gets the output, which `pieces` keeps otherwise
        self.closed = False  # at the end of the stream
        self._rest = b""

    @property
    def done(self) -> bool:
        """Return whether all output of the script has arrived."""
        return self.closed or b"E" in self.records

    def feed(self, data: bytes) -> None:
        data, self._rest = self._rest + data, b""
        while True:
            at = data.find(self.key)
            if at < 0:
                # The end of the data may be the beginning of the key.
                longest = min(len(self.key) - 1, len(data))
                keep = next((size for size in range(longest, 0, -1) if data.endswith(self.key[:size])), 0)
                self._emit(data[: len(data) - keep])
                self._rest = data[len(data) - keep :]
                return
            begin = at + len(self.key)
            record = _RECORD.match(data, begin)
            if record is None and len(data) - begin < _LONGEST_RECORD:
                self._emit(data[:at])
                self._rest = data[at:]
                return
            self._emit(data[: begin if record is None else at])  # without a record, the loader has not written the key
            if record is not None:
                self.records[record[1]] = record[2]
                begin = record.end()
            data = data[begin:]

    def _emit(self, data: bytes) -> None:
        if not data or b"E" in self.records:
            return
        if b"B" in self.records:
            (self.sink or self.pieces.append)(data)
        else:
            self.noise += data
            del self.noise[:-_NOISE_KEPT]

    def drain(self, sink: Callable[[bytes], object]) -> None:
        """Pass all output, past and future, to a function instead of keeping it."""
        while self.pieces:
            sink(self.pieces.popleft())
        self.sink = sink

    def drop(self) -> None:
        """Drop all output, past and future, that is not passed to a function."""
        if self.sink is None:
            self.drain(lambda data: None)

    def end(self) -> None:
        """Mark the stream as ended, whether or not the script has ended."""
        self.closed = True
        self._emit(self._rest)
        self._rest = b""


class Loader:
    """One bash in the sandbox, which runs one script at a time. Used in the private event loop."""

    def __init__(self, process: Process, token: str) -> None:
        """Take a program that was started with `Loader.argv(token)`. `greet` must follow."""
        self.process = process
        self.stdout, self.stderr = Frames(token.encode()), Frames(token.encode())
        self.born = ""
        """Start time of the sandbox's first process, which changes when the sandbox is restarted; empty if unknown."""
        self.reusable = False
        """True if the loader can take another script after one of the kind `REUSABLE`."""
        self.error: Exception | None = None
        """Why the connection broke, if it did."""
        self._reading: asyncio.Task[None] | None = None
        self._settling: asyncio.Task[bool] | None = None

    @staticmethod
    def argv(token: str) -> list[str]:
        """Return the command to run in the sandbox."""
        return bash_command(_LOADER, token)

    async def greet(self) -> tuple[int, int] | None:
        """Wait for the greeting, and return bash's version; None if the program has ended instead."""
        await self.until(lambda: self._have(b"H"))
        version = self.stdout.records.get(b"H")
        if not version or not self._have(b"H"):
            return None
        major, minor, reusable, born = version.split(b".")
        self.born = born.decode()
        self.reusable = reusable == b"1"
        return int(major), int(minor)

    def renew(self, nonce: bytes) -> tuple[Frames, Frames]:
        """Return the two streams of the script that is written next, whose records begin with this nonce."""
        ended = self.stdout.closed
        self.stdout, self.stderr = Frames(nonce), Frames(nonce)
        self.stdout.closed = self.stderr.closed = ended
        return self.stdout, self.stderr

    @property
    def done(self) -> bool:
        """Return whether all output of the script has arrived."""
        return self.stdout.done and self.stderr.done

    def _have(self, record: bytes) -> bool:
        """Return whether a record has come on both streams."""
        return record in self.stdout.records and record in self.stderr.records

    async def until(self, condition: Callable[[], object]) -> None:
        """Read output until a condition holds or the streams have ended."""
        while not condition() and not self.stdout.closed:
            await self._next()

    async def write(self, data: bytes | memoryview) -> None:
        """Write all of `data` to the script's standard input, and read its output meanwhile.

        Raises:
            BrokenPipeError: if the script has ended.
            ConnectionLostError: if the connection broke: some of the data may have arrived.
        """
        for i in range(0, len(data), _PIECE):
            await self._write(bytes(data[i : i + _PIECE]))

    async def _write(self, data: bytes) -> None:
        sending = asyncio.ensure_future(self.process.send(data))
        try:
            while not sending.done() and not self.done:
                await self._next(sending)
            if not sending.done():
                raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
        finally:
            await end_tasks(sending)
        try:
            await sending
        except BrokenPipeError:  # its last output may not have been read yet
            await self.until(lambda: self.done)
            raise
        except SwerexException:
            raise
        except Exception as error:
            lost = ConnectionLostError(error_line(error))
            self.error = self.error or lost
            raise lost from error

    async def read(self, frames: Frames, size: int) -> bytes:
        """Return up to `size` bytes of a script's stream; b"" at its end."""
        await self.until(lambda: frames.pieces or frames.done)
        if not frames.pieces or not size:
            return b""
        piece = frames.pieces.popleft()
        if len(piece) > size:
            frames.pieces.appendleft(piece[size:])
        return piece[:size]

    async def _next(self, *others: asyncio.Future[None]) -> None:
        """Wait for the next output, which all that wait share, or for one of the others."""
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read())
        await asyncio.wait([self._reading, *others], return_when=asyncio.FIRST_COMPLETED)

    async def _read(self) -> None:
        try:
            output = await self.process.receive()
        except Exception as error:
            self.error, output = error, None
        if output is None:
            self.stdout.end()
            self.stderr.end()
        else:
            (self.stderr if output[0] == 2 else self.stdout).feed(output[1])

    def give_up(self) -> None:
        """Treat both streams as ended, even if processes hold them open."""
        self.stdout.end()
        self.stderr.end()
        if self._reading is not None:
            self._reading.cancel()

    def recycle(self, nonce: bytes) -> None:
        """Prepare for another script after one of the kind `REUSABLE` that has ended; see `usable`."""
        self._settling = asyncio.create_task(self._settle(nonce))

    async def _settle(self, nonce: bytes) -> bool:
        with contextlib.suppress(Exception):
            async with asyncio.timeout(_SETTLE_SECONDS):
                await self.process.send(nonce + b"\n")
                await self.until(lambda: self._have(b"R"))
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read())  # notices the end while the loader is idle
        return self._have(b"R")

    @property
    def settled(self) -> bool:
        """Return whether `usable` need not wait."""
        return self._settling is None or self._settling.done()

    async def usable(self) -> bool:
        """Return whether the loader can take a script, once that is known."""
        ready = True
        if self._settling is not None:
            await asyncio.wait([self._settling])
            ready = not self._settling.cancelled() and self._settling.result()  # `close` cancels it
        return ready and not self.stdout.closed

    async def close(self) -> None:
        """Hang up. Processes that a script left in the sandbox keep running."""
        self.give_up()
        await end_tasks(*(task for task in (self._reading, self._settling) if task is not None))
        with contextlib.suppress(Exception):
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self.process.close()

    def printed(self) -> str:
        """Return the output from before the script began, as one line: an error of the client, for example."""
        said = bytes(self.stderr.noise) or bytes(self.stdout.noise)
        return " ".join(said.decode(errors="replace").split())
