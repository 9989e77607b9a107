"""What an engine is to the bench: something that keeps shells, named by keys, and runs commands in them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["GIVE_UP", "Answer", "Engine", "is_right", "make"]

Answer = tuple[str | bytes, int | None]
"""Output and exit code."""

GIVE_UP = 0.05
"""Seconds after which the caller of `sleep 100` has waited long enough, and interrupts it."""


def is_right(answer: Answer, output: str = "") -> bool:
    """Whether a command has succeeded, with this output and no other."""
    said = answer[0].decode(errors="replace") if isinstance(answer[0], bytes) else answer[0]
    return (said, answer[1]) == (output, 0)


class Engine:
    """One way to run commands. What it cannot do is not asked of it: `rows` says which row has which engines."""

    blocking = False
    """Whether commands hold the event loop up, so that a signal has to end the process without its help."""

    async def start(self) -> None:
        """Do what has to be done once."""

    async def end(self) -> None:
        """End every shell."""

    async def open(self, key: str) -> None:
        """Start a shell, and wait until it takes commands."""
        raise NotImplementedError

    async def close(self, key: str) -> None:
        """End a shell."""
        raise NotImplementedError

    async def run(self, key: str, text: str) -> Answer:
        """Run a command in a shell."""
        raise NotImplementedError

    async def execute(self, text: str) -> Answer:
        """Run a command without a shell that stays."""
        raise NotImplementedError

    async def interrupt(self, key: str) -> float:
        """Run `sleep 100`, give it up after `GIVE_UP`, interrupt it; microseconds until the shell was free again."""
        raise NotImplementedError

    async def fleet(self, keys: list[str], text: str, until: float) -> tuple[int, int]:
        """Run a command in all shells at once, again and again until that time of `time.perf_counter`, in each at least
        once; how often it was run, and how many of the answers were wrong."""
        raise NotImplementedError

    async def place(self, path: str) -> str:
        """Bring a file of this machine to where the commands are; its path there."""
        return path


def make(kind: str, options: dict[str, Any]) -> Engine:
    """The engine of this kind. Raises what its library raises if it cannot be had."""
    if kind == "pty":
        from swerex_c.bench.pty import RawTerminal

        return RawTerminal()
    if kind == "programs":
        from swerex_c.bench.programs import Programs

        return Programs()
    from swerex_c.bench.runtime import Original, Ours

    kinds: dict[str, Callable[..., Engine]] = {"ours": Ours, "original": Original}
    return kinds[kind](**options)
