"""Bash scripts that find, interrupt and end the processes of a sandbox.

Every program started in a sandbox, and everything that it starts, has `MARK` in its environment: `RUNTIME.PART`, two
numbers of 24 hexadecimal digits. The first number belongs to the runtime, the second to a session or a single command.
The mark finds the whole process tree. In a container nothing else ties it together: not the process group (a shell
gives each job its own), not the session (setsid), not the parents (double forks), and the client that started the tree
ends alone. A process can also lose its environment, by `env -i`, `su`, or by writing its title over it. `TAG_LIMITS`
therefore writes the same numbers into resource limits that no kernel enforces, and every descendant of a found process
counts as found too. A process escapes only if it has cleared its environment, got new limits, and lost its parents.

The scripts need bash 4.4 and /proc, and no other program. A process without one of these signs gets no signal. Their
arguments, output and exit codes are described in their files.
"""

from __future__ import annotations

import secrets

from swerex_c.utils.shell_script import read_script

__all__ = [
    "TAG_LIMITS",
    "END_MARKED",
    "FIND_SHELL",
    "INTERRUPT_FOREGROUND",
    "KILL_FOREGROUND",
    "MARK",
    "SHELL_READS",
    "new_mark",
]

MARK = "SWEREX_C_MARK"
"""Environment variable that carries the mark in every program that we start in the sandbox."""

_SCRIPTS = "sandbox/scripts/"

TAG_LIMITS = read_script(_SCRIPTS + "tag_limits.bash")
END_MARKED = read_script(_SCRIPTS + "end_marked.bash")
FIND_SHELL = read_script(_SCRIPTS + "find_shell.bash")
SHELL_READS = read_script(_SCRIPTS + "shell_reads.bash")
INTERRUPT_FOREGROUND = read_script(_SCRIPTS + "interrupt_foreground.bash")
KILL_FOREGROUND = read_script(_SCRIPTS + "kill_foreground.bash")


def new_mark(runtime: str = "") -> str:
    """Return a new mark for a runtime, or for a part of the runtime with this mark."""
    number = secrets.token_hex(12)
    return f"{runtime}.{number}" if runtime else number
