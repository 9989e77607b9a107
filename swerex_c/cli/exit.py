"""Exit codes of `swerex-c`, its end with a message, and its end when its output cannot be written."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterator
from enum import IntEnum
from typing import NoReturn

from swerex_c.utils.visible import visible

__all__ = ["Exit", "drop_output", "exit_on_lost_output", "fail", "open_closed_streams"]


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


def fail(message: str, code: int) -> NoReturn:
    """Print a message on standard error, and exit with this code."""
    import typer

    print(f"swerex-c: {visible(message)}", file=sys.stderr)
    raise typer.Exit(code)


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


def drop_output() -> None:
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
        drop_output()
        print(f"{program}: the output cannot be written: {os.strerror(error.errno)}", file=sys.stderr)
        sys.exit(Exit.FAILED)
