"""Single commands outside of all sessions."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Any

from swerex_c.exceptions import (
    CommandTimeoutError,
    InvalidInputError,
    NonZeroExitCodeError,
    ResourceError,
    RuntimeClosedError,
)
from swerex_c.runtime._answers import _resource_error, abstract_module

if TYPE_CHECKING:
    from swerex_c.runtime import abstract

_LONGEST_ARGUMENT = 128 * 1024 - 1
"""Linux takes no single argument of a program beyond this (MAX_ARG_STRLEN)."""


def _fs(text: str) -> bytes:
    try:
        return os.fsencode(text)
    except UnicodeEncodeError as e:
        msg = f"{text!r} cannot be given to a program: {e}"
        raise InvalidInputError(msg) from None


def _argv(command: abstract.Command) -> tuple[list[bytes], int | None]:
    """The arguments of a command, and a descriptor to keep open while it runs (None: there is none)."""
    words = [command.command] if isinstance(command.command, str) else list(command.command)
    if not words:
        msg = "The command is empty"
        raise InvalidInputError(msg)
    argv = [_fs(word) for word in words]
    if any(b"\0" in word for word in argv):
        msg = "A command cannot contain a NUL byte"
        raise InvalidInputError(msg)
    if not command.shell:
        return argv, None
    keep = None
    if len(argv[0]) > _LONGEST_ARGUMENT:  # the kernel would refuse it as an argument; the shell can read it
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
        import errno

        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fsdecode(program))
    return os.fsencode(found)


def _check_directory(path: str | None) -> None:
    if path is not None:
        if "\0" in path:
            msg = "A path cannot contain a NUL byte"
            raise InvalidInputError(msg)
        if not os.path.isdir(path):
            import errno

            number = errno.ENOTDIR if os.path.exists(path) else errno.ENOENT
            raise OSError(number, os.strerror(number), path)


def _exec_error(e: OSError, program: bytes) -> Exception:
    """An error about the program or its directory stays the OSError that callers catch; others are about the machine."""
    import errno

    about_files = (errno.ENOENT, errno.EACCES, errno.ENOTDIR, errno.ENOEXEC, errno.EISDIR, errno.ELOOP, errno.EPERM)
    if e.errno in about_files:
        return OSError(e.errno, os.strerror(e.errno), e.filename or os.fsdecode(program))
    if e.errno == errno.E2BIG:
        return InvalidInputError("The command and its environment are too long for this system (E2BIG)")
    return _resource_error(e, "The command cannot be run")


def _command_response(command: abstract.Command, process: Any) -> abstract.CommandResponse:
    stdout = process.stdout.decode(errors="backslashreplace")
    stderr = process.stderr.decode(errors="backslashreplace")
    end = process.end
    if end == "timeout":
        msg = f"Timeout ({command.timeout}s) exceeded while running command"
        raise CommandTimeoutError(msg, output=stdout)
    if end == "cancelled":
        msg = "The runtime was closed while the command ran"
        raise RuntimeClosedError(msg)
    if end == "memory":
        msg = "Out of memory while running the command"
        raise ResourceError(msg)
    code = process.returncode
    if command.check and code != 0:
        msg = f"Command {command.command!r} failed with exit code {code}. Stdout:\n{stdout!r}\nStderr:\n{stderr!r}"
        if command.error_msg:
            msg = f"{command.error_msg}: {msg}"
        raise NonZeroExitCodeError(msg)
    return abstract_module().CommandResponse(stdout=stdout, stderr=stderr, exit_code=code)
