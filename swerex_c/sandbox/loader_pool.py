"""Pool of the clients of one sandbox: ready ones, and all not reaped yet.

With most engines a client takes about 100 ms to start, and a ready one a few ms to use. The pool therefore keeps one
ready, and starts a successor in the background for each that is used up; it keeps up to four, new or returned ones.
An idle client costs memory (docker's 25 MB), so after some minutes only one is left.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import subprocess
import threading
import time
import weakref

from swerex_c.exceptions import (
    NotSupportedError,
    ResourceError,
    RuntimeClosedError,
    SandboxLostError,
    SwerexException,
)
from swerex_c.sandbox.backend import Backend
from swerex_c.sandbox.loader import DeadlineExceeded, LoaderClient
from swerex_c.sandbox.processes import MARK
from swerex_c.utils.threads import start_thread

__all__ = ["LoaderPool", "check_version", "lost", "no_shell"]

KEPT_READY = 1
"""Number of clients to keep ready when the pool is idle."""

MOST_KEPT = 4
"""Maximum number of clients to keep ready while several commands come at a time."""

IDLE_SECONDS = 180.0
"""Seconds without a call of `take` after which ready clients above `KEPT_READY` are ended."""

STARTS_AT_ONCE = 8
"""Maximum number of clients to start at the same time; more would only compete for the processors."""

LATER_SECONDS = 0.5
"""Seconds from `start_later` to the start of the first client, unless one is needed earlier: the caller's first work
gets the processors to itself."""

START_SECONDS = 60.0
"""Maximum seconds for the start of a client."""

_ASK_SECONDS = 10.0
_END_SECONDS = 5.0
_LINGER_SECONDS = 1.0
_OLDEST_BASH = (4, 4)

_open: weakref.WeakSet[LoaderPool] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for each in list(_open):
        each.close()


class LoaderPool:
    """Pool of the clients of a sandbox. May be used from any thread.

    It has no reference to the `Sandbox`, so that an unused sandbox can be cleaned up.
    """

    def __init__(self, backend: Backend, mark: str, logger: logging.Logger | None) -> None:
        """Create an empty pool.

        Args:
            mark: mark in the environment of the clients' shells; the marks of their scripts begin with it.
        """
        self._backend = backend
        self._mark = mark
        self._logger = logger
        self._forget()
        _open.add(self)

    def _forget(self) -> None:
        """Reset the pool to its initial state, also in a forked child, whose parent keeps the clients."""
        self._changed = threading.Condition()
        self._pid = os.getpid()
        self._ready: list[LoaderClient] = []
        self._all: set[LoaderClient] = set()
        self._lent: set[LoaderClient] = set()
        self._starting = 0
        self._waiting = 0
        self._wanted = KEPT_READY
        self._failures: list[tuple[float, Exception]] = []  # when the attempt began, and why it failed
        self._closed = False
        self._last = time.monotonic()
        self._timer: threading.Timer | None = None
        self._later: threading.Timer | None = None

    # ---- taking clients -------------------------------------------------------------------------------------------

    def take(self, timeout: float = START_SECONDS, *, lend: bool = False) -> LoaderClient:
        """Return a client that waits for its script, and start its successor.

        Give the client back with `retire`.

        Args:
            timeout: maximum seconds to wait for a client.
            lend: for a reusable client, which comes back by `put_back` after its script and so needs no successor.

        Raises:
            SandboxLostError, NotSupportedError, ResourceError: if no client can be started.
            TimeoutError: if none has started within `timeout` seconds.
            RuntimeClosedError: if `close` was called.
        """
        if self._pid != os.getpid():
            self._forget()
        deadline = time.monotonic() + timeout
        with self._changed:
            self._last = time.monotonic()
            self._waiting += 1
            try:
                self._wanted = max(self._wanted, min(MOST_KEPT, self._waiting))
                client = self._take(deadline)
                if lend and client.keeps:
                    self._lent.add(client)
                return client
            finally:
                self._waiting -= 1
                if not self._waiting:
                    self._failures.clear()  # no caller waits for these attempts
                self._fill()

    def start_later(self) -> None:
        """Start a client soon, although no caller waits for it. Returns at once."""
        with self._changed:
            if self._later is None and not self._closed:
                self._later = threading.Timer(LATER_SECONDS, self._start_now)
                self._later.daemon = True
                self._later.start()

    def _start_now(self) -> None:
        with self._changed:
            self._fill()

    def _take(self, deadline: float) -> LoaderClient:
        begin = time.monotonic()
        while True:
            if self._closed:
                msg = "The runtime was closed: make another one"
                raise RuntimeClosedError(msg)
            if self._ready:
                client = self._ready.pop(0)
                self._changed.release()  # other threads need not wait for this check
                try:
                    usable = client.usable()
                    if not usable:
                        self._end(client)
                finally:
                    self._changed.acquire()
                if usable and not self._closed:
                    return client
                continue
            # An attempt that began earlier may have failed for a reason that no longer exists.
            self._failures = [known for known in self._failures if known[0] >= begin or self._waiting > 1]
            for known in self._failures:
                if known[0] >= begin:
                    self._failures.remove(known)
                    raise known[1]
            left = deadline - time.monotonic()
            if left <= 0:
                msg = f"No shell has started in {self._backend.name} within {deadline - begin:.0f} seconds"
                raise TimeoutError(msg)
            self._fill()
            self._changed.wait(left)

    def put_back(self, client: LoaderClient) -> None:
        """Put back a client that can take a script now or soon."""
        with self._changed:
            self._lent.discard(client)
            kept = not self._closed and len(self._ready) < MOST_KEPT
            if kept:
                self._ready.append(client)
                self._trim_later()
                self._changed.notify_all()
        if not kept:
            self.retire(client)

    def _fill(self) -> None:
        """Start as many clients as are missing. The lock must be held."""
        if self._closed:
            return
        lacking = max(self._waiting, self._wanted - len(self._lent)) - len(self._ready) - self._starting
        for _ in range(min(lacking, STARTS_AT_ONCE - self._starting)):
            self._starting += 1
            try:
                start_thread(self._start, "swerex-c-shells")
            except ResourceError as e:  # or the interpreter is shutting down
                self._starting -= 1
                self._failures.append((time.monotonic(), e))
                return

    def _start(self) -> None:
        """Add one client, or record why it failed. Runs in a thread of its own."""
        client, begin = None, time.monotonic()
        try:
            client = self._started()
        except Exception as e:
            if self._logger is not None:
                self._logger.debug("No shell in %s: %s", self._backend.name, e)
            failure: Exception | None = e
        else:
            failure = None
        with self._changed:
            self._starting -= 1
            if client is not None and not self._closed and len(self._ready) < max(MOST_KEPT, self._waiting):
                self._ready.append(client)
                client = None
                self._trim_later()
            if failure is not None and self._waiting:
                self._failures.append((begin, failure))
            if failure is None:
                self._failures.clear()
                self._fill()
            self._changed.notify_all()
        if client is not None:
            self._end(client)

    def _started(self) -> LoaderClient:
        backend = self._backend
        environment = backend.environment() | {MARK: self._mark}
        try:
            client = LoaderClient(lambda program: backend.pipes(program, [MARK]), environment)
        except OSError as e:
            msg = f"The program that reaches {backend.name} cannot be started: {e}"
            raise ResourceError(msg, errno=e.errno) from None
        with self._changed:
            self._all.add(client)
        try:
            try:
                version = client.greet(time.monotonic() + START_SECONDS)
            except DeadlineExceeded:
                msg = f"No shell has started in {backend.name} within {START_SECONDS:g} seconds"
                raise lost(backend) or ResourceError(msg) from None
            if version is None:
                raise _why_ended(backend, client)
            check_version(version, backend.name)
        except BaseException:
            self._end(client)
            raise
        return client

    # ---- ending clients -------------------------------------------------------------------------------------------

    def retire(self, client: LoaderClient) -> None:
        """Release a client that was taken. It is ended in the background.

        Processes that its script left in the sandbox keep running.
        """
        with self._changed:
            if client in self._lent:
                self._lent.discard(client)
                self._fill()
        client.close_input()
        if self._closed or client.process.poll() is not None:
            self._end(client)
            return
        try:
            start_thread(lambda: self._linger(client), "swerex-c-shells")
        except ResourceError:
            self._end(client)

    def _linger(self, client: LoaderClient) -> None:
        client.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            client.process.wait(_LINGER_SECONDS)
        self._end(client)

    def _end(self, client: LoaderClient) -> None:
        client.process.kill()
        client.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            client.process.wait(_END_SECONDS)
        with self._changed:
            self._all.discard(client)
            self._changed.notify_all()

    def _trim_later(self) -> None:
        """Schedule the end of unneeded clients for when the pool is idle. The lock must be held."""
        if self._timer is None and len(self._ready) > KEPT_READY:
            self._timer = threading.Timer(IDLE_SECONDS, self._trim)
            self._timer.daemon = True
            self._timer.start()

    def _trim(self) -> None:
        with self._changed:
            self._timer = None
            if self._closed:
                return
            surplus: list[LoaderClient] = []
            if time.monotonic() - self._last >= IDLE_SECONDS:
                self._wanted = KEPT_READY
                surplus, self._ready = self._ready[KEPT_READY:], self._ready[:KEPT_READY]
            self._trim_later()
        for client in surplus:
            self._end(client)

    def close(self) -> None:
        """End all clients, and wait for them for at most a few seconds.

        May be called again.
        """
        if self._pid != os.getpid():  # the clients belong to the parent of this forked process
            return
        with self._changed:
            self._closed = True
            for timer in (self._timer, self._later):
                if timer is not None:
                    timer.cancel()
            self._ready.clear()
            clients = list(self._all)
            self._changed.notify_all()
        for client in clients:
            client.process.kill()
        for client in clients:
            self._end(client)
        with self._changed:
            self._changed.wait_for(lambda: not self._starting and not self._all, _END_SECONDS)
            clients = list(self._all)
        for client in clients:
            self._end(client)


def check_version(version: tuple[int, int], sandbox: str) -> None:
    """Raise NotSupportedError if a sandbox's bash of this version is too old."""
    if version < _OLDEST_BASH:
        msg = "The bash in {} is {}.{}; 4.4 or later is needed".format(sandbox, *version)
        raise NotSupportedError(msg)


def lost(backend: Backend) -> SwerexException | None:
    """Return the error for a lost sandbox; None if it can run programs.

    A sandbox whose state cannot be determined has an error, too. Blocks for at most a few seconds.
    """
    try:
        reason = backend.why_lost(_ASK_SECONDS)
    except SwerexException as e:  # also one that is a TimeoutError, which is returned unchanged
        return e
    except TimeoutError as e:
        return SandboxLostError(f"Cannot determine in time whether {backend.name} still exists: {e}")
    return None if reason is None else SandboxLostError(reason)


def _why_ended(backend: Backend, client: LoaderClient) -> SwerexException:
    """Return why a client has ended before its shell sent a greeting."""
    with contextlib.suppress(DeadlineExceeded):
        client.pump(lambda: client.stdout.closed and client.stderr.closed, time.monotonic() + 1)
    with contextlib.suppress(subprocess.TimeoutExpired):
        client.process.wait(1)
    return lost(backend) or no_shell(backend, client.process.returncode, client.words())


def no_shell(backend: Backend, status: int | None, printed: str) -> SwerexException:
    """Return the error for a client that ended before its shell was ready.

    Args:
        status: its exit code, or minus the number of the signal that ended it; None if it still runs, or
            nobody knows that code.
        printed: its output.
    """
    words = " ".join(printed.split())
    said = f" ({words})" if words else ""
    if status in (126, 127):
        return NotSupportedError(f"There is no bash in {backend.name}, which commands need: install bash there{said}")
    if status is None:
        how = "closed its output"
    else:
        how = f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"
    return ResourceError(f"No shell could be started in {backend.name}; its client {how}{said}")
