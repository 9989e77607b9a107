"""Run single commands outside of sessions."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import stat
import threading
from array import array
from collections.abc import Callable, Iterable, Mapping
from itertools import compress

from swerex_c import _core
from swerex_c.engine import spawner
from swerex_c.engine.completions import current_completions
from swerex_c.engine.outcomes import UNKNOWN_STATUS, finish, resource_error, shorten, start_error, validate_seconds
from swerex_c.engine.syntax import own_environment
from swerex_c.exceptions import (
    CommandTimeoutError,
    InvalidInputError,
    NoExitCodeError,
    NonZeroExitCodeError,
    ResourceError,
    RuntimeClosedError,
    SwerexException,
)
from swerex_c.models import Command, CommandResponse
from swerex_c.utils.threads import in_thread

__all__ = [
    "LONGEST_ARGUMENT",
    "Processes",
    "as_bytes",
    "check_words",
    "encode_variables",
    "execute",
    "find_program",
    "overdue",
    "response",
]

LONGEST_ARGUMENT = 128 * 1024 - 1
"""Maximum number of bytes of one program argument on Linux (MAX_ARG_STRLEN, without the NUL byte)."""


_KEPT_MARKS = 256
"""Maximum number of marks of ended programs to keep before dropping the marks that no living process carries."""

_SWEEPS = 400
"""Maximum attempts to kill leftovers, about 4 seconds. A process that survives waits for a device in the kernel."""


def _packed(marks: Iterable[int]) -> bytes:
    return array("Q", marks).tobytes()


class Processes:
    """The running programs of one runtime, and the process marks of ended ones.

    A mark identifies the processes that a program left in the background. May be used from any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[_core.Process] = set()
        self._marks: list[int] = []
        self._room = _KEPT_MARKS
        self._starting = 0
        self._over = False

    async def start(self, begin: Callable[[], _core.Process]) -> _core.Process:
        """Start a program with `begin` and register it. If the runtime is being closed, the program is cancelled."""

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
            return await spawner.start(start, undo)
        finally:
            with self._lock:
                self._starting -= 1

    def ended(self, process: _core.Process) -> None:
        with self._lock:
            self._running.discard(process)
            self._marks.append(process.mark)
            if len(self._marks) >= self._room:
                self._marks = list(compress(self._marks, _core.living_marks(_packed(self._marks))))
                self._room = max(_KEPT_MARKS, 2 * len(self._marks))

    async def end(self) -> None:
        """Kill all running programs and their leftover processes.

        Returns when they are gone, or when leftover processes have survived about 4 seconds of attempts.
        """
        with self._lock:
            self._over = True
        while self._starting:  # `start` cancels each of them once its process exists
            await asyncio.sleep(0.001)
        with self._lock:
            running = list(self._running)
        for process in running:
            process.cancel()
        while any(not process.done for process in running):  # until each is dead, with its child processes
            await asyncio.sleep(0.001)
        with self._lock:
            marks = list(self._marks)
        for sweep in range(_SWEEPS):
            if not marks or await in_thread(_core.kill_marked, _packed(marks)) <= 0:
                break
            await asyncio.sleep(0.001 if sweep < 20 else 0.01)
        with self._lock:
            self._marks = list(set(self._marks).difference(marks))


async def execute(command: Command, output_limit: int, programs: Processes) -> CommandResponse:
    """Run a command as one of `programs`; see `LocalRuntime.execute`."""
    validate_seconds(command.timeout, "timeout")
    argv, text = _argv(command)
    queue = current_completions().core
    future = asyncio.get_running_loop().create_future()
    with spawner.used():
        process = await programs.start(lambda: _start(command, argv, text, output_limit, queue, future))
        try:
            await finish(process, future)
        finally:
            programs.ended(process)
    return _command_response(command, process)


def _start(
    command: Command, argv: list[bytes], text: bytes, output_limit: int, queue: _core.Completions, future: object
) -> _core.Process:
    try:
        if command.cwd is not None:
            _check_directory(command.cwd)
        return _core.Process(
            find_program(argv[0], os.environ if command.env is None else command.env, command.cwd),
            argv,
            encode_variables({}, own_environment()) if command.env is None else encode_variables(command.env),
            None if command.cwd is None else os.fsencode(command.cwd),
            text,
            command.merge_output_streams,
            command.timeout,
            output_limit,
            queue,
            future,
        )
    except SwerexException:
        raise
    except OSError as e:
        words = isinstance(command.command, str) and not command.shell and len(command.command.split()) > 1
        if e.errno == errno.ENOENT and words:
            why = f"{os.strerror(errno.ENOENT)} (a single string is a program: use shell=True or a list of words)"
            raise FileNotFoundError(errno.ENOENT, why, command.command) from None
        raise _exec_error(e, argv[0]) from None
    except (MemoryError, ValueError) as e:
        raise start_error(e) from e


def _check_directory(path: str) -> None:
    try:
        mode = os.stat(path).st_mode
    except ValueError as e:
        raise InvalidInputError(f"No directory can have the path {path!r}: {e}") from None
    if not stat.S_ISDIR(mode):
        raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)


def as_bytes(text: str) -> bytes:
    """Encode a text as the bytes that are passed to a program.

    Raises:
        InvalidInputError: if the text cannot be encoded.
    """
    try:
        return os.fsencode(text)
    except UnicodeEncodeError as e:
        raise InvalidInputError(f"{text!r} cannot be passed to a program: {e}") from None


def check_words(command: Command) -> list[bytes]:
    """Return the words of a command, encoded for `execve`.

    Raises:
        InvalidInputError: if the command is empty, or a word cannot be encoded or contains a NUL byte.
    """
    words = [command.command] if isinstance(command.command, str) else list(command.command)
    if not words:
        raise InvalidInputError("The command is empty")
    argv = [as_bytes(word) for word in words]
    if any(b"\0" in word for word in argv):
        raise InvalidInputError("A command cannot contain a NUL byte")
    return argv


def encode_variables(env: Mapping[str, str], inherited: Mapping[bytes, bytes] | None = None) -> list[bytes]:
    """Return the variables of a program as NAME=VALUE: `inherited` ones, replaced and extended by those of `env`.

    Raises:
        InvalidInputError: if a name is empty or has an equals sign, or a text cannot be passed to a program.
    """
    variables = dict(inherited or {})
    for name, value in env.items():
        if not name or "=" in name or "\0" in name:
            raise InvalidInputError(f"{name!r} cannot be the name of an environment variable")
        if "\0" in value:
            raise InvalidInputError(f"The environment variable {name} cannot hold a NUL byte")
        variables[as_bytes(name)] = as_bytes(value)
    return [name + b"=" + value for name, value in variables.items()]


def _argv(command: Command) -> tuple[list[bytes], bytes]:
    """Return the arguments of a command, and the content of its standard input."""
    argv = check_words(command)
    if not command.shell:
        return argv, b""
    text = b""
    if len(argv[0]) > LONGEST_ARGUMENT:  # the shell reads it from a descriptor other than its standard input
        text = b"exec 9<&-; " + argv[0]
        argv[0] = b"exec 9<&0 </dev/null; . /proc/self/fd/9"
    return [b"/bin/sh", b"-c", *argv], text


def find_program(program: bytes, env: Mapping[str, str], directory: str | None = None) -> bytes:
    """Return the path of a program. A name without a slash is searched for in the PATH of `env`.

    Relative entries of PATH are below `directory`, where the program will run.

    Raises:
        FileNotFoundError: if no directory of PATH has the program.
    """
    if b"/" in program:
        return program
    name, path = os.fsdecode(program), env.get("PATH", os.defpath)
    if directory is not None:
        path = os.pathsep.join(os.path.abspath(os.path.join(directory, each)) for each in path.split(os.pathsep))
    # The start of a file that cannot be executed raises the right error.
    found = shutil.which(name, path=path) or shutil.which(name, os.F_OK, path)
    if found is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
    return os.fsencode(found)


def _exec_error(e: OSError, program: bytes) -> Exception:
    """Return an OSError if the program or its directory is at fault, as callers expect, else the typed error."""
    about_files = (errno.ENOENT, errno.EACCES, errno.ENOTDIR, errno.ENOEXEC, errno.EISDIR, errno.ELOOP, errno.EPERM)
    if e.errno in about_files:
        return OSError(e.errno, os.strerror(e.errno), os.fsdecode(program) if e.filename is None else e.filename)
    if e.errno == errno.E2BIG:
        return InvalidInputError("The command and its environment are too long for this system (E2BIG)")
    return resource_error(e, "The command cannot be run")


def _command_response(command: Command, process: _core.Process) -> CommandResponse:
    end = process.end
    if end == "timeout":
        raise overdue(command, process.stdout.decode(errors="backslashreplace"))
    if end == "cancelled":
        raise RuntimeClosedError("The runtime was closed while the command ran")
    if end == "memory":
        raise ResourceError("Out of memory while running the command")
    code = process.returncode
    if code is None:
        msg = f"Command {shorten(command.command)} has ended. {UNKNOWN_STATUS}"
        raise NoExitCodeError(msg, output=process.stdout.decode(errors="backslashreplace"))
    return response(command, process.stdout, process.stderr, code)


def overdue(command: Command, output: str) -> CommandTimeoutError:
    """Return the error for a command that was killed at its timeout."""
    return CommandTimeoutError(f"Timeout ({command.timeout}s) exceeded while running command", output=output)


def response(command: Command, output: bytes, error: bytes, code: int) -> CommandResponse:
    """Return the response for a command that exited.

    Raises:
        NonZeroExitCodeError: if `command.check` is set and the exit code is not 0.
    """
    stdout = output.decode(errors="backslashreplace")
    stderr = error.decode(errors="backslashreplace")
    if command.check and code != 0:
        what = shorten(command.command)
        msg = f"Command {what} failed with exit code {code}. Stdout:\n{stdout!r}\nStderr:\n{stderr!r}"
        if command.error_msg:
            msg = f"{command.error_msg}: {msg}"
        raise NonZeroExitCodeError(msg)
    return CommandResponse(stdout=stdout, stderr=stderr, exit_code=code)
