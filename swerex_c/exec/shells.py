"""The clients of one place: some that wait for a script, and all that are not reaped yet.

To start a client takes about 100 ms with most engines, to use one that waits a few. So one is always kept ready, and
each that is used up has its successor started in the background; up to four are kept, new ones and ones that came back.
An idle client costs memory (docker's 25 MB), so after some minutes only one is left.
"""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import threading
import time
from collections.abc import Callable

from swerex_c.exceptions import (
    NotSupportedError,
    PlaceLostError,
    ResourceError,
    RuntimeClosedError,
    SwerexException,
)
from swerex_c.exec.backend import Backend
from swerex_c.exec.client import Client, Overdue
from swerex_c.exec.scripts import MARK

__all__ = ["Shells", "check_version", "lost"]

KEPT = 1
"""Clients that are kept when nothing happens."""

MOST_KEPT = 4
"""Clients that are kept ready while commands come several at a time."""

IDLE_SECONDS = 180.0
"""After so many seconds in which no client was taken, those above `KEPT` are ended."""

STARTS_AT_ONCE = 8
"""More clients are not started at the same time; they would only take the processors from each other."""

LATER_SECONDS = 0.5
"""So long after `start_later` the first client is started, if none was needed before: what a caller does at once has
the processors to itself."""

START_SECONDS = 60.0
"""How long the start of a client may take."""

_ASK_SECONDS = 10.0
_END_SECONDS = 5.0
_LINGER_SECONDS = 1.0
_OLDEST_BASH = (4, 4)


class Shells:
    """The clients of a place. Knows nothing of the `Place`, so that one that is dropped can be cleaned up.

    May be used from any thread.
    """

    def __init__(self, backend: Backend, mark: str, logger: logging.Logger | None) -> None:
        """`mark` is what the clients' shells have in their environment; their scripts have parts of it."""
        self._backend = backend
        self._mark = mark
        self._logger = logger
        self._forget()

    def _forget(self) -> None:
        """As when nothing was ever started: also for a process that was forked, whose parent goes on with the rest."""
        self._changed = threading.Condition()
        self._pid = os.getpid()
        self._ready: list[Client] = []
        self._all: set[Client] = set()
        self._lent: set[Client] = set()
        self._starting = 0
        self._waiting = 0
        self._wanted = KEPT
        self._failures: list[tuple[float, Exception]] = []  # when it was begun, and why it failed
        self._closed = False
        self._last = time.monotonic()
        self._timer: threading.Timer | None = None
        self._later: threading.Timer | None = None

    # ---- taking one -----------------------------------------------------------------------------------------------

    def take(self, timeout: float = START_SECONDS, *, lend: bool = False) -> Client:
        """A client that waits for its script; its successor is started meanwhile. Give it back with `retire`.

        lend: for a script after which it can take another one, so that it needs no successor: it comes by `put_back`.

        Raises:
            PlaceLostError, NotSupportedError, ResourceError: if no client can be started.
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
                    self._failures.clear()  # of attempts that nobody waits for any more
                self._fill()

    def start_later(self) -> None:
        """Have a client started soon, though nobody waits for it. Returns at once."""
        with self._changed:
            if self._later is None and not self._closed:
                self._later = threading.Timer(LATER_SECONDS, self._start_now)
                self._later.daemon = True
                self._later.start()

    def _start_now(self) -> None:
        with self._changed:
            self._fill()

    def _take(self, deadline: float) -> Client:
        begin = time.monotonic()
        while True:
            if self._closed:
                msg = "The runtime was closed"
                raise RuntimeClosedError(msg)
            if self._ready:
                client = self._ready.pop(0)
                self._changed.release()  # others need not wait for it
                try:
                    usable = client.usable()
                    if not usable:
                        self._end(client)
                finally:
                    self._changed.acquire()
                if usable and not self._closed:
                    return client
                continue
            # What was begun before may have failed for what is mended by now.
            self._failures = [known for known in self._failures if known[0] >= begin or self._waiting > 1]
            for known in self._failures:
                if known[0] >= begin:
                    self._failures.remove(known)
                    raise known[1]
            left = deadline - time.monotonic()
            if left <= 0:
                msg = f"No shell could be started in {self._backend.name} in the time that there was for it"
                raise TimeoutError(msg)
            self._fill()
            self._changed.wait(left)

    def put_back(self, client: Client) -> None:
        """A client that can take a script, or will be able to soon."""
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
        """Start as many clients as are lacking. The lock is held."""
        if self._closed:
            return
        lacking = max(self._waiting, self._wanted - len(self._lent)) - len(self._ready) - self._starting
        if self._waiting > len(self._ready) + self._starting:
            lacking = max(lacking, self._waiting - len(self._ready) - self._starting)
        for _ in range(min(lacking, STARTS_AT_ONCE - self._starting)):
            self._starting += 1
            try:
                self._spawn(self._start)
            except RuntimeError as e:  # no thread can be started, or the interpreter ends
                self._starting -= 1
                self._failures.append((time.monotonic(), ResourceError(f"No thread can be started: {e}")))
                return

    def _spawn(self, function: Callable[..., None], *arguments: object) -> None:
        threading.Thread(target=function, args=arguments, name="swerex-c-shells", daemon=True).start()

    def _start(self) -> None:
        """In a thread of its own: one more client, or the reason why there is none."""
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

    def _started(self) -> Client:
        backend = self._backend
        environment = backend.environment() | {MARK: self._mark}
        try:
            client = Client(lambda program: backend.pipes(program, [MARK]), environment)
        except OSError as e:
            msg = f"The program that reaches {backend.name} cannot be started: {e}"
            raise ResourceError(msg, errno=e.errno) from None
        with self._changed:
            self._all.add(client)
        try:
            try:
                version = client.greet(time.monotonic() + START_SECONDS)
            except Overdue:
                msg = f"A shell in {backend.name} does not start within {START_SECONDS:g} seconds"
                raise lost(backend) or ResourceError(msg) from None
            if version is None:
                raise _no_shell(backend, client)
            check_version(version, backend.name)
        except BaseException:
            self._end(client)
            raise
        return client

    # ---- ending them ----------------------------------------------------------------------------------------------

    def retire(self, client: Client) -> None:
        """Done with a client that was taken. It is ended in the background.

        What its script left in the place goes on. Where that cannot outlive the client, the client is left until it
        ends by itself, or until `close`.
        """
        with self._changed:
            if client in self._lent:
                self._lent.discard(client)
                self._fill()
        client.close_input()
        closed = self._closed
        if closed or client.process.poll() is not None:
            self._end(client)
            return
        try:
            self._spawn(self._linger, client)
        except RuntimeError:
            self._end(client)

    def _linger(self, client: Client) -> None:
        client.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            client.process.wait(_LINGER_SECONDS if self._backend.outlives else None)
        self._end(client)

    def _end(self, client: Client) -> None:
        client.process.kill()
        client.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            client.process.wait(_END_SECONDS)
        with self._changed:
            self._all.discard(client)
            self._changed.notify_all()

    def _trim_later(self) -> None:
        """End what is not needed when nothing happens for a while. The lock is held."""
        if self._timer is None and len(self._ready) > KEPT:
            self._timer = threading.Timer(IDLE_SECONDS, self._trim)
            self._timer.daemon = True
            self._timer.start()

    def _trim(self) -> None:
        with self._changed:
            self._timer = None
            if self._closed:
                return
            surplus: list[Client] = []
            if time.monotonic() - self._last >= IDLE_SECONDS:
                self._wanted = KEPT
                surplus, self._ready = self._ready[KEPT:], self._ready[:KEPT]
            self._trim_later()
        for client in surplus:
            self._end(client)

    def close(self) -> None:
        """End all clients and wait for them, some seconds at most. May be called again."""
        if self._pid != os.getpid():  # they are those of the process that this one was forked from
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


def check_version(version: tuple[int, int], place: str) -> None:
    """Raise NotSupportedError if a place's bash, of which this is the version, is too old."""
    if version < _OLDEST_BASH:
        msg = "The bash in {} is {}.{}; 4.4 or later is needed".format(place, *version)
        raise NotSupportedError(msg)


def lost(backend: Backend) -> SwerexException | None:
    """The error for a place that can run nothing any more, or of which that cannot be learned; None if it can. Blocks
    for some seconds at most."""
    try:
        reason = backend.why_lost(_ASK_SECONDS)
    except SwerexException as e:  # one that is a TimeoutError too is told as it is
        return e
    except TimeoutError as e:
        return PlaceLostError(f"It cannot be learned in time whether {backend.name} is still there: {e}")
    return None if reason is None else PlaceLostError(reason)


def _no_shell(backend: Backend, client: Client) -> SwerexException:
    """Why a client has ended before the shell behind it said hello."""
    with contextlib.suppress(Overdue):
        client.pump(lambda: client.stdout.closed and client.stderr.closed, time.monotonic() + 1)
    with contextlib.suppress(subprocess.TimeoutExpired):
        client.process.wait(1)
    gone = lost(backend)
    if gone is not None:
        return gone
    code, words = client.process.returncode, client.words()
    said = f" ({words})" if words else ""
    if code in (126, 127):
        return NotSupportedError(f"There is no bash in {backend.name}, and nothing can be run there without{said}")
    return ResourceError(f"No shell could be started in {backend.name}; its client ended with status {code}{said}")
