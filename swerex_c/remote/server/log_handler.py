"""Handler of a server's log that does not wait for the log's reader."""

from __future__ import annotations

import logging
import os
import select
import sys
import threading
from collections import deque

from swerex_c.utils.threads import start_thread

__all__ = ["LogHandler"]

QUEUE_BYTES = 4 << 20
"""Maximum bytes of the lines in the queue, not counting the last one; further lines are dropped.

The limit is in bytes, because one line may be a traceback of a megabyte.
"""

_UNREAD = "the output was not read"


class LogHandler(logging.Handler):
    """Handler that writes to standard error in a thread.

    An unread pipe holds 64 KiB; a write beyond that never returns, and would block the event loop forever. Lines that
    do not fit into the queue are dropped and counted, and a line tells it. The thread is a daemon and uses no buffer of
    Python's, so that the process can exit while it is stuck in a write.
    """

    def __init__(self, formatter: logging.Formatter):
        super().__init__()
        self.setFormatter(formatter)
        self.dropped = 0
        """Number of lines that were dropped so far."""
        self._fd = sys.stderr.fileno()
        self._changed = threading.Condition(self.lock)  # `handle` holds it during `emit`
        self._queue: deque[bytes] = deque()  # with the line that is being written; an empty one is where lines miss
        self._size = 0
        self._missing = 0  # lines that are dropped at the end of the queue
        self._progress = 0
        start_thread(self._run, "server-log")

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a record, or drop it; return at once."""
        try:
            line = (self.format(record) + "\n").encode("utf-8", "backslashreplace")
        except Exception as error:  # `handleError` would print it, and could wait
            line = f"The log line {record.msg!r:.200} has wrong arguments: {error}\n".encode(errors="backslashreplace")
        if self._missing or self._size >= QUEUE_BYTES:  # until it is empty, so that a slow reader finds few gaps
            if not self._missing:
                self._queue.append(b"")
            self._missing += 1
            self.dropped += 1
        else:
            self._size += len(line)
            self._queue.append(line)
        self._changed.notify_all()

    def flush(self, seconds: float = 1.0) -> None:
        """Wait until all lines are written, or none was for that many seconds. The exit of Python calls this, too."""
        with self._changed:
            before = -1
            while self._queue and self._progress != before:
                before = self._progress
                self._changed.wait_for(lambda: not self._queue, seconds)  # other threads may go on logging

    def _run(self) -> None:
        untold, reason = 0, ""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue)
                line = self._queue[0]
                if not line:
                    untold, reason, self._missing = untold + self._missing, _UNREAD, 0
            if untold and self._write(self._note(untold, reason)) is None:
                untold = 0
            failure = self._write(line)
            with self._changed:
                if failure:
                    untold, reason = untold + 1, failure
                    self.dropped += 1
                self._queue.popleft()
                self._size -= len(line)
                self._progress += 1
                self._changed.notify_all()

    def _note(self, count: int, reason: str) -> bytes:
        message = "%d log lines were dropped because %s" if count > 1 else "%d log line was dropped because %s"
        record = logging.LogRecord("rex-server", logging.WARNING, __file__, 0, message, (count, reason), None)
        return (self.format(record) + "\n").encode()

    def _write(self, line: bytes) -> str | None:
        """Write a line, however long that takes; return the reason if it cannot be written."""
        rest = memoryview(line)
        while rest:
            try:
                rest = rest[os.write(self._fd, rest[: 1 << 16]) :]
                self._progress += 1
            except BlockingIOError:  # the descriptor may be shared, and is left as it is
                select.select([], [self._fd], [])
            except OSError as error:
                return os.strerror(error.errno or 0)
        return None
