"""Exit codes of `swerex-c`, and its end with a message."""

from __future__ import annotations

import sys
from enum import IntEnum
from typing import NoReturn

import typer

from swerex_c.utils.visible import visible

__all__ = ["Exit", "fail"]


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
    print(f"swerex-c: {visible(message)}", file=sys.stderr)
    raise typer.Exit(code)
