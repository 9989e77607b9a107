"""Keep shells started ahead of time, for callers that create many sessions.

A waiting shell has read its startup files and is at its prompt, so that a session which gets it is ready at once. It
was started in the environment and the directory of this process, which are compared before it is handed out. Everything
else (limits, umask, startup files and all that they looked at, $SECONDS) is as it was when the shell was started.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import select
import threading
from collections import deque
from concurrent.futures import Future
from typing import NamedTuple

from swerex_c import _core
from swerex_c.engine.completions import end_shell
from swerex_c.engine.outcomes import failure
from swerex_c.engine.startup_files import environment, startup_script
from swerex_c.engine.syntax import find_bash
from swerex_c.exceptions import ResourceError, SwerexException
from swerex_c.models import CreateBashSessionRequest
from swerex_c.utils.threads import start_thread

__all__ = ["PrestartedShells"]

_PLAIN = CreateBashSessionRequest()
"""The request that the shells are started for."""

_STARTUP_SECONDS = 60.0
"""Seconds to wait for startup files that are read ahead of time."""


class _Surroundings(NamedTuple):
    """State of this process that a shell inherits and that is compared."""

    environment: list[bytes]
    directory: str
    device: int
    """The directory's device, as `inode`, because another directory may have got its name."""
    inode: int

    @classmethod
    def now(cls) -> _Surroundings:
        here = os.stat(".")
        return cls(environment(_PLAIN), os.getcwd(), here.st_dev, here.st_ino)


class PrestartedShell(NamedTuple):
    """A shell that waits at its prompt, or still reads its startup files."""

    core: _core.Session
    operation: _core.Operation
    """The reading of the startup files."""
    surroundings: _Surroundings

    def is_usable(self) -> bool:
        """Check whether the shell still waits at its prompt, and has printed nothing since."""
        facts = self.core.facts()
        if self.operation.end != "done" or facts["dead"] or not facts["idle"] or facts["late"]:
            return False
        try:  # the shell may have been killed or stopped a moment ago
            return os.waitid(os.P_PID, facts["pid"], os.WEXITED | os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is None
        except ChildProcessError:
            return False


class PrestartedShells:
    """Up to `size` shells that wait to become sessions. May be used from any thread.

    A thread starts the shells one after the other, and ends when all are there. A forked process starts its own shells.
    """

    def __init__(self, size: int, output_limit: int, logger: logging.Logger):
        self._size = size
        self._output_limit = output_limit
        self._logger = logger
        self._complaint = ""
        self._closed = False
        self._begin()

    def _begin(self) -> None:
        """Set up the state of this process, and begin to start its shells."""
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._shells: deque[PrestartedShell] = deque()
        self._filling: Future[None] | None = None
        """Done when the thread has ended; None if there is none."""
        self._refill()

    def _own(self) -> None:
        if self._process != os.getpid():  # the shells and the thread are the parent's
            self._begin()

    def take(self, request: CreateBashSessionRequest) -> PrestartedShell | None:
        """Return a shell for this request, which the caller has to close, or None if there is none."""
        plain = not (request.env or request.startup_source) and request.cwd is None
        if not plain or (request.rows, request.columns) != (_PLAIN.rows, _PLAIN.columns):
            return None
        try:
            surroundings = _Surroundings.now()
        except OSError:  # the directory was removed
            return None
        self._own()
        found = None
        with self._lock:
            while found is None and self._shells and self._shells[0].operation.done and not self._closed:
                shell = self._shells.popleft()  # one that is of no use ends when it is dropped
                if shell.surroundings == surroundings and shell.is_usable():
                    found = shell
        self._refill()
        return found

    async def full(self) -> bool:
        """Wait until all shells are started. Returns False if not all can be started now, or they were closed."""
        self._own()
        self._refill()
        await self._filled()
        return self.waiting >= self._size

    @property
    def waiting(self) -> int:
        """Number of shells that wait, or still read their startup files."""
        return len(self._shells)

    async def close(self) -> None:
        """End all waiting shells, and wait until they are gone."""
        if self._process != os.getpid():
            return
        self._closed = True  # the thread looks at it after it has added a shell
        for shell in list(self._shells):
            shell.core.close(None, None)
        await self._filled()
        with self._lock:
            shells, self._shells = self._shells, deque()
        await asyncio.gather(*(end_shell(shell.core) for shell in shells))

    async def _filled(self) -> None:
        """Wait for the end of the thread."""
        if (filling := self._filling) is not None:
            await asyncio.shield(asyncio.wrap_future(filling))

    def _refill(self) -> None:
        with self._lock:
            if self._filling is not None or self._closed or len(self._shells) >= self._size:
                return
            self._filling = Future()
            try:
                start_thread(self._fill, "swerex-prestart")
            except ResourceError as error:
                self._end_filling(error)

    def _end_filling(self, error: Exception | None = None) -> None:
        """Wake the callers that wait for the thread, and log an error once. Call with the lock held."""
        if error is not None and str(error) != self._complaint:
            self._complaint = str(error)
            self._logger.warning("Cannot keep a session ready: %s", error)
        if self._filling is not None:
            self._filling.set_result(None)
        self._filling = None

    # -- in the thread

    def _fill(self) -> None:
        try:
            ends = _core.Completions()
            while True:
                with self._lock:
                    if self._closed or len(self._shells) >= self._size:
                        self._end_filling()
                        return
                self._add(ends)
        except (SwerexException, OSError, MemoryError, RuntimeError) as error:  # at exit the core starts no shell
            with self._lock:
                self._end_filling(error)

    def _add(self, ends: _core.Completions) -> None:
        """Start a shell, and wait until it has read its startup files."""
        surroundings = _Surroundings.now()
        bash, limit = os.fsencode(find_bash()), self._output_limit
        core = _core.Session(bash, surroundings.environment, None, _PLAIN.rows, _PLAIN.columns, limit)
        if _Surroundings.now() != surroundings:
            return  # they have changed meanwhile, and the shell may have the new ones
        operation = core.start(startup_script(_PLAIN, "", in_sandbox=False), _STARTUP_SECONDS, ends, None)
        shell = PrestartedShell(core, operation, surroundings)
        self._shells.append(shell)
        if self._closed:
            return  # `close` may not have seen it
        readable = select.poll()
        readable.register(ends, select.POLLIN)
        while not operation.done:
            readable.poll()
            ends.take()
        if operation.end not in ("done", "closed"):
            with self._lock, contextlib.suppress(ValueError):  # if `take` has dropped it already
                self._shells.remove(shell)
            raise failure(operation, "<startup files>", _STARTUP_SECONDS)
