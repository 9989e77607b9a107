"""Attachment of a person's terminal, or a pipe of commands, to a session.

`BashSession.interact()` and `swerex-c shell` use it. The terminals and the prompt are set up as follows:

    the person's terminal   has its original modes at the prompt, so that lines can be edited; it is raw while a command
                            runs, so that every key reaches the command and its output is not changed
    the session's terminal  is kept without echo by the engine; it gets the modes of an ordinary terminal for the
                            person's commands, and the engine restores its own when a command ends
    the shell's prompt      is an invisible mark, so this module makes the visible prompt

No event loop is needed: the core's wake-ups and the keys arrive on descriptors.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import re
import select
import socket
import sys
import termios
import time
from collections.abc import Callable
from enum import Enum
from typing import Any

from swerex_c import _core
from swerex_c.engine.outcomes import UNKNOWN_STATUS
from swerex_c.engine.signals import Signals
from swerex_c.engine.syntax import HERE_DOCUMENT_WARNING, is_accepted, parse
from swerex_c.engine.terminal_modes import (
    CC,
    LFLAG,
    OFLAG,
    Modes,
    at_prompt,
    changed,
    copied,
    of_commands,
    open_terminal,
    raw,
    showing_rest,
)
from swerex_c.exceptions import NoExitCodeError, SwerexException
from swerex_c.utils.visible import visible

__all__ = ["attach"]

_CHUNK = 4096
"""Bytes to write to the person's terminal before checking for keys again."""

_FLOOD = 65536
"""Bytes of output waiting to be shown above which an interrupt discards them, as a terminal does."""

_SIZE_CHECK = 0.1
"""Seconds between checks of the size of the person's terminal. A handler of SIGWINCH would replace readline's, and
could be set in the main thread only."""

_UNFINISHED = re.compile(rb"^\S+: line \d+: .*unexpected (EOF|end of file)", re.MULTILINE)


def attach(core: Any, input_fd: int, output_fd: int) -> int:
    """Attach a terminal, or a pipe whose lines are commands, to a session.

    Blocks until the end of input or of the shell. Call it from the main thread, so that ^C arrives at the prompt. If
    `input_fd` is a terminal, a running command receives every key. From a pipe it receives none: a command that reads
    its terminal waits until it is interrupted. `core` is a `_core.Session` that has been started.

    Returns the exit code of the last command, or that of the shell if it ended.

    Raises:
        NoExitCodeError: if the shell ended and its exit code is unknown.
        ResourceError: if the session's terminal cannot be opened.
        OSError: if the output cannot be written.
    """
    facts = core.facts()
    if facts["dead"]:
        if facts["wait_status"] < 0:
            raise NoExitCodeError(f"The session's shell has ended. {UNKNOWN_STATUS}")
        code = os.waitstatus_to_exitcode(facts["wait_status"])
        return 128 - code if code < 0 else code
    return _Attached(core, facts["pid"], input_fd, output_fd).work()


class _HungUp(Exception):
    """The person's terminal was disconnected."""


class _Attached:
    def __init__(self, core: Any, pid: int, input_fd: int, output_fd: int):
        self.core = core
        self.pid = pid
        self.input = input_fd
        self.output = output_fd
        self.code = 0
        self.ended = False
        self.signals = Signals()
        self.completions = _core.Completions()
        self.ahead = b""  # input that was typed or read, and is not used yet
        self.tail = b""  # the last line typed to the session's terminal, while it is unfinished
        self.modes: Modes | None = termios.tcgetattr(input_fd) if os.isatty(input_fd) else None
        self.terminal = open_terminal(pid)
        self.theirs: Modes = termios.tcgetattr(self.terminal)
        self.ours = of_commands(self.theirs, self.modes)
        self.size = self.first_size = termios.tcgetwinsize(self.terminal)
        self.readline = self._find_readline()

    # -- start and end

    def work(self) -> int:
        self.core.attach(True)
        with self.signals:
            try:
                self._set_modes(at_prompt)
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
        if self.code < 0:
            raise NoExitCodeError(f"The session's shell has ended. {UNKNOWN_STATUS}")
        return self.code

    def _join(self) -> None:
        """Attach to the command that already runs, or get the exit code of the last one."""
        if self.modes is not None and not self.core.facts()["idle"]:
            modes = termios.tcgetattr(self.terminal)
            if modes[LFLAG] & termios.ICANON:  # leave echo off: the command may be reading a password
                modes[OFLAG] |= termios.OPOST | termios.ONLCR
                self._set_terminal(modes)
        news = object()
        self._follow(self.core.line(b"", None, None, None, self.completions, news, news))

    def _leave(self) -> None:
        with contextlib.suppress(SwerexException, RuntimeError, OSError):
            self.core.attach(False)
            self.core.resize(*self.first_size)
        self._set_modes(copied)
        os.close(self.terminal)

    # -- modes and sizes

    def _set_modes(self, new: Callable[[Modes], Modes]) -> None:
        """Set new modes of the person's terminal, keep input typed ahead, and ignore a disconnected terminal.

        Args:
            new: returns them, made from the original modes.
        """
        if self.modes is not None:
            with contextlib.suppress(termios.error):
                termios.tcsetattr(self.input, termios.TCSADRAIN, new(self.modes))

    def _set_terminal(self, modes: Modes) -> None:
        """Set the modes of the session's terminal."""
        with contextlib.suppress(termios.error):  # the shell has ended; the next operation reports that
            termios.tcsetattr(self.terminal, termios.TCSANOW, modes)

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
        """Return the readline module if it can edit lines here: it works on descriptors 0 and 1 only."""
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
        """Return the next command to run, or None at the end of input.

        The number is the verdict on its syntax: the argument `checked` of `_core.Session.run`.
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
            if self.signals.came:  # ^C came during the check, and cancels the lines so far
                continue
            if verdict is _Verdict.COMPLETE:
                return text, 1
            if verdict is _Verdict.UNFINISHED and line is not None:
                continue
            if verdict is _Verdict.UNFINISHED and HERE_DOCUMENT_WARNING in said:
                return text, 0  # the end of input terminates the here-document
            if verdict is not _Verdict.EMPTY:
                self._write(said)
                self.code = 2
            lines = []

    def _prompt(self) -> str:
        return _prompt(self.pid) if self.modes is not None else ""

    def _read_line(self, prompt: str) -> str | None:
        """Return one line without its newline, or None at the end of input."""
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
        # No Python function: a signal could be handled inside it, and the exception would be dropped.
        self.readline.set_startup_hook(functools.partial(self.readline.insert_text, started))
        try:
            self.signals.allow()
            return input(prompt)
        except EOFError:
            return None
        except UnicodeDecodeError:
            self._say("the line is not valid in this terminal's encoding")
            return ""
        finally:
            self.signals.allowed = False
            self.readline.set_startup_hook(None)

    def _read(self) -> bytes:
        """Return what the person types, or b"" at the end of input or if the terminal is disconnected."""
        try:
            return os.read(self.input, 65536)
        except OSError as e:
            if e.errno == errno.EIO:
                return b""
            raise

    # -- running commands

    def _run_text(self, command: tuple[str, int]) -> None:
        text, checked = command
        flags = _core.scan(text)[1]
        news = object()
        self._set_terminal(self.ours)
        self._follow_size()
        try:
            operation = self.core.run(text, checked, None, None, None, self.completions, news, news, 0)
        except ValueError as e:
            self._say(str(e))
            self.code = 2
            return
        self._follow(operation)
        if flags & _core.SCAN_STTY and not self.ended:
            self._keep_changes()

    def _keep_changes(self) -> None:
        """Keep the terminal modes that the command changed, for the person and the session. The engine adopts all modes
        that it finds, the person's echo included, but only changes are meant to last."""
        now = termios.tcgetattr(self.terminal)
        self.theirs = changed(self.theirs, self.ours, now)
        self.ours = now
        self.ours[OFLAG] |= termios.OPOST
        self._set_terminal(self.theirs)
        news = object()
        # An empty line that mentions stty: the engine adopts the current modes, and the shell does nothing.
        self._wait(self.core.run("# stty", 1, None, None, None, self.completions, news, None, 0))

    def _wait(self, operation: Any) -> None:
        while not operation.wait(0.5):
            pass

    def _follow(self, operation: Any) -> None:
        """Show the output of an operation and pass on keys until it has ended."""
        self.tail = b""
        self._set_modes(raw)
        try:
            self._pump(operation)
        except BaseException:
            operation.cancel()
            raise
        finally:
            self._set_modes(at_prompt)
        if self.tail and not operation.end == "died":
            # An unfinished line would become the beginning of the next command, so it goes back to the prompt.
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
        if end == "died" and self.code >= 0:
            how = f"by signal {self.code - 128}" if self.code > 128 else f"with status {self.code}"
            self._say(f"the session's shell has ended {how}")
        elif end not in ("done", "died"):
            self._say(_ENDS.get(end, f"cannot follow the command: {operation.error or end}"))

    def _pump(self, operation: Any) -> None:
        pending = memoryview(b"")
        ended = False
        while True:
            try:
                if operation.done and not ended:
                    ended = True
                    self._set_modes(showing_rest)
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
                    self._type(termios.tcgetattr(self.terminal)[CC][termios.VINTR])
                pending = _discard(operation)

    def _step(self, operation: Any, pending: memoryview, ended: bool) -> memoryview:
        """Wait for an event and handle it. Returns the bytes left to show."""
        watch_keys = self.modes is not None and not ended
        poll = select.poll()
        poll.register(self.completions.fileno(), select.POLLIN)
        if pending:
            poll.register(self.output, select.POLLOUT)
        if watch_keys:
            both = select.POLLOUT if pending and self.input == self.output else 0
            poll.register(self.input, select.POLLIN | both)
        ready = dict(poll.poll(_SIZE_CHECK * 1000 if watch_keys else None))
        if self.completions.fileno() in ready:
            self.completions.take()
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
        """Pass keys on to the session. Returns whether they interrupt the running command."""
        try:
            modes = termios.tcgetattr(self.terminal)
        except termios.error:
            return False
        if not self.core.type(keys):  # the command has just ended, so the keys are for the prompt
            self.ahead += _plain(keys)
            return False
        canonical = termios.ICANON | termios.ECHO
        if modes[LFLAG] & canonical == canonical:
            self.tail = _plain(re.split(rb"[\r\n\x03\x04\x15\x1a\x1c]", self.tail + keys)[-1])
        else:
            self.tail = b""
        return bool(modes[LFLAG] & termios.ISIG and modes[CC][termios.VINTR] in keys)

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
        """Show a message of this program, to a person only."""
        if self.modes is not None:
            self._write(message.encode("utf-8", "replace") + b"\n")


_ENDS = {
    "lost": "the state of the session's shell is unknown: start another session",
    "closed": "the session was closed",
    "cancelled": "the command was cancelled",
    "memory": "out of memory",
}


# ---- checking a line ------------------------------------------------------------------------------------------------


class _Verdict(Enum):
    """Verdict on the lines of a command so far."""

    COMPLETE = 1
    EMPTY = 2
    UNFINISHED = 3
    WRONG = 4


def _judge(text: str) -> tuple[_Verdict, bytes]:
    """Return the verdict on the lines so far, and the message of bash about them."""
    data = os.fsencode(text)
    verdict, flags = _core.scan(data)
    if flags & _core.SCAN_NUL:
        return _Verdict.WRONG, b"a command cannot contain a NUL byte\n"
    if flags & _core.SCAN_BACKSLASH_END:
        return _Verdict.UNFINISHED, b"the command ends in a backslash\n"
    if verdict == "empty":
        return _Verdict.EMPTY, b""
    if verdict == "complete":
        return _Verdict.COMPLETE, b""
    said = b""
    # Patterns like !(a) are syntax if extglob is switched on; if it is not, the session's shell reports the error.
    for options in ([], ["-O", "extglob"]) if b"(" in data else ([],):
        done = parse(data, *options)
        said = said or done.stderr
        if HERE_DOCUMENT_WARNING in done.stderr or _UNFINISHED.search(done.stderr):
            return _Verdict.UNFINISHED, done.stderr
        if is_accepted(done.returncode, done.stderr):
            return _Verdict.COMPLETE, b""
    return _Verdict.WRONG, said


def _plain(keys: bytes) -> bytes:
    """Return keys meant for a command as text for a prompt, with newlines and without editing keys."""
    return re.sub(rb"[\x00-\x08\x0b-\x1f\x7f]", b"", keys.replace(b"\r", b"\n"))


def _discard(operation: Any) -> memoryview:
    """Discard output that waits to be shown."""
    for _ in range(512):
        if len(operation.take()) < _FLOOD:
            break
    return memoryview(b"")


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
    return visible(text, one_line=True)
