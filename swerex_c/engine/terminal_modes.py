"""Modes of a person's terminal and of the session's terminal attached to it."""

from __future__ import annotations

import os
import termios
from typing import Any

from swerex_c.exceptions import ResourceError

__all__ = [
    "CC",
    "LFLAG",
    "OFLAG",
    "Modes",
    "at_prompt",
    "changed",
    "copied",
    "of_commands",
    "open_terminal",
    "raw",
    "showing_rest",
    "terminal_path",
]

Modes = list[Any]
"""Terminal modes as returned by `termios.tcgetattr`."""

IFLAG, OFLAG, CFLAG, LFLAG, ISPEED, OSPEED, CC = range(7)
"""Indexes of the modes."""


def open_terminal(pid: int) -> int:
    """Open the controlling terminal of a process, even if it has closed its own.

    Raises:
        ResourceError: if it cannot be opened.
    """
    try:
        return os.open(terminal_path(pid), os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    except (OSError, ValueError, IndexError) as e:
        msg = f"The terminal of the session cannot be opened: {e}"
        raise ResourceError(msg, errno=getattr(e, "errno", None)) from e


def terminal_path(pid: int) -> str:
    """Return the path of the controlling terminal of a process, which is a pseudo-terminal.

    Raises:
        OSError, ValueError, IndexError: if there is no such process.
    """
    with open(f"/proc/{pid}/stat", "rb") as file:
        number = int(file.read().rpartition(b")")[2].split()[4])
    return f"/dev/pts/{number & 0xFF | number >> 12 & 0xFFF00}"


def copied(modes: Modes) -> Modes:
    """Return the same modes in a new list."""
    return [*modes[:CC], list(modes[CC])]


def at_prompt(modes: Modes) -> Modes:
    """Return the modes without the suspend and quit keys, as at a prompt."""
    modes = copied(modes)
    modes[CC][termios.VSUSP] = modes[CC][termios.VQUIT] = b"\0"
    return modes


def raw(modes: Modes) -> Modes:
    """Return the modes for a running command, which gets every key."""
    modes = copied(modes)
    modes[IFLAG] = modes[IFLAG] & termios.IGNBRK
    modes[OFLAG] &= ~termios.OPOST
    modes[CFLAG] = modes[CFLAG] & ~(termios.CSIZE | termios.PARENB) | termios.CS8
    modes[LFLAG] &= ~(termios.ECHO | termios.ECHONL | termios.ICANON | termios.ISIG | termios.IEXTEN)
    modes[CC][termios.VMIN], modes[CC][termios.VTIME] = 1, 0
    return modes


def showing_rest(modes: Modes) -> Modes:
    """Return the modes while an ended command's output is shown: ^C is ours."""
    modes = copied(modes)
    modes[OFLAG] &= ~termios.OPOST
    modes[LFLAG] &= ~termios.ECHO
    return modes


def of_commands(sessions: Modes, persons: Modes | None) -> Modes:
    """Return ordinary modes with the person's keys for the session's terminal.

    Args:
        sessions: the modes that the engine keeps.
        persons: the modes of the person's terminal; None for a pipe, whose commands get the engine's modes.
    """
    modes = copied(sessions)
    if persons is not None:
        modes[OFLAG] |= termios.OPOST | termios.ONLCR
        modes[LFLAG] |= termios.ECHO | termios.ECHOE | termios.ECHOK | termios.ECHOCTL | termios.ECHOKE
        modes[CC] = [
            ours if i in (termios.VMIN, termios.VTIME) else key
            for i, (key, ours) in enumerate(zip(persons[CC], sessions[CC], strict=True))
        ]
    return modes


def changed(base: Modes, before: Modes, after: Modes) -> Modes:
    """Return the base modes with the differences between `before` and `after` applied."""
    modes = copied(base)
    for i in (IFLAG, OFLAG, CFLAG, LFLAG):
        modes[i] = base[i] ^ before[i] ^ after[i]
    modes[OFLAG] &= ~termios.OPOST
    modes[CC] = [old if key == now else now for old, key, now in zip(base[CC], before[CC], after[CC], strict=True)]
    return modes
