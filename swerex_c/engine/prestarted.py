"""Keep shells started ahead of time, for callers that create many sessions.

A waiting shell has not read its startup files: it is in the state of `bash --norc` at its first prompt. The rest of a
session (startup files, `startup_source`, their output) happens when the session is requested, as in a new shell. A
shell is handed out only if a new one would be identical: the environment, inherited process attributes and the few
things that bash looks up by itself are compared. Only the age of the process (`ps -o etime`) and of its terminal
differ.

With a startup script, the shells have read their startup files too, and are handed out as long as those files are
unchanged. Such a session was started earlier: its $SECONDS dates from then, as does everything that its
startup files looked at. `startup_source` is read when the session is requested in any case.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
import weakref
from collections import deque
from concurrent.futures import Future
from typing import TYPE_CHECKING

from swerex_c import _core
from swerex_c.engine.start_conditions import StartConditions, is_settled, start_conditions
from swerex_c.engine.startup_files import SET_BY_CORE
from swerex_c.models import startup_seconds
from swerex_c.utils.finalizers import call_from_finalizer

if TYPE_CHECKING:
    import logging

    from swerex_c.models import CreateBashSessionRequest

__all__ = ["COLUMNS", "ROWS", "PrestartedShell", "PrestartedShells"]

ROWS, COLUMNS = 24, 80
"""Terminal size of the waiting shells: the default of a request."""

_SHARE = 3
"""Rest after each start, as a multiple of the start's duration: the pool then uses a quarter of one processor."""

_LONGEST_REST = 0.1
"""Maximum number of seconds of such a rest."""

_QUIET = 0.005
"""Seconds without a new session before a shell is replaced, because more sessions may be requested at once."""

_ROUNDS = 5
"""Maximum number of waits for such a quiet period."""

_LOOK_SECONDS = 0.1
"""Seconds between checks whether the pool was closed, while a shell starts."""

_PROMPT_SECONDS = 30.0
"""Seconds to wait for a shell's first prompt."""

_STARTUP_SECONDS = 60.0
"""Seconds to wait for startup files that are read ahead of time. If a request's limit is below the time that they took,
they are read again, so that the request gets its error."""

_EXIT_SECONDS = 5.0
"""Seconds to wait at process exit for the shells to end."""


class PrestartedShell:
    """A shell that waits at its first prompt."""

    __slots__ = ("core", "inherited", "output", "pid", "seconds", "start")

    def __init__(self, core: _core.Session, start: StartConditions):
        self.core = core
        self.start = start
        self.pid: int = core.facts()["pid"]
        self.inherited = _core.inherited(self.pid)
        self.output: str | None = None
        """Output of the startup files, or None if they were not read."""
        self.seconds = 0.0
        """Seconds that the startup files took."""

    def lives(self) -> bool:
        """Check whether the shell still waits at its prompt.

        Returns False also if something was written to its terminal since.
        """
        facts = self.core.facts()
        if facts["dead"] or not facts["idle"] or facts["late"]:
            return False
        try:  # the shell may have been killed or stopped a moment ago
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is None
        except ChildProcessError:
            return False


class ShellPool:
    """The waiting shells and the thread that starts them.

    The thread and this object keep each other alive; `PrestartedShells` ends both.
    """

    def __init__(self, size: int, output_limit: int, script: bytes | None, logger: logging.Logger):
        self.size = size
        self.output_limit = output_limit
        self.script = script
        self.logger = logger
        self.process = os.getpid()
        self.changed = threading.Condition()
        self.shells: deque[PrestartedShell] = deque()
        self.closed = False
        self.runs = False
        self.review = False
        self.failed = False
        self.waiters: list[Future[None]] = []
        self.ended: Future[None] = Future()
        self.taken_at = self.rest_until = 0.0
        self.complaint = ""
        self.old: list[_core.Session] = []
        self.taken = self.missed = 0

    def begin(self) -> None:
        """Start the thread unless it runs. Call with `changed` held."""
        if self.closed or self.runs:
            return
        try:
            threading.Thread(target=self._run, name="swerex-warm", daemon=True).start()
        except RuntimeError:  # no more threads can be started now
            self._give_up()
            return
        self.runs = True
        _pools.add(self)

    def close(self) -> Future[None]:
        if self.process != os.getpid():  # the pool is the parent's; a thread missing here may hold its lock
            return Future()
        with self.changed:
            self.closed = True
            self.changed.notify_all()
            if not self.runs and not self.ended.done():
                self.ended.set_result(None)
        return self.ended

    # -- in the thread

    def _run(self) -> None:
        try:
            while self._wait():
                self._renew()
            with self.changed:
                old = [*self.old, *(shell.core for shell in self.shells)]
                self.shells.clear()
            self._end(old)
        except RuntimeError:  # the interpreter is exiting, and has ended the shells
            pass
        finally:
            with self.changed:
                self.shells.clear()
                self._give_up()
                self.ended.set_result(None)

    def _give_up(self) -> None:
        """Stop trying to fill the pool, and wake those that wait for it. Call with `changed` held."""
        self.failed = True
        self._wake_waiters()

    def _wake_waiters(self) -> None:
        for waiter in self.waiters:
            waiter.set_result(None)
        self.waiters.clear()

    def _wait(self) -> bool:
        """Wait for work, without a time limit. Returns False if the pool was closed."""
        with self.changed:
            while not self.closed:
                if self.review or self.old or (len(self.shells) < self.size and not self.failed):
                    return True
                if not self.failed:
                    self._wake_waiters()
                self.changed.wait()
            return False

    def _renew(self) -> None:
        """End shells that can no longer be used, or start one."""
        with self.changed:
            old, self.old = self.old, []
            review, self.review = self.review, False
        shell = None
        try:
            if review:
                old += self._useless()
            self._end(old)
            if len(self.shells) >= self.size or not self._pause():
                return
            begin = time.monotonic()
            shell = self._start()
            self.rest_until = time.monotonic() + min((time.monotonic() - begin) * _SHARE, _LONGEST_REST)
        except (OSError, MemoryError) as error:
            if str(error) != self.complaint:
                self.complaint = str(error)
                self.logger.warning("Cannot keep a session ready: %s", error)
        with self.changed:
            if shell is not None:
                self.shells.append(shell)
            else:
                self._give_up()

    def _pause(self) -> bool:
        """Rest so that commands and session requests get the processors; return False if the pool was closed. Does not
        rest while a caller waits for the full pool."""
        with self.changed:
            for _ in range(_ROUNDS):
                left = max(self.rest_until, self.taken_at + _QUIET) - time.monotonic()
                if left <= 0 or self.changed.wait_for(lambda: self.closed or self.waiters, left):
                    break
            return not self.closed

    def _ends(self, operation: _core.Operation) -> bool:
        """Wait until an operation has ended, and return whether it succeeded; False if the pool was closed first."""
        while not operation.wait(_LOOK_SECONDS):
            if self.closed:
                return False
        return operation.end == "done"

    def _start(self) -> PrestartedShell | None:
        """Start a shell up to its first prompt. Returns None if it could not be handed out."""
        ahead = self.script is not None
        start = start_conditions(ahead)
        if start is None or not all(map(is_settled, start.files)):
            return None
        variables = [name + b"=" + value for name, value in start.variables if os.fsdecode(name) not in SET_BY_CORE]
        core = _core.Session(start.bash, variables, None, ROWS, COLUMNS, self.output_limit)
        shell = None
        fits = False
        try:
            prompt = core.line(b"", _PROMPT_SECONDS, None, None, None, None, None)
            if self._ends(prompt):
                shell = PrestartedShell(core, start)
                fits = self._read_startup(shell) and start == start_conditions(ahead)
                fits = fits and shell.inherited == _core.inherited(0)
        finally:
            if not fits:
                self._end([core])
        return shell if fits else None

    def _read_startup(self, shell: PrestartedShell) -> bool:
        if self.script is None:
            return True
        begin = time.monotonic()
        operation = shell.core.start(self.script, _STARTUP_SECONDS, None, None)
        if not self._ends(operation):
            return False
        shell.seconds = time.monotonic() - begin
        shell.output = operation.output
        return True

    def _useless(self) -> list[_core.Session]:
        """Remove the shells that would no longer be started in this way, and return their cores."""
        start, inherited = start_conditions(self.script is not None), _core.inherited(0)
        with self.changed:
            keep = [shell for shell in self.shells if shell.start == start and shell.inherited == inherited]
            old = [shell.core for shell in self.shells if shell not in keep]
            self.shells = deque(keep)
        return old

    @staticmethod
    def _end(cores: list[_core.Session]) -> None:
        for operation in [core.close(None, None) for core in cores]:
            operation.wait(None)


_pools: weakref.WeakSet[ShellPool] = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    """End all pools before the core shuts down, so that no thread starts a shell meanwhile."""
    ends = [pool.close() for pool in list(_pools) if pool.process == os.getpid()]
    deadline = time.monotonic() + _EXIT_SECONDS
    for end in ends:
        with contextlib.suppress(TimeoutError):
            end.result(max(0.0, deadline - time.monotonic()))


class PrestartedShells:
    """Up to `size` shells that wait to become sessions. May be used from any thread.

    A thread starts the shells one after the other, and sleeps while the pool is full. A forked process starts its own
    pool. The shells fit threads like the one that created this object: a thread with another priority, other
    processors or other rights gets none.
    """

    def __init__(self, size: int, output_limit: int, script: bytes | None, logger: logging.Logger):
        """`script` reads the startup files; None: they are not read ahead of time."""
        self._made = (size, output_limit, script, logger)
        self._pool = self._new_pool()

    def _new_pool(self) -> ShellPool:
        pool = ShellPool(*self._made)
        self._finalizer = weakref.finalize(self, call_from_finalizer, pool.close)
        self._finalizer.atexit = False
        with pool.changed:
            pool.begin()
        return pool

    def _own(self) -> ShellPool:
        if self._pool.process != os.getpid():  # the thread and the shells belong to the parent
            self._finalizer.detach()
            self._pool = self._new_pool()
        return self._pool

    @property
    def waiting(self) -> int:
        """Return the number of waiting shells."""
        return len(self._pool.shells)

    @property
    def taken(self) -> int:
        """Return the number of shells that became sessions."""
        return self._pool.taken

    @property
    def missed(self) -> int:
        """Return the number of sessions that had to start a shell.

        No waiting shell existed or fitted.
        """
        return self._pool.missed

    def take(self, request: CreateBashSessionRequest) -> PrestartedShell | None:
        """Return a shell identical to a new one for this request, or None.

        The caller has to close it.
        """
        pool = self._own()
        plain = request.cwd is None and not request.env and request.rows == ROWS and request.columns == COLUMNS
        found = self._find(pool, startup_seconds(request)) if plain else None
        with pool.changed:
            pool.taken_at = time.monotonic()
            pool.taken += found is not None
            pool.missed += found is None
        if plain and found is None:
            self.refill()
        return found

    @staticmethod
    def _find(pool: ShellPool, seconds: float) -> PrestartedShell | None:
        if not pool.shells:
            return None
        start = start_conditions(pool.script is not None)
        try:
            inherited = _core.inherited(0)
        except OSError:
            return None
        with pool.changed:
            for _ in range(0 if pool.closed else len(pool.shells)):
                shell = pool.shells.popleft()
                if shell.start != start or shell.inherited != inherited:
                    pool.shells.append(shell)  # another thread may be able to use it
                    pool.review = True
                elif not shell.lives():
                    pool.old.append(shell.core)
                elif shell.seconds >= seconds:
                    pool.shells.append(shell)
                else:
                    return shell
        return None

    def refill(self) -> None:
        """Replace the shells that were taken. Call it once the caller has its response."""
        pool = self._own()
        with pool.changed:
            pool.failed = False
            pool.begin()
            pool.changed.notify()

    async def full(self) -> bool:
        """Wait until the pool is full.

        Returns False if no more shells can be started now, or the pool was closed.
        """
        import asyncio

        pool = self._own()
        waiter: Future[None] = Future()
        with pool.changed:
            if not pool.closed:
                pool.failed = False
                pool.begin()
                pool.waiters.append(waiter)
                pool.changed.notify()
            else:
                waiter.set_result(None)
        await asyncio.shield(asyncio.wrap_future(waiter))
        return len(pool.shells) >= pool.size

    async def close(self) -> None:
        """End all waiting shells, and wait until they are gone."""
        import asyncio

        if self._pool.process == os.getpid():
            await asyncio.shield(asyncio.wrap_future(self._pool.close()))
