"""Exit codes of `swerex-c`, and its end after an error or when its output cannot be written."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import NoReturn

from swerex_c.exceptions import BashIncorrectSyntaxError, CommandTimeoutError, SwerexException
from swerex_c.utils.visible import visible

__all__ = ["Exit", "Result", "exit_on_errors", "exit_on_lost_output", "fail", "open_closed_streams"]


class Exit(IntEnum):
    """Exit codes of `swerex-c` itself, as in shells and timeout(1).

    They apply if it does not pass on the exit code of a command.
    """

    FAILED = 1
    USAGE = 2
    TIMED_OUT = 124
    CANNOT_RUN = 126
    NOT_FOUND = 127
    BROKEN_PIPE = 141


@dataclass
class Result:
    """The result of `swerex-c exec`, which `--json` prints."""

    output: str = ""
    exit_code: int | None = None
    timed_out: bool = False
    seconds: float = 0.0
    """Seconds that the command took, without the start of its session."""

    failure_reason: str = ""
    error: str = ""


def fail(message: str, code: int, program: str = "swerex-c") -> NoReturn:
    """Print a message on standard error, and exit with this code."""
    sys.stderr.write(f"{program}: {visible(message)}\n")  # print may write the newline later, behind a line of the log
    raise SystemExit(code)


@contextlib.contextmanager
def exit_on_errors(result: Result | None = None) -> Iterator[None]:
    """Convert the errors of a session to a line on standard error and an exit code.

    Args:
        result: set to the error, instead of the line.
    """
    try:
        yield
    except BrokenPipeError:  # typer would make it 1
        _drop_output()
        raise SystemExit(Exit.BROKEN_PIPE) from None
    except BashIncorrectSyntaxError as error:
        said, code = str(error.extra_info.get("bash_stderr") or error).rstrip(), Exit.USAGE
    except CommandTimeoutError as error:  # its text quotes the command as it was run, with its input
        said, code = str(error).partition(" while running command ")[0], Exit.TIMED_OUT
    except (SwerexException, TimeoutError, ConnectionError, ImportError) as error:
        said, code = str(error) or "the target does not answer in time", Exit.FAILED
    else:
        return
    if result is None:
        fail(said, code)
    result.error, result.timed_out = said, code == Exit.TIMED_OUT
    raise SystemExit(code)


def open_closed_streams() -> None:
    """Open the standard streams that the process was started without.

    The input is empty then, and errors are lost. A write to the output fails with EBADF, as in other programs.
    """
    for fd, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_RDWR if name == "stderr" else os.O_RDONLY)
            if opened != fd:
                os.dup2(opened, fd)
                os.close(opened)
            setattr(sys, name, open(fd, mode, closefd=False))


def _drop_output() -> None:
    """Discard what is still to be written; at exit, Python would report an error for it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


@contextlib.contextmanager
def exit_on_lost_output(program: str = "swerex-c") -> Iterator[None]:
    """Flush the output at the end, and exit with a message if it cannot be written.

    Args:
        program: name of the command in the message.
    """
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except OSError as error:
        if error.errno not in (errno.EBADF, errno.EIO, errno.ENOSPC, errno.EFBIG, errno.EDQUOT):
            raise
        _drop_output()
        fail(f"the output cannot be written: {os.strerror(error.errno)}", Exit.FAILED, program)
