"""Standard output and standard error of a server, written without blocking.

An unread pipe holds 64 KiB; a write beyond that never returns, and would block the event loop forever. So `sys.stdout`
and `sys.stderr` pass each line to a thread, which may block. Lines that do not fit into the thread's queue are dropped
and counted.

The descriptors stay as they are: they may be shared with other processes, which would notice O_NONBLOCK.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import os
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TextIO

__all__ = ["QUEUE_BYTES", "Note", "dropped", "end", "redirect"]

QUEUE_BYTES = 4 << 20
"""Maximum bytes of the lines in the queue, not counting the last one; further lines are dropped.

The limit is in bytes, because one line may be a traceback of a megabyte.
"""

Note = Callable[[int, str], str]
"""A function from the number of dropped lines and the reason to the line that tells it."""

_UNREAD = "the output was not read"

_PIECE = 1 << 16


class _Writer:
    """Thread that writes to descriptors, in order.

    The thread is a daemon and uses no buffer of Python's, so that the process can exit while it is stuck in a write.
    """

    def __init__(self, note: Note):
        self._note = note
        self._changed = threading.Condition()  # reentrant, because a destructor may print while it is held
        self._queue: deque[tuple[int, bytes] | None] = deque()  # None: from here on lines were dropped
        self._size = 0
        self._full = False
        self._untold = 0
        self._reason = _UNREAD
        self._progress = 0
        self._busy = False
        self._ended = False
        self._last_fd = -1
        self.dropped = 0
        threading.Thread(target=self._run, name="server-output", daemon=True).start()

    def put(self, fd: int, lines: bytes) -> None:
        """Queue lines for a descriptor, or drop them; return at once."""
        if self._ended:  # the lock may belong to a thread that has ended with the interpreter
            if not self._busy:
                _write_ready(fd, lines)
            return
        with self._changed:
            if self._full or self._size >= QUEUE_BYTES:
                self._count(lines, _UNREAD)
                if not self._full:  # until the queue is empty, so that a slow reader finds few gaps
                    self._full = True
                    self._queue.append(None)
            else:
                self._size += sys.getsizeof(lines)
                self._queue.append((fd, lines))
            self._last_fd = fd
            self._busy = True
            self._changed.notify_all()

    def end(self, seconds: float) -> None:
        """Wait until all lines are written, or none was for that many seconds. The thread is not needed afterwards."""
        with self._changed:
            before, deadline = self._progress, time.monotonic() + seconds
            while self._busy and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(left)  # other threads may go on printing
                if self._progress != before:
                    before, deadline = self._progress, time.monotonic() + seconds
            self._ended = True

    def _count(self, lines: bytes, reason: str) -> None:
        count = lines.count(b"\n") or 1
        self._untold += count
        self._reason = reason
        self.dropped += count

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._queue:
                    self._busy = False
                    self._changed.notify_all()
                    self._changed.wait()
                item = self._queue.popleft()
                if item is None:
                    self._full = False
                untold, reason = (0, "") if self._full else (self._untold, self._reason)
                fd, lines = item or (self._last_fd, b"")
            if untold and self._write(fd, self._note(untold, reason).encode()) is None:
                with self._changed:
                    self._untold -= untold
            failure = self._write(fd, lines)
            with self._changed:
                if failure is not None:
                    self._count(lines, failure)
                if item is not None:
                    self._size -= sys.getsizeof(lines)
                self._progress += 1
                self._changed.notify_all()

    def _write(self, fd: int, data: bytes) -> str | None:
        """Write all of it, however long that takes; return the reason if it cannot be written."""
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(fd, view[:_PIECE]) :]
                self._progress += 1
            except BlockingIOError:  # the descriptor was O_NONBLOCK before
                _wait_writable(fd, None)
            except OSError as error:
                return os.strerror(error.errno or 0)
        return None


def _wait_writable(fd: int, milliseconds: int | None) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    return bool(poll.poll(milliseconds))


def _write_ready(fd: int, data: bytes) -> None:
    """Write as much as is possible without waiting, and drop the rest."""
    with contextlib.suppress(OSError):
        for start in range(0, len(data), select.PIPE_BUF):
            if not _wait_writable(fd, 0):
                return
            os.write(fd, data[start : start + select.PIPE_BUF])


class _Lines(io.RawIOBase):
    """Binary stream that queues whole lines. Each thread has an unfinished line of its own."""

    def __init__(self, fd: int, writer: _Writer):
        super().__init__()
        self._fd = fd
        self._writer = writer
        self._own = threading.local()

    def fileno(self) -> int:
        return self._fd

    def isatty(self) -> bool:
        return os.isatty(self._fd)

    def writable(self) -> bool:
        return True

    def write(self, data: bytes | bytearray | memoryview, /) -> int:  # type: ignore[override]
        lines, newline, self._own.begun = (getattr(self._own, "begun", b"") + bytes(data)).rpartition(b"\n")
        if newline:
            self._writer.put(self._fd, lines + newline)
        return len(data)

    def flush(self) -> None:
        if begun := getattr(self._own, "begun", b""):
            self._own.begun = b""
            self._writer.put(self._fd, begun)


_writer: _Writer | None = None


def redirect(note: Note) -> None:
    """Replace `sys.stdout` and `sys.stderr` for the rest of the process by streams that never block.

    At the exit of the process, the queued lines are written, unless the output is not read.
    """
    global _writer
    for name in ("stderr", "stdout"):
        stream: TextIO | None = getattr(sys, name)
        if stream is None or isinstance(getattr(stream, "buffer", None), _Lines):
            continue
        try:
            fd = stream.fileno()
        except (OSError, ValueError):
            continue  # it is not a file
        stream.flush()
        if _writer is None:  # one for both, which may be the same file: it keeps the order
            _writer = _Writer(note)
            atexit.register(end)
        lines = _Lines(fd, _writer)
        setattr(sys, name, io.TextIOWrapper(lines, stream.encoding, stream.errors, write_through=True))


def end(seconds: float = 1.0) -> None:
    """Wait until the queued lines are written, before the process exits.

    Args:
        seconds: time without progress after which the remaining lines are given up.
    """
    for stream in (sys.stderr, sys.stdout):
        if isinstance(getattr(stream, "buffer", None), _Lines):
            stream.flush()
    if _writer is not None:
        _writer.end(seconds)


def dropped() -> int:
    """Return the number of lines that were dropped so far."""
    return 0 if _writer is None else _writer.dropped
