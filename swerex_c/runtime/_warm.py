"""Shells that are started before a session is asked for.

A shell that waits has not read its startup files yet: it is what `bash --norc` is at its first prompt. All that a
session is beyond that (startup files, `startup_source`, their output) happens when it is asked for, as in one that is
started then. What the start itself depends on is compared: the environment, what a process inherits, and the few things
that bash looks up by itself. Only a shell that would be the same if it were started now is handed out. What tells such
a session from another is the age of its process (`ps -o etime`), and that of its terminal.

With a script for it the shells have read their startup files too, and are handed out as they are while those files are
the same. Such a session is one that was started earlier: its $SECONDS and its history are of then, and so is all that
its startup files have looked at. `startup_source` is read when the session is asked for, in any case.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pwd
import threading
import time
import weakref
from collections import deque
from concurrent.futures import Future
from typing import TYPE_CHECKING, NamedTuple

from swerex_c import _core
from swerex_c.exceptions import SwerexException
from swerex_c.runtime._syntax import find_bash

if TYPE_CHECKING:
    import logging

    from swerex_c.runtime.abstract import CreateBashSessionRequest

__all__ = ["COLUMNS", "ROWS", "WarmShell", "WarmShells"]

ROWS, COLUMNS = 24, 80
"""The terminal's size of the shells that wait: what a request asks for unless it is told otherwise."""

_SHARE = 3
"""After each start the pool rests so many times as long as that took: it takes a quarter of one processor."""

_LONGEST_REST = 0.1
"""Seconds of such a rest at most."""

_QUIET = 0.005
"""Seconds that have to go by without a new session before one is replaced, because more may be asked for at once."""

_ROUNDS = 5
"""How often these are waited for."""

_LOOK_SECONDS = 0.1
"""How often the thread looks whether the end has come, while a shell starts."""

_PROMPT_SECONDS = 30.0
"""How long a shell may take to its first prompt."""

_STARTUP_SECONDS = 60.0
"""How long reading the startup files may take ahead of time. A request that allows less than they took has them read
again, so that it gets its error."""

_RACY = 0.1
"""Seconds in which a file may change again without a new time of change."""

_EXIT_SECONDS = 5.0
"""How long the end of the process waits for the end of the shells."""

_WITHOUT = frozenset(
    (b"BASHOPTS", b"BASH_FUNC_builtin%%", b"POSIXLY_CORRECT", b"PROMPT_COMMAND", b"SECONDS", b"SHELLOPTS", b"TMOUT")
)
"""Variables with which a shell that waits is not one that is started now: it would run something at its first prompt,
count seconds from elsewhere, end by itself, or not understand what it is told."""

_RESUME = b"SECONDS=0; "
"""In front of the startup script, in its first line so that all lines keep their numbers: the shell's time begins."""

_HISTORY = (
    b"builtin history -s : _; builtin history -c; [[ ! -f $HISTFILE ]] || builtin history -r; "
    b"builtin history -s : _; builtin unset MAILCHECK; "
)
"""The same where the history file has changed. The startup script takes the last line out of the history, which has to
be its own: this puts one there. (The first `-s` puts itself into the place of the line before, the second one no more.)
The last command leaves `$_` as it was."""

Variables = list[tuple[bytes, bytes]]


class _Stamp(NamedTuple):
    """Which state of a file it was."""

    device: int
    inode: int
    size: int
    modified: int
    changed: int


class _Start(NamedTuple):
    """What the start of a shell depends on, without what it inherits from its process."""

    variables: Variables
    directory: str
    logical: tuple[int, int] | None
    """Where $PWD leads, which the shell takes over if it is the same directory."""
    previous: bool
    """Whether $OLDPWD is a directory."""
    host: str
    user: pwd.struct_passwd | None
    """Where $HOME and $SHELL come from if they are not set."""
    bash: bytes
    program: _Stamp | None
    files: tuple[_Stamp | None, ...]
    """The startup files, where they are read ahead."""


def _stamp(path: str | bytes) -> _Stamp | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return _Stamp(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def _variables() -> Variables:
    """The environment in its order, in one step that no other thread can come between."""
    encoded = getattr(os.environ, "_data", None)
    if isinstance(encoded, dict):
        return list(encoded.items())
    return [(os.fsencode(name), os.fsencode(value)) for name, value in dict(os.environ).items()]


def _start_now(ahead: bool) -> _Start | None:
    """What the start of a shell would depend on now; None: it cannot be one that waits."""
    variables = _variables()
    known = dict(variables)
    if not _WITHOUT.isdisjoint(known):
        return None
    try:
        directory = os.getcwd()
        bash = os.fsencode(find_bash())
        user = None if b"HOME" in known and b"SHELL" in known else pwd.getpwuid(os.getuid())
    except (OSError, KeyError, SwerexException):
        return None
    logical = None
    if known.get(b"PWD", b"").startswith(b"/"):
        with contextlib.suppress(OSError):
            found = os.stat(known[b"PWD"])
            logical = (found.st_dev, found.st_ino)
    previous = b"OLDPWD" in known and os.path.isdir(known[b"OLDPWD"])
    files = (_stamp("/etc/bash.bashrc"), _stamp(_home(known, user) + b"/.bashrc")) if ahead else ()
    return _Start(variables, directory, logical, previous, os.uname().nodename, user, bash, _stamp(bash), files)


def _home(known: dict[bytes, bytes], user: pwd.struct_passwd | None) -> bytes:
    """What ~ is."""
    home = known.get(b"HOME")
    return os.fsencode(user.pw_dir) if home is None and user is not None else home or b""


def _settled(stamp: _Stamp | None) -> bool:
    """Whether a file cannot change now without a change of its stamp."""
    return stamp is None or time.time_ns() - max(stamp.modified, stamp.changed) > _RACY * 1e9


def _history(start: _Start) -> tuple[bytes, _Stamp | None]:
    """The history file of a shell that starts so, and its state."""
    known = dict(start.variables)
    path = known.get(b"HISTFILE", _home(known, start.user) + b"/.bash_history")
    return path, _stamp(path)


class WarmShell:
    """A shell that waits at its first prompt."""

    __slots__ = ("core", "history", "inherited", "output", "own", "pid", "seconds", "start")

    def __init__(self, core: _core.Session, start: _Start, history: _Stamp | None, own: bytes):
        self.core = core
        self.start = start
        self.history = history
        self.own = own
        self.pid: int = core.facts()["pid"]
        self.inherited = _core.inherited(self.pid)
        self.output: str | None = None
        """What the startup files printed, if they were read."""
        self.seconds = 0.0
        """How long they took."""

    def lives(self) -> bool:
        """Whether it waits at its prompt, and nobody has said anything on its terminal."""
        facts = self.core.facts()
        if facts["dead"] or not facts["idle"] or facts["late"]:
            return False
        try:  # it may have been ended or stopped a moment ago
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is None
        except ChildProcessError:
            return False

    def resume(self) -> bytes:
        """What comes in front of the startup script."""
        stamp = _history(self.start)[1]
        return _RESUME if stamp == self.history and _settled(stamp) else _RESUME + _HISTORY


class _Shelf:
    """The shells and the thread that starts them. The thread keeps it alive, and it keeps the thread; `WarmShells` ends
    both."""

    def __init__(self, size: int, output_limit: int, script: bytes | None, logger: logging.Logger):
        self.size = size
        self.output_limit = output_limit
        self.script = script
        self.logger = logger
        self.process = os.getpid()
        self.changed = threading.Condition()
        self.shells: deque[WarmShell] = deque()
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
        """Have the thread run. With `changed` held."""
        if self.closed or self.runs:
            return
        try:
            threading.Thread(target=self._run, name="swerex-warm", daemon=True).start()
        except RuntimeError:  # there can be no more threads now
            self._give_up()
            return
        self.runs = True
        _shelves.add(self)

    def close(self) -> Future[None]:
        if self.process != os.getpid():  # the parent's, and its lock may be held by a thread that is not here
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
        except RuntimeError:  # the interpreter ends, and has ended them
            pass
        finally:
            with self.changed:
                self.shells.clear()
                self._give_up()
                self.ended.set_result(None)

    def _give_up(self) -> None:
        """What waits for the shelf to be full waits no more. With `changed` held."""
        self.failed = True
        for waiter in self.waiters:
            waiter.set_result(None)
        self.waiters.clear()

    def _wait(self) -> bool:
        """Until there is something to do; False: to end. Sleeps without a limit if there is nothing."""
        with self.changed:
            while not self.closed:
                if self.review or self.old or (len(self.shells) < self.size and not self.failed):
                    return True
                if not self.failed:
                    for waiter in self.waiters:
                        waiter.set_result(None)
                    self.waiters.clear()
                self.changed.wait()
            return False

    def _renew(self) -> None:
        """Take away what nobody can use any more, or start one."""
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
                self.logger.warning("No session can be kept ready now: %s", error)
        with self.changed:
            if shell is not None:
                self.shells.append(shell)
            else:
                self._give_up()

    def _pause(self) -> bool:
        """So that who runs commands and asks for sessions has the processors; not while somebody waits for the shelf to
        be full. False: it was closed meanwhile."""
        with self.changed:
            for _ in range(_ROUNDS):
                left = max(self.rest_until, self.taken_at + _QUIET) - time.monotonic()
                if left <= 0 or self.changed.wait_for(lambda: self.closed or self.waiters, left):
                    break
            return not self.closed

    def _ends(self, operation: _core.Operation) -> bool:
        """Wait until it has ended. False: the shelf was closed first."""
        while not operation.wait(_LOOK_SECONDS):
            if self.closed:
                return False
        return operation.end == "done"

    def _start(self) -> WarmShell | None:
        """A shell at its first prompt; None: none that could be handed out."""
        ahead = self.script is not None
        start = _start_now(ahead)
        if start is None or not all(map(_settled, start.files)):
            return None
        history = _history(start)[1]
        own = _core.inherited_own()
        variables = [name + b"=" + value for name, value in start.variables if name not in (b"PS0", b"PS1", b"PS2")]
        core = _core.Session(start.bash, variables, None, ROWS, COLUMNS, self.output_limit)
        shell = None
        fits = False
        try:
            prompt = core.line(b"", _PROMPT_SECONDS, None, None, None, None, None)
            if self._ends(prompt):
                shell = WarmShell(core, start, history, own)
                fits = self._read_startup(shell) and start == _start_now(ahead)
                fits = fits and shell.inherited == _core.inherited(0)
        finally:
            if not fits:
                self._end([core])
        return shell if fits else None

    def _read_startup(self, shell: WarmShell) -> bool:
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
        """Those that would not be started so any more, taken off the shelf."""
        start, inherited = _start_now(self.script is not None), _core.inherited(0)
        with self.changed:
            keep = [shell for shell in self.shells if shell.start == start and shell.inherited == inherited]
            old = [shell.core for shell in self.shells if shell not in keep]
            self.shells = deque(keep)
        return old

    @staticmethod
    def _end(cores: list[_core.Session]) -> None:
        for operation in [core.close(None, None) for core in cores]:
            operation.wait(None)


_shelves: weakref.WeakSet[_Shelf] = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    """Before the core ends, so that no thread starts a shell in it meanwhile."""
    ends = [shelf.close() for shelf in list(_shelves) if shelf.process == os.getpid()]
    deadline = time.monotonic() + _EXIT_SECONDS
    for end in ends:
        with contextlib.suppress(TimeoutError):
            end.result(max(0.0, deadline - time.monotonic()))


class WarmShells:
    """Up to `size` shells that wait to become sessions, for callers in any thread.

    They are started one after the other by a thread, which sleeps while all are there. In a process that was forked
    from this one it begins anew. They are for threads that are like this one's maker: one with another priority, other
    processors or other rights gets none.
    """

    def __init__(self, size: int, output_limit: int, script: bytes | None, logger: logging.Logger):
        """`script` reads the startup files; None: they are not read ahead."""
        self._made = (size, output_limit, script, logger)
        self._shelf = self._new_shelf()

    def _new_shelf(self) -> _Shelf:
        shelf = _Shelf(*self._made)
        self._finalizer = weakref.finalize(self, shelf.close)
        self._finalizer.atexit = False
        with shelf.changed:
            shelf.begin()
        return shelf

    def _own(self) -> _Shelf:
        if self._shelf.process != os.getpid():  # its thread and its shells are the parent's
            self._finalizer.detach()
            self._shelf = self._new_shelf()
        return self._shelf

    @property
    def waiting(self) -> int:
        """How many are there."""
        return len(self._shelf.shells)

    @property
    def taken(self) -> int:
        """How many have become sessions."""
        return self._shelf.taken

    @property
    def missed(self) -> int:
        """How many sessions were started instead: none was there, or none that would have been the same."""
        return self._shelf.missed

    def take(self, request: CreateBashSessionRequest) -> WarmShell | None:
        """One that is what a shell started now for this request would be, or None. It is the caller's to close."""
        shelf = self._own()
        plain = request.cwd is None and not request.env and request.rows == ROWS and request.columns == COLUMNS
        found = self._find(shelf, request.startup_timeout) if plain else None
        with shelf.changed:
            shelf.taken_at = time.monotonic()
            shelf.taken += found is not None
            shelf.missed += found is None
        if plain and found is None:
            self.refill()
        return found

    @staticmethod
    def _find(shelf: _Shelf, seconds: float) -> WarmShell | None:
        if not shelf.shells:
            return None
        start = _start_now(shelf.script is not None)
        try:
            inherited, own = _core.inherited(0), _core.inherited_own()
        except OSError:
            return None
        with shelf.changed:
            for _ in range(0 if shelf.closed else len(shelf.shells)):
                shell = shelf.shells.popleft()
                if shell.start != start or shell.inherited != inherited or shell.own != own:
                    shelf.shells.append(shell)  # for another thread perhaps
                    shelf.review = True
                elif not shell.lives():
                    shelf.old.append(shell.core)
                elif shell.seconds >= seconds:
                    shelf.shells.append(shell)
                else:
                    return shell
        return None

    def refill(self) -> None:
        """Have those replaced that were taken. To be called when the caller has its answer."""
        shelf = self._own()
        with shelf.changed:
            shelf.failed = False
            shelf.begin()
            shelf.changed.notify()

    async def full(self) -> bool:
        """Wait until all are there. False: no more can be started now, or it was closed."""
        import asyncio

        shelf = self._own()
        waiter: Future[None] = Future()
        with shelf.changed:
            if not shelf.closed:
                shelf.failed = False
                shelf.begin()
                shelf.waiters.append(waiter)
                shelf.changed.notify()
            else:
                waiter.set_result(None)
        await asyncio.shield(asyncio.wrap_future(waiter))
        return len(shelf.shells) >= shelf.size

    async def close(self) -> None:
        """End all that wait. Returns when they are gone."""
        import asyncio

        if self._shelf.process == os.getpid():
            await asyncio.shield(asyncio.wrap_future(self._shelf.close()))
