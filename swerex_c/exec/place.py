"""A place in use: scripts that run there, each in a fresh bash over pipes.

    place = Place(backend)
    place.open(60)
    answer = place.run('printf %s "$1" | tr a-z A-Z', "words of any bytes", timeout=10)
    place.close()

Everything here blocks, and may be called from any thread.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import subprocess
import threading
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from swerex_c.exceptions import (
    CommandTimeoutError,
    ConnectionLostError,
    ResourceError,
    RuntimeClosedError,
    SwerexException,
)
from swerex_c.exec import scripts
from swerex_c.exec.backend import Backend
from swerex_c.exec.client import KEPT, MERGED, NO_INPUT, Exchange, Output, Overdue
from swerex_c.exec.shells import START_SECONDS, Shells, lost
from swerex_c.runtime.config import OUTPUT_LIMIT

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

__all__ = ["Answer", "Place", "Running"]

KILL_SECONDS = 2.0 + scripts.END_SECONDS
"""How long it may take to end what a script has started."""

_NOTICE_SECONDS = (0, 0.5, 1)
"""So long after each other an engine is asked whether a place has ended. It may notice only when all streams have."""


@dataclass
class Answer:
    """What came of a script."""

    code: int
    """Its exit status, or minus the number of the signal that ended it."""

    stdout: bytes
    stderr: bytes

    dropped: int
    """Bytes that are missing in the middle of the two, because there were more than was to be kept."""


class Place:
    """A backend in use. `mark` is what the marks of all that is started here begin with."""

    def __init__(self, backend: Backend, *, logger: logging.Logger | None = None) -> None:
        self.backend = backend
        self.mark = scripts.draw_mark()
        self._shells = Shells(backend, self.mark, logger)
        self._running: weakref.WeakSet[Running] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._closed = False
        self._dropped = weakref.finalize(self, self._shells.close)

    def open(self, timeout: float, *, shells: bool = True) -> None:
        """Open the backend, and have the first shell ready.

        shells: False, where it is known already that they run there: the first one is started when it is needed, or
        after a moment in which nothing was.

        Raises:
            PlaceLostError: if there is no such place, or it cannot be reached.
            NotSupportedError: if it has no bash.
            ResourceError: if no shell can be started there for another reason.
            TimeoutError: if that takes longer than `timeout` seconds.
        """
        deadline = time.monotonic() + timeout
        self.backend.open(timeout)
        if not shells:
            self._shells.start_later()
            return
        self._shells.put_back(self._shells.take(max(0.0, deadline - time.monotonic()), lend=True))

    def start(self, script: str, *words: str, merge: bool = False, mark: str | None = None) -> Running:
        """Start a script in a bash of its own, in the place's own environment and directory.

        Args:
            script: bash. It is run in a subshell: `$$` is the shell above it, which reports its end.
            words: what it gets as `$1`, `$2`, ...; of any length, without NUL bytes.
            merge: standard error goes where standard output goes.
            mark: what all that it executes has in SWEREX_C_MARK, instead of one that is drawn.

        Raises:
            PlaceLostError, NotSupportedError, ResourceError, RuntimeClosedError: if it was not started.
        """
        return self._start(script, words, MERGED if merge else 0, mark)

    def start_reading(self, script: str, *words: str, merge: bool = False) -> Running:
        """The same for a script that keeps its input to itself, so that its shell can be used again: that is quicker.

        It has to read neither more nor less than is written to its `stdin`, and to give no process that outlives it
        its own standard input.
        """
        return self._start(script, words, KEPT | (MERGED if merge else 0), None)

    def _start(self, script: str, words: Sequence[str], kind: int, mark: str | None) -> Running:
        with self._lock:
            if self._closed:
                msg = "The runtime was closed: make another one"
                raise RuntimeClosedError(msg)
        mark = mark or scripts.draw_mark(self.mark)
        deadline = time.monotonic() + START_SECONDS
        try:
            exchange = self._begin(script, [os.fsencode(word) for word in words], kind, mark, deadline)
        except TimeoutError as e:
            raise lost(self.backend) or ResourceError(str(e)) from None
        return Running(self, exchange, mark)

    def _begin(self, script: str, words: list[bytes], kind: int, mark: str, deadline: float) -> Exchange:
        """A script that runs. Its client is to be given to `_done`.

        Raises:
            TimeoutError: if it was not started before `deadline`.
            and what `start` raises.
        """
        while True:
            client = self._shells.take(deadline - time.monotonic(), lend=bool(kind & KEPT))
            exchange = None
            try:
                possible = kind if client.keeps else kind & ~KEPT
                exchange = client.send(script, words, possible, mark, deadline)
            except Overdue:
                msg = f"A shell in {self.backend.name} does not take its script"
                raise TimeoutError(msg) from None
            finally:
                if exchange is None:
                    self._shells.retire(client)
            if exchange is not None:
                return exchange

    def _done(self, exchange: Exchange, killed: bool) -> None:
        """A script has ended, or is given up."""
        if not killed and exchange.client.recycle(exchange):
            self._shells.put_back(exchange.client)
        else:
            self._shells.retire(exchange.client)

    def run(
        self,
        script: str,
        *words: str,
        input: bytes = b"",
        timeout: float | None = None,
        limit: int = OUTPUT_LIMIT,
        mark: str | None = None,
    ) -> Answer:
        """Run a script to its end.

        Args:
            input: its standard input.
            timeout: seconds after which it is ended with all that it started; None is for ever.
            limit: bytes that are kept of each stream: half of them its beginning, half its end.

        Raises:
            CommandTimeoutError: if it took too long; its output so far is in `output`.
            what `start` and `Running.wait` raise.
        """
        running = self._start(script, words, 0 if input else KEPT | NO_INPUT, mark)
        try:
            return running.collect(input, timeout, limit)
        finally:
            running.close()

    def close(self) -> None:
        """End all that runs, and all clients, and close the backend. May be called again."""
        with self._lock:
            self._closed = True
            running = list(self._running)
        threads = [threading.Thread(target=one.kill, daemon=True) for one in running]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + KILL_SECONDS
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._shells.close()
        self.backend.close()

    def _end_marked(self, mark: str) -> None:
        """End all that has the mark. Not by `run`, which would have its own overdue script ended likewise."""
        words = [mark.encode(), b"%d" % scripts.END_SECONDS]
        deadline = time.monotonic() + KILL_SECONDS
        exchange = self._begin(scripts.END_MARKED, words, KEPT | NO_INPUT, scripts.draw_mark(self.mark), deadline)
        try:
            with contextlib.suppress(Overdue, BrokenPipeError):
                exchange.wait(deadline)
        finally:
            self._done(exchange, False)


class Running:
    """One script in the place. Its streams have its own bytes only.

    `stdout` and `stderr` end when the script itself ends: what children print that it left is not theirs. Reading one
    of the three never waits for somebody to read another: what comes there meanwhile is kept in memory.
    """

    def __init__(self, place: Place, exchange: Exchange, mark: str) -> None:
        self.mark = mark
        """What all that it executes has in SWEREX_C_MARK."""
        self.nonce = exchange.nonce
        """What a shell needs that the script executes, to use `swx_note` too; not for anybody else there."""
        self._place = place
        self._exchange = exchange
        self._killed = False
        self._closed = False
        self._lock = threading.Lock()
        self.stdin: io.RawIOBase = _Input(exchange)
        self.stdout: io.RawIOBase = _Stream(exchange, exchange.stdout)
        self.stderr: io.RawIOBase = _Stream(exchange, exchange.stderr)
        with place._lock:
            place._running.add(self)

    @property
    def note(self) -> int | None:
        """What the script told by `swx_note NUMBER`, which nothing that it executes can imitate."""
        return self._exchange.note

    @property
    def killed(self) -> bool:
        """Whether `kill` was called."""
        return self._killed

    def close_input(self) -> None:
        """The script's standard input is at its end."""
        self._exchange.close_input()

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status, or minus the number of the signal that ended it. What it prints is kept for the streams.

        Raises:
            TimeoutError: if it has not ended after `timeout` seconds. It goes on.
            PlaceLostError: if the place is gone.
            ConnectionLostError: if the connection to it is, which others can make anew.
            SwerexException: if the shell above the script has ended without its exit status.
        """
        exchange = self._exchange
        try:
            exchange.wait(None if timeout is None else time.monotonic() + timeout)
        except Overdue:
            msg = f"The script has not ended after {timeout:g} seconds"
            raise TimeoutError(msg) from None
        except BrokenPipeError:
            raise RuntimeClosedError("The runtime was closed while the command ran") from None
        code = exchange.code
        if code is not None:
            return code
        raise self._no_code()

    def _no_code(self) -> SwerexException:
        if self._killed:
            return RuntimeClosedError("The command was ended")
        client = self._exchange.client
        with contextlib.suppress(subprocess.TimeoutExpired):
            client.process.wait(1)
        for pause in _NOTICE_SECONDS:
            time.sleep(pause)
            gone = lost(self._place.backend)
            if gone is not None:
                return gone
        words = client.words()
        said = f": {words}" if words else ""
        what = "while the command ran" if self._exchange.began else "before the command began, or as it did"
        code = client.process.returncode
        unsure = None if code is None or code < 0 else self._place.backend.unsure(client.argv, code)
        if unsure is not None:
            return ConnectionLostError(
                f"{unsure} {what}, so there is no exit code: it may still run. Other commands get a new one{said}"
            )
        return ResourceError(
            f"The shell in {self._place.backend.name} has ended {what}, so there is no exit code; "
            f"its client ended with status {code}{said}"
        )

    def collect(self, input: bytes, timeout: float | None, limit: int) -> Answer:
        """Feed the script, read all that it prints, and wait for its end; see `Place.run`."""
        from swerex_c.runtime._watch import _Kept

        exchange = self._exchange
        kept = (_Kept(limit), _Kept(limit))
        for output, keeper in zip((exchange.stdout, exchange.stderr), kept, strict=True):
            output.drain(keeper.add)
        deadline = None if timeout is None else time.monotonic() + timeout
        try:
            if input:
                with contextlib.suppress(BrokenPipeError):
                    exchange.write(input, deadline)
            exchange.close_input()
            exchange.wait(deadline)
        except Overdue:
            self.kill()
            msg = f"Timeout ({timeout}s) exceeded while running the script"
            raise CommandTimeoutError(msg, output=kept[0].content().decode(errors="backslashreplace")) from None
        except BrokenPipeError:
            pass
        if self._killed:
            msg = "The runtime was closed while the command ran"
            raise RuntimeClosedError(msg)
        code = self.wait(0)
        return Answer(code, kept[0].content(), kept[1].content(), kept[0].dropped + kept[1].dropped)

    def kill(self) -> None:
        """End it with everything that it started. Returns when that is done, after some seconds at most."""
        with self._lock:
            if self._killed or self._closed or self._exchange.done:
                return
            self._killed = True
        try:
            with contextlib.suppress(SwerexException, TimeoutError):
                self._place._end_marked(self.mark)
        finally:
            # What carries no mark may hold the pipes open.
            self._exchange.client.give_up(time.monotonic() + 0.5)
            with contextlib.suppress(Overdue, BrokenPipeError):
                self._exchange.wait(time.monotonic() + 1)

    def close(self) -> None:
        """Done with it: what it left in the background goes on. It is ended if it still runs."""
        if not self._exchange.done:
            self.kill()
        with self._lock:
            if self._closed:
                return
            self._closed = True
        with self._place._lock:
            self._place._running.discard(self)
        self._place._done(self._exchange, self._killed)

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Stream(io.RawIOBase):
    """What comes from the script on one of its streams."""

    def __init__(self, exchange: Exchange, output: Output) -> None:
        self._exchange = exchange
        self._output = output

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1, /) -> bytes:
        """At most `size` bytes, as soon as there are any; b"" at the end. All until there if `size` is negative."""
        if size is None or size < 0:
            return self.readall()
        return self._exchange.client.read(self._output, size)

    def readall(self) -> bytes:
        return b"".join(iter(lambda: self.read(256 * 1024), b""))

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        view = memoryview(buffer).cast("B")
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)


class _Input(io.RawIOBase):
    """What goes to the script."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    def writable(self) -> bool:
        return True

    def write(self, data: ReadableBuffer, /) -> int:
        """Write all of it. BrokenPipeError if the script has ended."""
        view = memoryview(data).cast("B")
        self._exchange.write(view)
        return len(view)

    def close(self) -> None:
        """The end of the script's input."""
        if not self.closed:
            self._exchange.close_input()
        super().close()
