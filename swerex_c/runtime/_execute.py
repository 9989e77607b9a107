"""Single commands outside of all sessions."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import threading
from collections.abc import Callable

from swerex_c import _core
from swerex_c.exceptions import (
    CommandTimeoutError,
    InvalidInputError,
    NonZeroExitCodeError,
    ResourceError,
    RuntimeClosedError,
    SwerexException,
)
from swerex_c.runtime._answers import check_seconds, finish, resource_error, shown
from swerex_c.runtime._starts import starts
from swerex_c.runtime._wakeup import LoopWaker, current_waker
from swerex_c.runtime.abstract import Command, CommandResponse

__all__ = ["LONGEST_ARGUMENT", "Programs", "as_bytes", "check_words", "execute", "overdue", "response"]

LONGEST_ARGUMENT = 128 * 1024 - 1
"""Linux takes no single argument of a program beyond this (MAX_ARG_STRLEN)."""


_KEPT_MARKS = 256
"""So many programs may have ended before it is asked which of them have left something in the background."""

_SWEEPS = 400
"""Attempts to end what was left: some seconds. What does not end by then waits for a device in the kernel."""


class Programs:
    """The programs of one runtime: those that run, and the marks of those that have ended.

    By its mark what a program has left in the background is found. May be used from any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[_core.Process] = set()
        self._marks: list[int] = []
        self._room = _KEPT_MARKS
        self._starting = 0
        self._over = False

    def __len__(self) -> int:
        """How many run."""
        return len(self._running)

    async def start(self, begin: Callable[[], _core.Process]) -> _core.Process:
        """Start one more."""

        def start() -> _core.Process:
            process = begin()
            with self._lock:
                self._running.add(process)
                over = self._over
            if over:
                process.cancel()
            return process

        def undo(process: _core.Process) -> None:
            process.cancel()
            self.ended(process)

        with self._lock:
            self._starting += 1
        try:
            return await starts.start(start, undo)
        finally:
            with self._lock:
                self._starting -= 1

    def ended(self, process: _core.Process) -> None:
        with self._lock:
            self._running.discard(process)
            self._marks.append(process.mark)
            if len(self._marks) >= self._room:
                self._marks = _core.living_marks(self._marks)
                self._room = max(_KEPT_MARKS, 2 * len(self._marks))

    async def end(self) -> None:
        """End those that run and what all have left. Returns when it is gone."""
        with self._lock:
            self._over = True
        while self._starting:  # each is ended as soon as it is there
            await asyncio.sleep(0.001)
        with self._lock:
            running = list(self._running)
            marks, self._marks = self._marks, []
        for process in running:
            process.cancel()
        while any(not process.done for process in running):  # killed, and what they started is being killed
            await asyncio.sleep(0.001)
        for sweep in range(_SWEEPS):
            if not marks or await asyncio.to_thread(_core.kill_marked, marks) <= 0:
                break
            await asyncio.sleep(0.001 if sweep < 20 else 0.01)


async def execute(command: Command, output_limit: int, programs: Programs) -> CommandResponse:
    """Run a command; see `LocalRuntime.execute`. It is one of `programs`."""
    check_seconds(command.timeout, "timeout")
    argv, keep = _argv(command)
    try:
        waker = current_waker()
        future = waker.create_future()
        with starts.used():
            process = await programs.start(lambda: _start(command, argv, output_limit, waker, future))
            try:
                await finish(process, future)
            finally:
                programs.ended(process)
    finally:
        if keep is not None:
            os.close(keep)
    return _command_response(command, process)


def _start(command: Command, argv: list[bytes], output_limit: int, waker: LoopWaker, future: object) -> _core.Process:
    try:
        _check_directory(command.cwd)
        return _core.Process(
            _search(argv[0], command.env),
            argv,
            None if command.env is None else [as_bytes(k) + b"=" + as_bytes(v) for k, v in command.env.items()],
            None if command.cwd is None else os.fsencode(command.cwd),
            b"",
            command.merge_output_streams,
            command.timeout,
            output_limit,
            waker.core,
            future,
        )
    except SwerexException:
        raise
    except OSError as e:
        raise _exec_error(e, argv[0]) from None
    except MemoryError as e:
        raise resource_error(e, "The command cannot be run") from e
    except ValueError as e:
        raise InvalidInputError(f"The command cannot be run: {e}") from e


def as_bytes(text: str) -> bytes:
    """A text as a program gets it.

    Raises:
        InvalidInputError: if that cannot be.
    """
    try:
        return os.fsencode(text)
    except UnicodeEncodeError as e:
        msg = f"{text!r} cannot be given to a program: {e}"
        raise InvalidInputError(msg) from None


def check_words(command: Command) -> list[bytes]:
    """The words of a command as programs get them.

    Raises:
        InvalidInputError: if there are none, or one that no program can get.
    """
    words = [command.command] if isinstance(command.command, str) else list(command.command)
    if not words:
        msg = "The command is empty"
        raise InvalidInputError(msg)
    argv = [as_bytes(word) for word in words]
    if any(b"\0" in word for word in argv):
        msg = "A command cannot contain a NUL byte"
        raise InvalidInputError(msg)
    return argv


def _argv(command: Command) -> tuple[list[bytes], int | None]:
    """The arguments of a command, and a descriptor to keep open while it runs (None: there is none)."""
    argv = check_words(command)
    if not command.shell:
        return argv, None
    keep = None
    if len(argv[0]) > LONGEST_ARGUMENT:  # the kernel would refuse it as an argument; the shell can read it
        keep = os.memfd_create("swx-command")
        with os.fdopen(os.dup(keep), "wb") as file:
            file.write(argv[0])
        argv[0] = b". /proc/%d/fd/%d" % (os.getpid(), keep)
    return [b"/bin/sh", b"-c", *argv], keep


def _search(program: bytes, env: dict[str, str] | None) -> bytes:
    """Where a program is. With an environment of its own, the PATH in there counts, as for `subprocess`."""
    if env is None or b"/" in program:
        return program
    found = shutil.which(os.fsdecode(program), path=env.get("PATH", os.defpath))
    if found is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fsdecode(program))
    return os.fsencode(found)


def _check_directory(path: str | None) -> None:
    if path is not None:
        if "\0" in path:
            msg = "A path cannot contain a NUL byte"
            raise InvalidInputError(msg)
        if not os.path.isdir(path):
            number = errno.ENOTDIR if os.path.exists(path) else errno.ENOENT
            raise OSError(number, os.strerror(number), path)


def _exec_error(e: OSError, program: bytes) -> Exception:
    """An error about the program or its directory stays the OSError that callers catch; others are the machine's."""
    about_files = (errno.ENOENT, errno.EACCES, errno.ENOTDIR, errno.ENOEXEC, errno.EISDIR, errno.ELOOP, errno.EPERM)
    if e.errno in about_files:
        return OSError(e.errno, os.strerror(e.errno), e.filename or os.fsdecode(program))
    if e.errno == errno.E2BIG:
        return InvalidInputError("The command and its environment are too long for this system (E2BIG)")
    return resource_error(e, "The command cannot be run")


def _command_response(command: Command, process: _core.Process) -> CommandResponse:
    end = process.end
    if end == "timeout":
        raise overdue(command, process.stdout.decode(errors="backslashreplace"))
    if end == "cancelled":
        msg = "The runtime was closed while the command ran"
        raise RuntimeClosedError(msg)
    if end == "memory":
        msg = "Out of memory while running the command"
        raise ResourceError(msg)
    return response(command, process.stdout, process.stderr, process.returncode)


def overdue(command: Command, output: str) -> CommandTimeoutError:
    """The error for a command that took too long, and was ended."""
    return CommandTimeoutError(f"Timeout ({command.timeout}s) exceeded while running command", output=output)


def response(command: Command, output: bytes, error: bytes, code: int) -> CommandResponse:
    """What came of a command that ended by itself.

    Raises:
        NonZeroExitCodeError: if its exit code has to be 0 and is not.
    """
    stdout = output.decode(errors="backslashreplace")
    stderr = error.decode(errors="backslashreplace")
    if command.check and code != 0:
        msg = f"Command {shown(command.command)} failed with exit code {code}. Stdout:\n{stdout!r}\nStderr:\n{stderr!r}"
        if command.error_msg:
            msg = f"{command.error_msg}: {msg}"
        raise NonZeroExitCodeError(msg)
    return CommandResponse(stdout=stdout, stderr=stderr, exit_code=code)
