"""A bash that is driven by hand: a mark in its prompt, by which the end of a command is told. Nothing is proved by it.

`benchmarks/` has this file by its path, for interpreters without the package: it needs the standard library only.
"""

from __future__ import annotations

import os
import re
import termios

__all__ = ["CHUNK", "FENCE", "PROMPT", "plain_terminal", "read_answer"]

PROMPT = "\x1eF$?;\x1f"
"""For PS1."""

FENCE = re.compile(rb"\x1eF(\d+);\x1f")
"""What it becomes, with the exit code."""

CHUNK = 65536
"""Bytes of one read."""


def plain_terminal(fd: int) -> None:
    """The terminal mode of all that is measured by hand: no echo and no output processing."""
    mode = termios.tcgetattr(fd)
    mode[1] &= ~termios.OPOST
    mode[3] &= ~termios.ECHO
    termios.tcsetattr(fd, termios.TCSANOW, mode)


def read_answer(fd: int) -> tuple[bytes, int]:
    """Read a terminal up to the next mark: the output before it, and the exit code. Blocks."""
    chunks = []
    tail = b""
    while True:
        chunk = os.read(fd, CHUNK)
        chunks.append(chunk)
        tail = tail[-24:] + chunk[-24:]
        if tail.endswith(b"\x1f") and (found := FENCE.search(tail)):
            output = b"".join(chunks)
            return output[: output.rindex(b"\x1e")], int(found[1])
