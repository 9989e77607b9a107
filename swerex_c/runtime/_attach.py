"""A person in a session: `BashSession.interact()`, `swerex-c shell`.

Three terminals take part, and each has its modes for a reason:

    the person's   at the prompt as it was found, so that lines can be edited; while a command runs raw, so that every
                   key reaches the command as it is and nothing of its output is changed
    the session's  the engine keeps it without echo; for the person's commands it gets those of an ordinary terminal,
                   and the engine puts its own back when a command ends
    the shell's    prompt is an invisible mark, so the prompt that is shown is made here

Nothing here needs an event loop: the core's wake-ups and the keys come over descriptors.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import re
import select
import socket
import subprocess
import sys
import termios
import time
from typing import Any

from swerex_c import _core
from swerex_c.exceptions import ResourceError, SwerexException
from swerex_c.runtime._signals import Signals
from swerex_c.runtime._syntax import find_bash

__all__ = ["attach"]

_CHUNK = 4096
"""Bytes written to the person's terminal before keys are looked at again."""

_FLOOD = 65536
"""Bytes of output that wait to be shown, from which on an interrupt throws them away, as a terminal does."""

_SIZE_CHECK = 0.1
"""Seconds between looks at the size of the person's terminal. A handler of SIGWINCH would take the place of readline's,
and could be set in the main thread only."""

_IFLAG, _OFLAG, _CFLAG, _LFLAG, _ISPEED, _OSPEED, _CC = range(7)

_UNFINISHED = re.compile(rb"^\S+: line \d+: .*unexpected (EOF|end of file)", re.MULTILINE)
_OPEN_HERE_DOCUMENT = b"delimited by end-of-file"

_Modes = list[Any]
"""As `termios.tcgetattr` gives them."""


def attach(core: Any, input_fd: int, output_fd: int) -> int:
    """Let a person, or a pipe whose lines are commands, work in a session until the end of input or of the shell.

    core: a `_core.Session` that has been started. Blocks; call it from the main thread, so that ^C arrives at the
    prompt. When `input_fd` is a terminal, a command that runs gets every key. From a pipe it gets none: a command that
    reads its terminal waits until it is interrupted.

    Returns the exit code of the last command, or the shell's own if it ended.

    Raises:
        ResourceError: if the session's terminal cannot be opened.
        OSError: if the output cannot be written.
    """
    facts = core.facts()
    if facts["dead"]:
        code = os.waitstatus_to_exitcode(facts["wait_status"])
        return 128 - code if code < 0 else code
    return _Attached(core, facts["pid"], input_fd, output_fd).work()


class _HungUp(Exception):
    """The person's terminal is gone."""


class _Attached:
    def __init__(self, core: Any, pid: int, input_fd: int, output_fd: int):
        self.core = core
        self.pid = pid
        self.input = input_fd
        self.output = output_fd
        self.code = 0
        self.ended = False
        self.signals = Signals()
        self.waker = _core.Waker()
        self.ahead = b""  # typed or read, and not yet used
        self.tail = b""  # the last line typed to the session's terminal, as long as it has no end
        self.modes: _Modes | None = termios.tcgetattr(input_fd) if os.isatty(input_fd) else None
        self.terminal = _open_terminal(pid)
        self.theirs: _Modes = termios.tcgetattr(self.terminal)
        self.ours = _ordinary(self.theirs, self.modes)
        self.size = self.first_size = termios.tcgetwinsize(self.terminal)
        self.readline = self._find_readline()

    # -- from beginning to end

    def work(self) -> int:
        self.core.attach(True)
        with self.signals:
            try:
                self._at_prompt()
                self._join()
                while not self.ended:
                    text = self._read_command()
                    if text is None:
                        break
                    self._run_text(text)
            except _HungUp:
                self.code = 129
            finally:
                self._leave()
        return self.code

    def _join(self) -> None:
        """Take part in what runs already, or learn how the last command ended."""
        if self.modes is not None and not self.core.facts()["idle"]:
            modes = termios.tcgetattr(self.terminal)
            if modes[_LFLAG] & termios.ICANON:  # no echo: it may be reading a password
                modes[_OFLAG] |= termios.OPOST | termios.ONLCR
                self._set_terminal(modes)
        news = object()
        self._follow(self.core.line(b"", None, None, None, self.waker, news, news))

    def _leave(self) -> None:
        with contextlib.suppress(SwerexException, RuntimeError, OSError):
            self.core.attach(False)
            self.core.resize(*self.first_size)
        if self.modes is not None:
            self._set_modes(self.modes)
        os.close(self.terminal)

    # -- modes and sizes

    def _set_modes(self, modes: _Modes) -> None:
        """Of the person's terminal. What was typed ahead stays; a terminal that is gone needs no modes."""
        with contextlib.suppress(termios.error):
            termios.tcsetattr(self.input, termios.TCSADRAIN, modes)

    def _set_terminal(self, modes: _Modes) -> None:
        with contextlib.suppress(termios.error):  # the shell has ended; the next operation says so
            termios.tcsetattr(self.terminal, termios.TCSANOW, modes)

    def _at_prompt(self) -> None:
        """As it was found, but for the keys that would stop or end this process: shells ignore them at their prompt."""
        if self.modes is not None:
            modes = _copy(self.modes)
            modes[_CC][termios.VSUSP] = modes[_CC][termios.VQUIT] = b"\0"
            self._set_modes(modes)

    def _raw(self) -> None:
        if self.modes is not None:
            modes = _copy(self.modes)
            modes[_IFLAG] = modes[_IFLAG] & termios.IGNBRK
            modes[_OFLAG] &= ~termios.OPOST
            modes[_CFLAG] = modes[_CFLAG] & ~(termios.CSIZE | termios.PARENB) | termios.CS8
            modes[_LFLAG] &= ~(termios.ECHO | termios.ECHONL | termios.ICANON | termios.ISIG | termios.IEXTEN)
            modes[_CC][termios.VMIN], modes[_CC][termios.VTIME] = 1, 0
            self._set_modes(modes)

    def _showing_rest(self) -> None:
        """The command has ended and some of its output is left to show: ^C is for us, other keys are for the prompt."""
        if self.modes is not None:
            modes = _copy(self.modes)
            modes[_OFLAG] &= ~termios.OPOST
            modes[_LFLAG] &= ~termios.ECHO
            self._set_modes(modes)

    def _follow_size(self) -> None:
        if self.modes is None:
            return
        with contextlib.suppress(termios.error, OSError, RuntimeError):
            size = termios.tcgetwinsize(self.input)
            if size != self.size and size[0] and size[1]:
                self.size = size
                self.core.resize(*size)

    # -- reading commands

    def _find_readline(self) -> Any:
        """The module that edits lines, when it can: it works on the descriptors 0 and 1 only."""
        if not (self.modes is not None and (self.input, self.output) == (0, 1) and os.isatty(1)):
            return None
        try:
            if (sys.stdin.fileno(), sys.stdout.fileno()) != (0, 1):
                return None
            import readline
        except (ImportError, AttributeError, OSError, ValueError):
            return None
        return readline

    def _read_command(self) -> tuple[str, int] | None:
        """The next command as it has to be run, and whether bash was asked about it (see `_core.Session.run`).

        None: there is no further one.
        """
        lines: list[str] = []
        while True:
            try:
                self.signals.check()
                line = self._read_line("> " if lines else self._prompt())
            except KeyboardInterrupt:
                if self.modes is None:
                    raise
                self._say("")
                self.code, self.ahead, lines = 130, b"", []
                continue
            if line is None and not lines:
                if self.modes is not None:
                    self._say("exit")
                return None
            lines += [] if line is None else [line]
            text = "\n".join(lines)
            verdict, said = _judge(text)
            if self.signals.came:  # meanwhile; it is for the lines so far
                continue
            if verdict is None and line is not None:
                continue
            if verdict is None and _OPEN_HERE_DOCUMENT in said:
                verdict = 0  # the end of input ends it
            if verdict is not None and verdict != _WRONG:
                if verdict != _EMPTY:
                    return text, verdict
            else:
                self._write(said)
                self.code = 2
            lines = []

    def _prompt(self) -> str:
        return _prompt(self.pid) if self.modes is not None else ""

    def _read_line(self, prompt: str) -> str | None:
        """One line without its end; None at the end of input."""
        if self.modes is None:
            prompt = ""
        if b"\n" in self.ahead:
            line, _, self.ahead = self.ahead.partition(b"\n")
            self._write(os.fsencode(prompt) + line + b"\n" if prompt else b"")
            return os.fsdecode(line)
        if self.readline is not None:
            return self._edit_line(prompt)
        self._write(os.fsencode(prompt) + (self.ahead if prompt else b""))
        while b"\n" not in self.ahead:
            try:
                self.signals.allow()
                data = self._read()
            finally:
                self.signals.allowed = False
            if not data:
                rest, self.ahead = self.ahead, b""
                return os.fsdecode(rest) if rest else None
            self.ahead += data
        line, _, self.ahead = self.ahead.partition(b"\n")
        return os.fsdecode(line)

    def _edit_line(self, prompt: str) -> str | None:
        started, self.ahead = self.ahead.decode("utf-8", "replace"), b""
        # Nothing written in Python: a signal would be handled in there, and its exception is dropped.
        self.readline.set_startup_hook(functools.partial(self.readline.insert_text, started))
        try:
            self.signals.allow()
            return input(prompt)
        except EOFError:
            return None
        except UnicodeDecodeError:
            self._say("that line is not text in this terminal's encoding")
            return ""
        finally:
            self.signals.allowed = False
            self.readline.set_startup_hook(None)

    def _read(self) -> bytes:
        """What the person types; b"" at the end of input, and when the terminal is gone."""
        try:
            return os.read(self.input, 65536)
        except OSError as e:
            if e.errno == errno.EIO:
                return b""
            raise

    # -- running them

    def _run_text(self, command: tuple[str, int]) -> None:
        text, checked = command
        flags = _core.scan(text)[1]
        news = object()
        self._set_terminal(self.ours)
        self._follow_size()
        try:
            operation = self.core.run(text, checked, None, None, None, self.waker, news, news, 0)
        except ValueError as e:
            self._say(str(e))
            self.code = 2
            return
        self._follow(operation)
        if flags & _core.SCAN_STTY and not self.ended:
            self._keep_changes()

    def _keep_changes(self) -> None:
        """The command may have changed modes, and the engine has taken all of what it found for asked for, the person's
        echo included. Only what changed is meant to last, for the person and for the session."""
        now = termios.tcgetattr(self.terminal)
        self.theirs = _changed(self.theirs, self.ours, now)
        self.ours = now
        self.ours[_OFLAG] |= termios.OPOST
        self._set_terminal(self.theirs)
        news = object()
        # An empty line that mentions stty: the engine takes the modes as they are, and the shell has nothing to do.
        self._wait(self.core.run("# stty", 1, None, None, None, self.waker, news, None, 0))

    def _wait(self, operation: Any) -> None:
        while not operation.wait(0.5):
            pass

    def _follow(self, operation: Any) -> None:
        """Show its output and pass on keys until it has ended."""
        self.tail = b""
        self._raw()
        try:
            self._pump(operation)
        except BaseException:
            operation.cancel()
            raise
        finally:
            self._at_prompt()
        if self.tail and not operation.end == "died":
            # An unfinished line would become the beginning of the next command: it goes back to the prompt.
            with contextlib.suppress(termios.error):
                termios.tcflush(self.terminal, termios.TCIFLUSH)
            self.ahead = self.tail + self.ahead
        self._conclude(operation)

    def _conclude(self, operation: Any) -> None:
        end = operation.end
        if end in ("done", "died"):
            self.code = operation.code
        else:
            self.code = 1
        self.ended = end not in ("done", "memory")
        if end == "died":
            how = f"by signal {self.code - 128}" if self.code > 128 else f"with status {self.code}"
            self._say(f"the session's shell has ended {how}")
        elif end != "done":
            self._say(_ENDS.get(end, f"the command could not be followed: {operation.error or end}"))

    def _pump(self, operation: Any) -> None:
        pending = memoryview(b"")
        ended = False
        while True:
            try:
                if operation.done and not ended:
                    ended = True
                    self._showing_rest()
                if not pending:
                    pending = memoryview(operation.take())
                    if not pending and ended:
                        return
                try:
                    self.signals.allow()
                    pending = self._step(operation, pending, ended)
                finally:
                    self.signals.allowed = False
            except KeyboardInterrupt:
                if not ended:
                    self._type(termios.tcgetattr(self.terminal)[_CC][termios.VINTR])
                pending = _discard(operation)

    def _step(self, operation: Any, pending: memoryview, ended: bool) -> memoryview:
        """Wait for something to do, and do it. Returns what is left to show."""
        watch_keys = self.modes is not None and not ended
        poll = select.poll()
        poll.register(self.waker.fileno(), select.POLLIN)
        if pending:
            poll.register(self.output, select.POLLOUT)
        if watch_keys:
            both = select.POLLOUT if pending and self.input == self.output else 0
            poll.register(self.input, select.POLLIN | both)
        ready = dict(poll.poll(_SIZE_CHECK * 1000 if watch_keys else None))
        if self.waker.fileno() in ready:
            self.waker.take()
        if watch_keys:
            self._follow_size()
        if watch_keys and ready.get(self.input, 0) & ~select.POLLOUT:
            keys = self._read()
            if not keys:
                raise _HungUp
            if self._type(keys) and len(pending) > _FLOOD:
                pending = _discard(operation)
        if pending and ready.get(self.output, 0) & ~select.POLLIN:
            pending = pending[self._write_some(pending) :]
        return pending

    def _type(self, keys: bytes) -> bool:
        """Pass keys on. Returns whether they interrupt what runs."""
        try:
            modes = termios.tcgetattr(self.terminal)
        except termios.error:
            return False
        if not self.core.type(keys):  # it has just ended: they are for the prompt
            self.ahead += _plain(keys)
            return False
        canonical = termios.ICANON | termios.ECHO
        if modes[_LFLAG] & canonical == canonical:
            self.tail = _plain(re.split(rb"[\r\n\x03\x04\x15\x1a\x1c]", self.tail + keys)[-1])
        else:
            self.tail = b""
        return bool(modes[_LFLAG] & termios.ISIG and modes[_CC][termios.VINTR] in keys)

    # -- showing

    def _write_some(self, data: memoryview) -> int:
        try:
            return os.write(self.output, data[:_CHUNK])
        except BlockingIOError:
            return 0
        except OSError as e:
            if e.errno == errno.EIO:
                raise _HungUp from None
            raise

    def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            written = self._write_some(rest)
            rest = rest[written:]
            if not written:
                time.sleep(0.01)

    def _say(self, message: str) -> None:
        """A word of our own, for a person only."""
        if self.modes is not None:
            self._write(message.encode("utf-8", "replace") + b"\n")


_ENDS = {
    "lost": "it cannot be proved any more what the session's shell is doing: the session is of no more use",
    "closed": "the session was closed",
    "cancelled": "the command was cancelled",
    "memory": "out of memory",
}


# ---- what a line means ----------------------------------------------------------------------------------------------

_EMPTY, _WRONG = -2, -3


def _judge(text: str) -> tuple[int | None, bytes]:
    """What to do with the lines so far, and what bash says about them.

    1: a command; 0: a command of which bash warns; _EMPTY: nothing to run; _WRONG: no command; None: it goes on.
    """
    data = os.fsencode(text)
    verdict, flags = _core.scan(data)[:2]
    if flags & _core.SCAN_NUL:
        return _WRONG, b"a command cannot contain a NUL byte\n"
    if flags & _core.SCAN_BACKSLASH_END:
        return None, b"the command ends in a backslash\n"
    if verdict == "empty":
        return _EMPTY, b""
    if verdict == "complete":
        return 1, b""
    said = b""
    # Patterns like !(a) are syntax where extglob is switched on; where it is not, the session's shell says so itself.
    for options in ([], ["-O", "extglob"]) if b"(" in data else ([],):
        done = subprocess.run(
            [find_bash(), *options, "-n"], input=data, capture_output=True, check=False, env={"LC_ALL": "C"}
        )
        said = said or done.stderr
        if _OPEN_HERE_DOCUMENT in done.stderr or _UNFINISHED.search(done.stderr):
            return None, done.stderr
        if done.returncode == 0:
            return 1, b""
    return _WRONG, said


def _plain(keys: bytes) -> bytes:
    """Keys that were meant for a command, as text for a prompt: without those that edit, lines ended by newlines."""
    return re.sub(rb"[\x00-\x08\x0b-\x1f\x7f]", b"", keys.replace(b"\r", b"\n"))


def _discard(operation: Any) -> memoryview:
    """Throw away what waits to be shown."""
    for _ in range(512):
        if len(operation.take()) < _FLOOD:
            break
    return memoryview(b"")


# ---- the session's terminal -----------------------------------------------------------------------------------------


def _open_terminal(pid: int) -> int:
    """A descriptor of the terminal that controls a process, whatever became of the process's own descriptors."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            number = int(file.read().rpartition(b")")[2].split()[4])
        minor = number & 0xFF | number >> 12 & 0xFFF00
        return os.open(f"/dev/pts/{minor}", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    except (OSError, ValueError, IndexError) as e:
        msg = f"The terminal of the session cannot be opened: {e}"
        raise ResourceError(msg, errno=getattr(e, "errno", None)) from e


def _copy(modes: _Modes) -> _Modes:
    return [*modes[:_CC], list(modes[_CC])]


def _ordinary(theirs: _Modes, persons: _Modes | None) -> _Modes:
    """Modes of the session's terminal for a person's command: an ordinary terminal's, with the person's own keys."""
    modes = _copy(theirs)
    if persons is not None:
        modes[_OFLAG] |= termios.OPOST | termios.ONLCR
        modes[_LFLAG] |= termios.ECHO | termios.ECHOE | termios.ECHOK | termios.ECHOCTL | termios.ECHOKE
        modes[_CC] = [
            ours if i in (termios.VMIN, termios.VTIME) else key
            for i, (key, ours) in enumerate(zip(persons[_CC], theirs[_CC], strict=True))
        ]
    return modes


def _changed(base: _Modes, before: _Modes, after: _Modes) -> _Modes:
    """The base with what is different between before and after."""
    modes = _copy(base)
    for i in (_IFLAG, _OFLAG, _CFLAG, _LFLAG):
        modes[i] = base[i] ^ before[i] ^ after[i]
    modes[_OFLAG] &= ~termios.OPOST
    modes[_CC] = [old if key == now else now for old, key, now in zip(base[_CC], before[_CC], after[_CC], strict=True)]
    return modes


def _prompt(pid: int) -> str:
    import getpass

    try:
        directory = os.readlink(f"/proc/{pid}/cwd").removesuffix(" (deleted)")
    except OSError:
        directory = "?"
    home = os.path.expanduser("~")
    if home not in ("/", "~") and (directory == home or directory.startswith(home + "/")):
        directory = "~" + directory[len(home) :]
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.geteuid())
    text = f"{user}@{socket.gethostname().partition('.')[0]}:{directory}{'#' if os.geteuid() == 0 else '$'} "
    return "".join(c if c.isprintable() else "?" for c in text)
