"""What an engine is to the benchmarks: the core's, and what only some of their rows ask."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from measuring.engine import Engine as BaseEngine
from measuring.pty import PROMPT

__all__ = ["BARE_ARGUMENTS", "Engine", "Place", "bare_environment", "free_port"]

BARE_ARGUMENTS = ["--noprofile", "--norc", "--noediting", "-i"]

Place = dict[str, Any]
"""Where the shells are: `port`; or `unix`, a path; or `command`, a program whose standard streams are the server; or
`image` and `container`, the one to start and one that runs; empty for here."""


def bare_environment() -> dict[str, str]:
    """Return the environment for shells that are driven by hand: our prompt, nothing that prints beside it."""
    environment = dict(os.environ, PS1=PROMPT, PS2="", TERM="dumb")
    environment.pop("PROMPT_COMMAND", None)
    return environment


class Engine(BaseEngine):
    """One way to run commands. The rows select the engines, so unsupported operations are not called."""

    package = ""
    """What a caller imports, for the row about imports."""

    rest_seconds = 0.0
    """How long a session without a command keeps open files that it needs for commands only."""

    async def open_with(self, key: str, files: list[str]) -> None:
        """Open a session that reads these startup files."""
        raise NotImplementedError

    async def ready(self) -> None:
        """Return when all shells that are started ahead are there."""
        raise NotImplementedError

    async def run_bounded(self, key: str, text: str) -> tuple[str, int | None, int]:
        """Run a command, keeping a megabyte at most; the last is how many bytes are left out in the middle."""
        raise NotImplementedError

    async def stream(self, key: str, text: str, take: Callable[[str], None]) -> int | None:
        """Run a command and give its output to `take` as it comes; return the exit code."""
        raise NotImplementedError

    async def wait_for(self, key: str, text: str, patterns: list[str]) -> str:
        """Run a command until one of the patterns is seen; return the pattern."""
        raise NotImplementedError

    async def interrupt_running(self, key: str, text: str) -> float:
        """Interrupt a command while its caller waits for it; return the microseconds until that caller was answered."""
        raise NotImplementedError

    # ---- of engines whose shells are elsewhere ----

    async def connect(self, place: Place, key: str) -> None:
        """Connect, before anything else. key: what a server wants to be told."""
        raise NotImplementedError

    async def alive(self) -> bool:
        """Check whether the other end is alive."""
        raise NotImplementedError

    async def move(self, how: str, path: str, copy: str, content: str) -> str | None:
        """Move the file `path` to `copy` ("upload" to the other end, "download" from there), or a string: "write"
        makes `copy` of the content, "read" returns what is in `path`; None then where only bytes were moved."""
        raise NotImplementedError

    async def lay(self, path: str) -> None:
        """Prepare the file to be read at the other end. Nothing to do where that sees this machine's files."""

    async def copied(self, copy: str) -> bytes | None:
        """Return what is in the copy that was made; None where only bytes were moved."""
        return Path(copy).read_bytes()

    def took(self) -> float | None:
        """Return the microseconds of the last call where they are not those that pass here."""
        return None


def free_port() -> int:
    """Return a port that nothing listened on a moment ago."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])
