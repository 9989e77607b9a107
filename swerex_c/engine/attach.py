"""Attachment of a person's terminal to a session.

The person gets an interactive bash inside the session, with the session's directory and environment. Its prompt, line
editing and job control are those of any bash. What it changes apart from files ends with it.
"""

from __future__ import annotations

import errno
import os
import select
import termios
import tty
from typing import Any

from swerex_c import _core
from swerex_c.engine.outcomes import failure
from swerex_c.exceptions import InvalidInputError, SessionBusyError

__all__ = ["attach"]

_SHELL = (
    "( modes=$(stty -g) size=$(stty size); "
    "trap 'stty \"$modes\" rows ${size% *} columns ${size#* }' EXIT; stty sane; bash -i )"
)
"""Command of the session, whose own terminal modes have no echo and no output processing."""

_CHUNK = 4096
"""Bytes to write to the person's terminal before checking for keys again."""

_TICK = 0.1
"""Seconds between checks of the size of the person's terminal: only the main thread could handle SIGWINCH."""

_HUNG_UP = 129
"""Exit code after a disconnection of the person's terminal, as of a shell that SIGHUP has ended."""


def attach(core: _core.Session, input_fd: int, output_fd: int) -> int:
    """Run an interactive bash in an idle session, on a person's terminal, until it ends. Blocks.

    If the terminal is disconnected, that bash goes on as a command of the session.

    Returns:
        the exit code of that bash, or 129 if the terminal was disconnected.

    Raises:
        InvalidInputError: if `input_fd` is no terminal.
        SessionBusyError: if a command runs in the session.
        SessionDiedError: if the session's shell has ended.
    """
    if not os.isatty(input_fd):
        raise InvalidInputError("interact() needs a terminal: use run() for commands that come from a program")
    facts = core.facts()
    if not facts["idle"] and not facts["dead"]:
        raise SessionBusyError("A command still runs in the session: interrupt it first")
    modes = termios.tcgetattr(input_fd)
    completions, news = _core.Completions(), object()
    core.attach(True)
    try:
        tty.setraw(input_fd, termios.TCSADRAIN)
        operation = core.run(_SHELL, 1, None, None, None, completions, news, news, 0)
        if not _follow(core, operation, completions, input_fd, output_fd):
            return _HUNG_UP
    finally:
        core.attach(False)
        try:
            termios.tcsetattr(input_fd, termios.TCSADRAIN, modes)
        except termios.error:
            pass  # it was disconnected
    if operation.end != "done":
        raise failure(operation, "bash -i")
    return operation.code


def _follow(
    core: _core.Session, operation: _core.Operation, completions: _core.Completions, input_fd: int, output_fd: int
) -> bool:
    """Pass keys and output on until the operation ends. Returns False if the person's terminal is disconnected."""
    size: Any = None
    keys = output = b""
    while True:
        ended = operation.done
        output = output or operation.take()
        if ended and not output:
            return True
        if keys and core.type(keys):  # not while the shell is only starting
            keys = b""
        events = {completions.fileno(): select.POLLIN, input_fd: 0 if keys else select.POLLIN}
        if output:
            events[output_fd] = events.get(output_fd, 0) | select.POLLOUT
        poll = select.poll()
        for fd, event in events.items():
            poll.register(fd, event)
        ready = dict(poll.poll(_TICK * 1000))
        if completions.fileno() in ready:
            completions.take()
        try:
            if size != (size := termios.tcgetwinsize(input_fd)) and all(size):
                core.resize(*size)
            if ready.get(input_fd, 0) & ~select.POLLOUT and not keys:
                keys = os.read(input_fd, 65536)
                if not keys:
                    return False
            if ready.get(output_fd, 0) & ~select.POLLIN and output:
                output = output[os.write(output_fd, output[:_CHUNK]) :]
        except BlockingIOError:
            continue
        except (OSError, termios.error) as error:
            if error.args[0] != errno.EIO:
                raise
            return False
