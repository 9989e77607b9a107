"""Log of a server on standard error, as text or as one JSON object per line.

Successful requests are logged at level debug, failed requests and new connections at info. The log never contains
keys, and at info and above it does not contain the data that clients send and receive.
"""

from __future__ import annotations

import logging
import os
import select
import sys
import threading
from collections import deque
from typing import Any

from swerex_c.utils.load import load_library
from swerex_c.utils.threads import start_thread
from swerex_c.utils.visible import visible

__all__ = ["LOGGER", "answered", "client_name", "handler", "listening", "request_done", "set_up"]

LOGGER = logging.getLogger("rex-server")

QUEUE_BYTES = 4 << 20
"""Maximum bytes of the lines that wait for the log's reader, not counting the last one; further lines are dropped.

The limit is in bytes, because one line may be a traceback of a megabyte.
"""

_TEXT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"


def set_up(log_format: str = "text", level: str = "info") -> None:
    """Configure logging to standard error for the whole process, and let no line of it wait for its reader.

    Warnings and uncaught exceptions are logged. What is printed is not: it waits.

    Args:
        log_format: "text" or "json".
        level: name of the lowest level that is logged.

    Raises:
        NotAvailableError: if the format is "json" and python-json-logger is not installed.
    """
    root = logging.getLogger()
    root.handlers[:] = [LogHandler(_json_formatter() if log_format == "json" else _TextFormatter(_TEXT))]
    root.setLevel(level.upper())
    # Invalid requests from unknown clients on the port must not fill the log with warnings.
    logging.getLogger("uvicorn.error").setLevel(max(root.level, logging.ERROR) if root.level > logging.DEBUG else 0)
    logging.getLogger("asyncio").setLevel(max(root.level, logging.WARNING))
    logging.captureWarnings(True)
    sys.excepthook = lambda *error: LOGGER.critical("The server has failed", exc_info=error)
    threading.excepthook = _log_failure
    sys.unraisablehook = _log_failure


def _log_failure(failed: Any) -> None:
    if failed.exc_type is not SystemExit:
        error = failed.exc_value or failed.exc_type()
        LOGGER.error("An exception was not caught", exc_info=(failed.exc_type, error, failed.exc_traceback))


def handler() -> LogHandler | None:
    """Return the handler that `set_up` has made."""
    return next((each for each in logging.getLogger().handlers if isinstance(each, LogHandler)), None)


class _TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record))


def _json_formatter() -> logging.Formatter:
    library = load_library("pythonjsonlogger.json", "logs", "--log-format json")
    names = {"asctime": "time", "levelname": "level", "name": "logger"}
    formatter: logging.Formatter = library.JsonFormatter(
        "%(asctime)s %(levelname)s %(name)s %(message)s", rename_fields=names, datefmt="%Y-%m-%dT%H:%M:%S%z"
    )
    return formatter


def listening(addresses: str) -> None:
    """Log the addresses of the server at any log level, because the port may be known from here only."""
    record = LOGGER.makeRecord(LOGGER.name, logging.INFO, __file__, 0, "Listening on %s", (addresses,), None)
    LOGGER.handle(record)


def answered(scope: Any, status: int, seconds: float) -> None:
    """Log an HTTP request with the status of its response, which is 0 if there was none."""
    what = f"{scope['method']} {scope['path'][:200]}"
    outcome, failed = str(status or "no answer"), not 200 <= status < 400
    request_id = dict(scope["headers"]).get(b"x-request-id", b"").decode("latin-1")
    request_done(what, seconds, outcome, client_name(scope.get("client")), request_id, failed)


def client_name(peer: Any) -> str:
    """Return the name of a client from its address: host and port, or "unix" if it has none."""
    return f"{peer[0]}:{peer[1]}" if peer else "unix"


def request_done(method: str, seconds: float, outcome: str, client: str, request_id: str, failed: bool) -> None:
    """Log that a request has ended. `outcome`: a status, or the name of an exception."""
    level = logging.INFO if failed else logging.DEBUG
    if not LOGGER.isEnabledFor(level):
        return
    method, request_id = visible(method, one_line=True), visible(request_id[:100], one_line=True)
    facts = {"method": method, "seconds": round(seconds, 6), "outcome": outcome, "client": client}
    if request_id:
        facts["request_id"] = request_id
    LOGGER.log(level, "%s from %s: %s in %.6f s", method, client, outcome, seconds, extra=facts)


class LogHandler(logging.Handler):
    """Handler that writes to standard error in a thread, so that no caller waits for the log's reader.

    Lines that do not fit into the queue are dropped and counted, and a line tells it. The thread is a daemon and uses
    no buffer of Python's, so that the process can exit while it is stuck in a write.
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
                    untold, reason, self._missing = untold + self._missing, "the output was not read", 0
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
