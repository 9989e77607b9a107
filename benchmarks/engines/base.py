"""What an engine is to the benchmark: something that keeps shells, named by keys, and runs commands in them."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shared import of_bench

__all__ = [
    "BARE_ARGUMENTS",
    "CHUNK",
    "FENCE",
    "SLEEP_BEFORE_INTERRUPT",
    "Answer",
    "Contender",
    "Place",
    "bare_environment",
    "free_port",
    "is_empty",
    "plain_terminal",
    "read_answer",
]

_fence = of_bench("fence")
FENCE, CHUNK = _fence.FENCE, _fence.CHUNK
plain_terminal, read_answer = _fence.plain_terminal, _fence.read_answer

BARE_ARGUMENTS = ["--noprofile", "--norc", "--noediting", "-i"]
SLEEP_BEFORE_INTERRUPT = 0.2

Answer = tuple[str | bytes, int | None]

Place = dict[str, Any]
"""Where the shells are: `port`; or `unix`, a path; or `command`, a program whose standard streams are the server; or
`image` and `container`, the one to start and one that runs; empty for here."""


def bare_environment() -> dict[str, str]:
    """The environment for shells that are driven by hand: our prompt, nothing that prints beside it."""
    environment = dict(os.environ, PS1=_fence.PROMPT, PS2="", TERM="dumb")
    environment.pop("PROMPT_COMMAND", None)
    return environment


class Contender:
    """What a workload needs.  `key` names a session."""

    package = ""
    """What a caller imports, for the row about imports."""

    threads = False
    """Whether many sessions at once need a thread each."""

    def _lacks(self, what: str) -> LookupError:
        return LookupError(f"{type(self).__name__} does not {what}")

    rest_seconds = 0.0
    """How long a session without a command keeps open files that it needs for commands only."""

    loop_factory: Callable[[], Any] | None = None
    """What makes the event loop; None is asyncio's own."""

    async def open(self, key: str) -> None:
        raise self._lacks("open")

    async def open_with(self, key: str, files: list[str]) -> None:
        """Opens a session that reads these startup files."""
        raise self._lacks("read files for a session")

    async def ready(self) -> None:
        """Returns when all shells that are started ahead are there."""
        raise self._lacks("start shells ahead")

    async def close(self, key: str) -> None:
        raise self._lacks("close")

    async def run(self, key: str, text: str) -> Answer:
        return self.run_now(key, text)

    def run_now(self, key: str, text: str) -> Answer:
        """The same without a loop, for contenders with `threads`."""
        raise self._lacks("run a command")

    async def run_bounded(self, key: str, text: str) -> tuple[str, int | None, int]:
        """The same, keeping a megabyte at most; the last is how many bytes are left out in the middle."""
        raise self._lacks("keep a part of an output")

    async def stream(self, key: str, text: str, take: Callable[[str], None]) -> int | None:
        """Runs text and gives its output to `take` as it comes; returns the exit code."""
        raise self._lacks("stream")

    async def wait_for(self, key: str, text: str, patterns: list[str]) -> str:
        """Runs text until one of the patterns is seen; returns the pattern."""
        raise self._lacks("wait for patterns")

    async def begin(self, key: str, text: str) -> None:
        """Runs text that does not end; returns after SLEEP_BEFORE_INTERRUPT, when a caller has given up on it."""
        raise self._lacks("begin")

    async def interrupt(self, key: str) -> None:
        raise self._lacks("interrupt")

    async def interrupt_running(self, key: str, text: str) -> float:
        """Interrupts text while its caller still waits for it; returns the seconds until that caller was answered."""
        raise self._lacks("interrupt what runs")

    async def execute(self, text: str) -> Answer | None:
        """None where nothing was carried out, only as many bytes moved."""
        raise self._lacks("execute")

    # ---- of engines whose shells are elsewhere ----

    async def connect(self, place: Place, key: str) -> None:
        """Called once, before anything else. key: what a server wants to be told."""
        raise self._lacks("connect")

    async def alive(self) -> bool:
        raise self._lacks("say whether it is alive")

    async def move(self, how: str, path: str, copy: str, content: str) -> str | None:
        """Moves the file `path` to `copy` ("upload" to the other end, "download" from there), or a string: "write"
        makes `copy` of the content, "read" returns what is in `path`; None then where only bytes were moved."""
        raise self._lacks("move files")

    async def lay(self, path: str) -> None:
        """Called before the file is read at the other end. Nothing to do where that sees this machine's files."""

    async def copied(self, copy: str) -> bytes | None:
        """What is in the copy that was made; None where only bytes were moved."""
        return Path(copy).read_bytes()

    def took(self) -> float | None:
        """The microseconds of the last call where they are not those that pass here."""
        return None


def is_empty(answer: Answer | None) -> bool:
    return answer is not None and not answer[0] and answer[1] == 0


def free_port() -> int:
    """One that nobody listened on a moment ago."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])
