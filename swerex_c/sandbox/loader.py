"""Client process whose bash in the sandbox runs scripts one after another.

    this process                      client                        the sandbox
      stdin  --[ nonce, words, input ]--> docker exec -i ...  -->  loader.bash: reads the words   , then starts
      stdout <--[ nonce B ... nonce E0 ]--                    <--    a subshell that runs the script
      stderr <--[ nonce B ... nonce E0 ]--

The client has three pipes. The loader sends a greeting when it can take a script. It frames the script's output on both
streams with records. Each record begins with a nonce of 128 bits, which arrives on standard input and is only in the
loader's memory, so that no output can imitate a record. The last record carries the exit code, and is sent when the
script itself has ended: children that it left may hold the streams open and print more, but that output is discarded.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import select
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from swerex_c.utils.shell_script import read_script

__all__ = [
    "REUSABLE",
    "MERGED",
    "NO_INPUT",
    "DeadlineExceeded",
    "LoaderClient",
    "Output",
    "encode_request",
]

_LOADER = read_script("sandbox/scripts/loader.bash")

REUSABLE, MERGED, NO_INPUT = 1, 2, 4
"""Flags for the kind of a script. `REUSABLE`: it leaves the shell reusable, and therefore reads only announced input
from the client's pipe and does not pass that pipe to its children. `MERGED`: its standard error goes to its standard
output. `NO_INPUT`: its standard input is empty."""

_RECORD = re.compile(rb"([HBENR])([-0-9.]*);")
_LONGEST_RECORD = 24
_CHUNK = 256 * 1024
_NOISE_KEPT = 8 * 1024

_SLICE = 0.25
"""Seconds between checks, by a thread that waits for the pipes, whether the client still runs."""

_SETTLE_SECONDS = 2.0
"""Maximum seconds for a shell to become ready for another script. It kills two processes and starts two."""

_DRAIN = 0.5
"""Seconds to read the output that is still in transit when a client has ended."""


class DeadlineExceeded(Exception):
    """The deadline passed before the awaited event."""


def encode_request(nonce: bytes, number: int, words: Sequence[bytes]) -> bytes:
    """Return a header and words in the format that words_lib.bash reads.

    Words have no NUL bytes and any length.
    """
    return b"%s %d %s\n" % (nonce, number, b" ".join(b"%d" % len(word) for word in words)) + b"".join(words)


def loader(token: str) -> list[str]:
    """Return the command that a client runs in the sandbox.

    It is a bash that reads no startup file and imports nothing: `-p` makes it ignore BASH_ENV, SHELLOPTS and exported
    functions. The programs that it executes inherit them.
    """
    return ["bash", "--noprofile", "--norc", "-p", "-c", _LOADER, "swerex", token]


class Output:
    """Parser of one of the two streams from the sandbox.

    It removes the records and passes the rest on.
    """

    def __init__(self, fd: int, key: bytes) -> None:
        self.fd = fd
        self.key = key
        self.records: dict[bytes, bytes] = {}
        self.noise = bytearray()  # output before the script: a banner, a warning, the error of a failing client
        self.pieces: deque[bytes] = deque()
        self.sink: Callable[[bytes], None] = self.pieces.append
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
                keep = self._split(data)
                self._emit(data[: len(data) - keep])
                self._rest = data[len(data) - keep :]
                return
            record = _RECORD.match(data, at + len(self.key))
            if record is None and len(data) - at - len(self.key) < _LONGEST_RECORD:
                self._emit(data[:at])
                self._rest = data[at:]
                return
            if record is None:  # not written by the loader
                self._emit(data[: at + len(self.key)])
                data = data[at + len(self.key) :]
                continue
            self._emit(data[:at])
            self.records[record[1]] = record[2]
            data = data[record.end() :]

    def _split(self, data: bytes) -> int:
        """Return how many bytes at the end of the data may be the beginning of the key."""
        key = self.key
        for size in range(min(len(key) - 1, len(data)), 0, -1):
            if data.endswith(key[:size]):
                return size
        return 0

    def _emit(self, data: bytes) -> None:
        if not data or b"E" in self.records:
            return
        if b"B" in self.records:
            self.sink(data)
        else:
            self.noise += data
            del self.noise[:-_NOISE_KEPT]

    @property
    def settled(self) -> bool:
        """Return whether the shell has reported that only it can write to this stream."""
        return b"R" in self.records

    def next(self, key: bytes) -> Output:
        """Return a parser of this stream for another script."""
        after = Output(self.fd, key)
        after.closed = self.closed
        return after

    def drain(self, sink: Callable[[bytes], None]) -> None:
        """Pass all output, past and future, to a function instead of keeping it."""
        while self.pieces:
            sink(self.pieces.popleft())
        self.sink = sink

    def end(self) -> None:
        """Mark the stream as ended, whether or not the script has ended."""
        self.closed = True
        rest, self._rest = self._rest, b""
        self._emit(rest)


class LoaderClient:
    """Client process and the shell behind it.

    Its methods may be called from several threads.
    """

    def __init__(self, argv: Callable[[Sequence[str]], list[str]], environment: Mapping[str, str]) -> None:
        """Start the client process, without waiting for its shell.

        Args:
            argv: function that makes a client's command line from that of the program to run in the sandbox.
            environment: the complete environment of the client.

        Raises:
            OSError: if the client cannot be started.
        """
        token = secrets.token_hex(16)
        self.argv = argv(loader(token))
        """The client's command line."""
        self.process = subprocess.Popen(
            self.argv,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(environment),
            start_new_session=True,  # keeps the terminal's ^C away from it
        )
        assert self.process.stdin and self.process.stdout and self.process.stderr
        self._input = self.process.stdin.fileno()
        self.stdout = Output(self.process.stdout.fileno(), token.encode())
        self.stderr = Output(self.process.stderr.fileno(), token.encode())
        for fd in (self._input, self.stdout.fd, self.stderr.fd):
            os.set_blocking(fd, False)
        with contextlib.suppress(OSError):  # fewer reads for large output
            fcntl.fcntl(self.stdout.fd, fcntl.F_SETPIPE_SZ, _CHUNK)
        self.keeps = False
        """True if the shell can take another script after one of the kind `REUSABLE`."""
        self._input_open = True
        self._open = True
        self._settling = False
        self._changed = threading.Condition()
        self._reader: int | None = None  # the thread that reads for all threads
        self._polling = 0  # number of threads that are using the descriptors
        self._limit: float | None = None
        self._look = time.monotonic() + _SLICE

    # ---- life cycle -----------------------------------------------------------------------------------------------

    def greet(self, deadline: float) -> tuple[int, int] | None:
        """Wait for the loader, and return its bash version.

        Returns:
            None if the client has ended instead.

        Raises:
            DeadlineExceeded: if neither happens before `deadline` (of the monotonic clock).
        """
        both = (self.stdout, self.stderr)
        self.pump(lambda: all(b"H" in output.records for output in both) or self.stdout.closed, deadline)
        version = self.stdout.records.get(b"H")
        if version is None:
            return None
        major, minor, keeps = version.split(b".")
        self.keeps = keeps == b"1"
        return int(major), int(minor)

    def usable(self) -> bool:
        """Return whether the client can take a script.

        After an earlier script this may wait some milliseconds.
        """
        try:
            if self._settling:
                self.pump(lambda: self._settled() or self._ended(), time.monotonic() + _SETTLE_SECONDS)
                if not self._settled():
                    return False
                self._settling = False
            self.pump(self._ended, 0)
        except DeadlineExceeded:
            return not self._settling and self.process.poll() is None
        except BrokenPipeError:
            pass
        return False

    def _settled(self) -> bool:
        return self.stdout.settled and self.stderr.settled

    def _ended(self) -> bool:
        return self.stdout.closed or self.stderr.closed

    def send(self, script: str, words: Sequence[bytes], kind: int, mark: str, deadline: float) -> bytes | None:
        """Send a script to run, and return its nonce.

        `stdout` and `stderr` are then the script's.

        Args:
            words: the script's arguments `$1`, `$2`, ...
            kind: flags of `REUSABLE` (only if the client `keeps`), `MERGED`, `NO_INPUT`.
            mark: the mark in the environment of everything that the script executes.

        Returns:
            None if the client has ended and cannot have started the script.

        Raises:
            DeadlineExceeded: if the sandbox does not take the script before `deadline`.
        """
        nonce = secrets.token_hex(16).encode()
        with self._changed:
            self.stdout = self.stdout.next(nonce)
            self.stderr = self.stderr.next(nonce)
        request = encode_request(nonce, kind, [os.fsencode(mark), os.fsencode(script), *words])
        try:
            self.write(request, self._ended, deadline)
        except BrokenPipeError:
            return None
        return nonce

    def recycle(self, nonce: bytes) -> bool:
        """Make the client ready for another script after one that has ended.

        Args:
            nonce: that of the ended script, which was of the kind `REUSABLE`.

        Returns:
            False if the client cannot be reused.
        """
        try:
            self.write(nonce + b"\n", self._ended, time.monotonic())
        except (BrokenPipeError, DeadlineExceeded):
            return False
        self._settling = True
        return True

    def give_up(self, deadline: float) -> None:
        """Treat both streams as ended after `deadline` (of the monotonic clock).

        This does not depend on processes that hold them open.
        """
        with self._changed:
            self._limit = deadline if self._limit is None else min(deadline, self._limit)
            self._changed.notify_all()

    def close(self) -> None:
        """Close the pipes. The process keeps running.

        Threads that wait here get an error soon.
        """
        with self._changed:
            self._open = self._input_open = False
            self._changed.notify_all()
            if not self._polling:  # else the last such thread closes them: a read might hit a reused descriptor
                self._close_pipes()

    def _close_pipes(self) -> None:
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

    def words(self) -> str:
        """Return the output from before the script began, as one line.

        An example is an error of the client.
        """
        said = bytes(self.stderr.noise) or bytes(self.stdout.noise)
        return " ".join(said.decode(errors="replace").split())

    # ---- input and output -----------------------------------------------------------------------------------------

    def close_input(self) -> None:
        """Close the input of the shell or its script."""
        with self._changed:
            if not self._input_open:
                return
            self._input_open = False
            assert self.process.stdin is not None
            with contextlib.suppress(OSError):
                self.process.stdin.close()

    def write(
        self, data: bytes | bytearray | memoryview, over: Callable[[], bool], deadline: float | None = None
    ) -> None:
        """Write all of `data`, and read output meanwhile.

        Args:
            over: function that tells whether the reader has ended.

        Raises:
            BrokenPipeError: if the reader has ended.
            DeadlineExceeded: if the data is not taken before `deadline`.
        """
        left = memoryview(data).cast("B")

        def written() -> bool:
            nonlocal left
            if not self._input_open or not self._open or over():
                raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
            with contextlib.suppress(BlockingIOError):
                while left:
                    left = left[os.write(self._input, left) :]
            return not left

        self.pump(written, deadline, writing=True)

    def read(self, output: Output, size: int, deadline: float | None = None) -> bytes:
        """Return up to `size` bytes of a script's stream; b"" at its end.

        Raises:
            DeadlineExceeded: if no bytes come before `deadline`.
        """
        if size == 0:
            return b""
        self.pump(lambda: bool(output.pieces) or output.done, deadline)
        with self._changed:
            if not output.pieces:
                return b""
            piece = output.pieces.popleft()
            if 0 < size < len(piece):
                output.pieces.appendleft(piece[size:])
                piece = piece[:size]
            return piece

    def pump(self, until: Callable[[], bool], deadline: float | None, *, writing: bool = False) -> None:
        """Read output until a condition holds.

        One thread at a time reads, for all threads that wait.

        Raises:
            DeadlineExceeded: if it does not hold by `deadline` (monotonic; None: never). It is checked at least once.
            BrokenPipeError: if the client was closed.
        """
        reading = False
        try:
            while True:
                with self._changed:
                    self._look_at_the_end()
                    if until():
                        return
                    if not self._open:
                        raise BrokenPipeError(errno.EPIPE, "The client is closed")
                    now = time.monotonic()
                    if deadline is not None and deadline <= now and reading:
                        raise DeadlineExceeded
                    seconds = _SLICE if deadline is None else max(0.0, min(_SLICE, deadline - now))
                    if not reading and self._reader is None:
                        self._reader, reading = threading.get_ident(), True
                    if not reading and not writing:
                        if seconds <= 0:
                            raise DeadlineExceeded
                        self._changed.wait(seconds)
                        continue
                    self._polling += 1
                try:
                    self._poll(seconds, writing, reading)
                finally:
                    with self._changed:
                        self._polling -= 1
                        if not self._open and not self._polling:
                            self._close_pipes()
                        self._changed.notify_all()
        finally:
            if reading:
                with self._changed:
                    self._reader = None
                    self._changed.notify_all()

    def _look_at_the_end(self) -> None:
        """End the streams of a client that has ended, even if processes that it started hold its pipes open."""
        now = time.monotonic()
        if self._limit is None and now >= self._look:
            self._look = now + _SLICE
            if self.process.poll() is not None:
                self._limit = now + _DRAIN
        if self._limit is not None and now >= self._limit:
            self.stdout.end()
            self.stderr.end()

    def _poll(self, seconds: float, writing: bool, reading: bool) -> None:
        poll = select.poll()
        outputs = [o for o in (self.stdout, self.stderr) if reading and not o.closed]
        for output in outputs:
            poll.register(output.fd, select.POLLIN)
        if writing:
            poll.register(self._input, select.POLLOUT)
        ready = dict(poll.poll(seconds * 1000))
        for output in outputs:
            if output.fd in ready:
                self._read(output)

    def _read(self, output: Output) -> None:
        try:
            data = os.read(output.fd, _CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        with self._changed:
            if data:
                output.feed(data)
            else:
                output.end()
