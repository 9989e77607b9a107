"""Check whether the program in the foreground of a session waits for input.

/proc/PID/syscall shows the system call in which a process sleeps; see proc_pid_syscall(5).
"""

from __future__ import annotations

import contextlib
import os
import select
import struct
from collections.abc import Iterator

__all__ = ["reader_of_terminal"]

_CALLS = {
    "x86_64": {0: "read", 23: "select", 270: "pselect", 7: "poll", 271: "ppoll"},
    "aarch64": {63: "read", 72: "pselect", 73: "ppoll"},
}.get(os.uname().machine, {})
"""Numbers of the system calls that wait for input."""

_POLLFD = struct.Struct("=ihh")


def reader_of_terminal(shell: int) -> int | None:
    """Return the foreground process of a shell's terminal that waits for input from the terminal without a time limit.

    Returns None if there is none, or if that is unknown.
    """
    try:
        _, terminal, foreground = _terminal_of(shell)
    except (OSError, ValueError, IndexError):
        return None
    for pid in _family(shell):
        try:
            if _terminal_of(pid)[0] == foreground and _waits_for(pid, terminal):
                return pid
        except (OSError, ValueError, IndexError, struct.error):  # it has ended, or /proc does not show its calls
            continue
    return None


def _terminal_of(pid: int) -> tuple[int, str, int]:
    """Return the process group of a process, the path of its pseudo-terminal, and the group in its foreground."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        group, _, device, foreground = map(int, file.read().rpartition(b")")[2].split()[2:6])
    return group, f"/dev/pts/{device & 0xFF | device >> 12 & 0xFFF00}", foreground


def _family(pid: int) -> Iterator[int]:
    """Yield a process and its descendants."""
    pids = [pid]
    while pids:
        yield (pid := pids.pop())
        with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{pid}/children") as file:
            pids += map(int, file.read().split())


def _waits_for(pid: int, terminal: str) -> bool:
    """Check whether a process sleeps in a read of the terminal, or waits until the terminal alone can be read."""
    with open(f"/proc/{pid}/syscall") as file:
        number, *words = file.read().split()
    call, arguments = _CALLS.get(int(number)), [int(word, 16) for word in words]
    if call == "read":
        fd = arguments[0]
    elif call in ("select", "pselect"):
        fd = 0
        if arguments[0] != 1 or not arguments[1] or arguments[4]:
            return False
    elif call in ("poll", "ppoll"):
        forever = not arguments[2] if call == "ppoll" else arguments[2] & 0xFFFFFFFF == 0xFFFFFFFF
        if arguments[1] != 1 or not forever:
            return False
        with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
            fd, events, _ = _POLLFD.unpack(os.pread(memory.fileno(), _POLLFD.size, arguments[0]))
        if not events & select.POLLIN:
            return False
    else:
        return False
    return os.readlink(f"/proc/{pid}/fd/{fd}") in (terminal, "/dev/tty")
