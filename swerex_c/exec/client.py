"""One client with a bash behind it that takes one script, over three pipes.

    this process                      client                        the place
      stdin  --[ nonce, words, input ]--> docker exec -i ...  -->  bash -c LOADER: reads the words, then starts
      stdout <--[ nonce B ... nonce E0 ]--                    <--    a subshell that runs the script
      stderr <--[ nonce B ... nonce E0 ]--

The loader says hello when it can take a script. It frames what the script prints on both streams with records that
begin with a nonce of 128 bits, which came over standard input and is in the loader's memory only, so that no output
can look like them. The last one carries the exit code, and comes when the script itself has ended: children that it
left may hold the streams open and print on, which nobody sees any more.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import select
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from swerex_c.exec.scripts import BRAND

__all__ = ["READ_WORDS", "Client", "Output", "Overdue", "packed"]

READ_WORDS = r"""
swx_read() {
  local LC_ALL=C size word
  IFS=' ' read -r -a swx_head || return
  for size in "${swx_head[@]:2}"; do
    word=
    if ((size)); then IFS= read -r -N "$size" word || return; fi
    swx_words+=("$word")
  done
}
swx_note() { printf '%sN%s;' "$swx_head" "$1"; }
"""
"""Defines `swx_read`, which fills the array `swx_words` from what `packed` made, byte for byte, and takes not one byte
more. The two words before the sizes are in `swx_head`: the nonce and a number.

`swx_note NUMBER` then tells a number to `Client.note` that nothing which the shell executes can tell."""

LOADER = (
    BRAND
    + r"""
swx_branded=$?
printf '\n%sH%s.%s;' "$1" "${BASH_VERSINFO[@]:0:2}"
printf '\n%sH;' "$1" >&2
"""
    + READ_WORDS
    + r"""
swx_say() { until printf '%s%s;' "$swx_head" "$1"; do :; done; }
swx_read || exit 0
set -- "${swx_words[@]:2}"
swx_mark=${swx_words[0]} swx_script=${swx_words[1]}
unset -v swx_words
swx_say B
swx_say B >&2
trap 'trap - CHLD; swx_jobs=$(jobs)' CHLD
set -m
if ((swx_head[1])); then
  ( [[ ! $swx_mark ]] || export SWEREX_C_MARK="$swx_mark"; eval "$swx_script" ) <&0 2>&1 &
else
  ( [[ ! $swx_mark ]] || export SWEREX_C_MARK="$swx_mark"; eval "$swx_script" ) <&0 &
fi
set +m
exec 4>&2 2>&-
wait "$!"
swx_code=$?
if ((swx_code > 128)) && [[ $swx_jobs && ! $swx_jobs =~ [^0-9]"$swx_code"[^0-9] ]]; then
  swx_code=$((128 - swx_code))
fi
swx_say E$swx_code
swx_say E$swx_code >&4
"""
)
"""What runs in the place. `$1` is the word that its greeting begins with.

- A header line gives the nonce, whether standard error goes into standard output, and the sizes of the words that
  follow. What comes after them is the script's input.
- The script runs in a subshell with a process group of its own (`set -m`), so that `kill 0` does not reach the
  loader. Monitor mode is off again before the waiting, or a program that stops itself would be taken for ended.
- bash gives 137 both for `exit 137` and for SIGKILL; its table of jobs tells which, as long as nobody has waited. A
  signal's number is sent with a minus.
- The records are written until that succeeds, because the program may have left the pipe non-blocking.
- `swx_branded` is 0 if the mark is in the limits too, and so not needed in the environment to be found.
"""

_RECORD = re.compile(rb"([HBEN])([-0-9.]*);")
_LONGEST_RECORD = 24
_CHUNK = 256 * 1024
_NOISE_KEPT = 8 * 1024

_SLICE = 0.25
"""Seconds after which a thread that waits for the pipes looks whether the client is still there."""

_DRAIN = 0.5
"""Seconds that are left for what is under way when a client has ended."""


class Overdue(Exception):
    """What was waited for did not come in time."""


def packed(nonce: bytes, number: int, words: Sequence[bytes]) -> bytes:
    """What `READ_WORDS` reads: without NUL bytes, of any length."""
    return b"%s %d %s\n" % (nonce, number, b" ".join(b"%d" % len(word) for word in words)) + b"".join(words)


def loader(token: str) -> list[str]:
    """The program of the place that a client has to run: bash that reads no startup file and imports nothing.

    `-p` is what keeps BASH_ENV, SHELLOPTS and exported functions out of it; they go on to what it executes.
    """
    return ["bash", "--noprofile", "--norc", "-p", "-c", LOADER, "swerex", token]


class Output:
    """One of the two streams that come from the place: it takes the records out and hands the rest on."""

    def __init__(self, fd: int, key: bytes) -> None:
        self.fd = fd
        self.key = key
        self.records: dict[bytes, bytes] = {}
        self.noise = bytearray()  # what came before the script: a banner, a warning, the words of a failing client
        self.pieces: deque[bytes] = deque()
        self.sink: Callable[[bytes], None] = self.pieces.append
        self.closed = False  # no more bytes will come
        self._rest = b""

    @property
    def done(self) -> bool:
        """Whether all that the script printed is here."""
        return self.closed or b"E" in self.records

    def feed(self, data: bytes) -> None:
        if b"E" in self.records:
            return
        data = self._rest + data
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
            if record is None:  # nothing that the loader writes
                self._emit(data[: at + len(self.key)])
                data = data[at + len(self.key) :]
                continue
            self._emit(data[:at])
            self.records[record[1]] = record[2]
            data = data[record.end() :]
            if record[1] == b"E":
                self._rest = b""
                return

    def _split(self, data: bytes) -> int:
        """How many bytes at the end of the data may be the beginning of the key."""
        key = self.key
        for size in range(min(len(key) - 1, len(data)), 0, -1):
            if data.endswith(key[:size]):
                return size
        return 0

    def _emit(self, data: bytes) -> None:
        if not data:
            return
        if b"B" in self.records:
            self.sink(data)
        else:
            self.noise += data
            del self.noise[:-_NOISE_KEPT]

    def drain(self, sink: Callable[[bytes], None]) -> None:
        """From now on hand what comes to a function, and what has come already, instead of keeping it."""
        while self.pieces:
            sink(self.pieces.popleft())
        self.sink = sink

    def end(self) -> None:
        """The stream is at its end, whether or not the script is."""
        self.closed = True
        rest, self._rest = self._rest, b""
        if b"E" not in self.records:
            self._emit(rest)


class Client:
    """A client process and the shell behind it. Its methods may be called from several threads."""

    def __init__(self, argv: Callable[[Sequence[str]], list[str]], environment: Mapping[str, str], mark: str) -> None:
        """Start it. Nothing is waited for.

        Args:
            argv: makes the command line of a client from that of the program to run in the place.
            environment: the whole environment of the client.
            mark: what the shell and all that it starts have in their environment; kept as an attribute only.

        Raises:
            OSError: if the client cannot be started.
        """
        self.mark = mark
        token = secrets.token_hex(16)
        self.argv = argv(loader(token))
        self.process = subprocess.Popen(
            self.argv,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(environment),
            start_new_session=True,  # the terminal's ^C is not for it
        )
        assert self.process.stdin and self.process.stdout and self.process.stderr
        self._input = self.process.stdin.fileno()
        self.stdout = Output(self.process.stdout.fileno(), token.encode())
        self.stderr = Output(self.process.stderr.fileno(), token.encode())
        for fd in (self._input, self.stdout.fd, self.stderr.fd):
            os.set_blocking(fd, False)
        self.nonce = b""
        """What the records begin with; only for input that a shell reads before it executes anything else."""
        self._input_open = True
        self._open = True
        self._changed = threading.Condition()
        self._reader: int | None = None  # the thread that reads for all
        self._polling = 0  # threads that use the descriptors just now
        self._limit: float | None = None
        self._look = time.monotonic() + _SLICE

    # ---- the life of the client -----------------------------------------------------------------------------------

    def greet(self, deadline: float) -> tuple[int, int] | None:
        """Wait for the loader; the version of bash there, or None if the client has ended instead.

        Raises:
            Overdue: if neither comes before `deadline` (of the monotonic clock).
        """
        self.pump(lambda: b"H" in self.stdout.records or self.stdout.closed, deadline)
        version = self.stdout.records.get(b"H")
        if version is None:
            return None
        major, _, minor = version.partition(b".")
        return int(major or 0), int(minor or 0)

    def usable(self) -> bool:
        """Whether a client that waits for its script still does. Takes no time."""
        with contextlib.suppress(Overdue):
            self.pump(lambda: self.stdout.closed, 0)
        return not self.stdout.closed and self.process.poll() is None

    def send(self, script: str, words: Sequence[bytes], merge: bool, mark: str, deadline: float) -> bool:
        """Give it the script to run. False: the client has ended and cannot have begun with it.

        Raises:
            Overdue: if the place does not take it before `deadline`.
        """
        self.nonce = secrets.token_hex(16).encode()
        for output in (self.stdout, self.stderr):
            output.key = self.nonce
        try:
            self.write(packed(self.nonce, merge, [os.fsencode(mark), os.fsencode(script), *words]), deadline)
        except BrokenPipeError:
            return False
        return True

    def give_up(self, deadline: float) -> None:
        """From then on (of the monotonic clock) both streams count as ended, whatever holds them open."""
        with self._changed:
            self._limit = deadline if self._limit is None else min(deadline, self._limit)
            self._changed.notify_all()

    def close(self) -> None:
        """Close the pipes; who waits for something here gets an error soon. The process is not touched."""
        with self._changed:
            self._open = self._input_open = False
            self._changed.notify_all()
            if not self._polling:  # else the last of those does it, or a read might hit another file of this number
                self._close_pipes()

    def _close_pipes(self) -> None:
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

    # ---- what goes through it -------------------------------------------------------------------------------------

    @property
    def code(self) -> int | None:
        """The script's exit status, minus a signal's number if one ended it; None while it is not known."""
        value = self.stdout.records.get(b"E")
        return None if value is None else int(value)

    @property
    def note(self) -> int | None:
        """What the script told by `swx_note`."""
        value = self.stdout.records.get(b"N")
        return None if value is None else int(value)

    @property
    def began(self) -> bool:
        """Whether the loader is known to have begun with the script."""
        return b"B" in self.stdout.records or b"B" in self.stderr.records

    @property
    def done(self) -> bool:
        """Whether all that the script printed has come."""
        return self.stdout.done and self.stderr.done

    def words(self) -> str:
        """What the client said besides the script's output, as one line."""
        said = bytes(self.stderr.noise) or bytes(self.stdout.noise)
        return " ".join(said.decode(errors="replace").split())

    def close_input(self) -> None:
        """The script's input is at its end."""
        with self._changed:
            if not self._input_open:
                return
            self._input_open = False
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()

    def write(self, data: bytes | bytearray | memoryview, deadline: float | None = None) -> None:
        """Write all of it, reading what the script prints meanwhile.

        Raises:
            BrokenPipeError: if nobody will read it.
            Overdue: if it is not taken before `deadline`.
        """
        left = memoryview(data).cast("B")

        def written() -> bool:
            nonlocal left
            if not self._input_open or not self._open or self.done:
                raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
            with contextlib.suppress(BlockingIOError):
                while left:
                    left = left[os.write(self._input, left) :]
            return not left

        self.pump(written, deadline, writing=True)

    def read(self, output: Output, size: int, deadline: float | None = None) -> bytes:
        """At most `size` bytes of what the script printed on one of its streams; b"" at the end.

        Raises:
            Overdue: if none come before `deadline`.
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
        """Read what comes until a condition holds. One thread at a time reads, for all that wait.

        Raises:
            Overdue: if it does not hold by `deadline` (of the monotonic clock; None: never). It is asked once at least.
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
                        raise Overdue
                    seconds = _SLICE if deadline is None else max(0.0, min(_SLICE, deadline - now))
                    if not reading and self._reader is None:
                        self._reader, reading = threading.get_ident(), True
                    if not reading and not writing:
                        if seconds <= 0:
                            raise Overdue
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
        """A client that has ended prints no more, though what it started may hold its pipes open."""
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
