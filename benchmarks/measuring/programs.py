"""Benchmark engine that calls `subprocess.run` for each command.

Code without a persistent shell runs its commands like this.
"""

from __future__ import annotations

import subprocess

from .engine import Answer, Engine

__all__ = ["Programs"]


def _run(words: list[str]) -> Answer:
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True)
    return done.stdout, done.returncode


class Programs(Engine):
    """Engine with a new shell for each command. State is not kept between commands."""

    blocking = True
    threads = True

    async def open(self, key: str) -> None:
        """Do nothing: there is no shell yet."""

    async def close(self, key: str) -> None:
        """Do nothing: there is no shell left."""

    def run_now(self, key: str, text: str) -> Answer:
        return _run(["bash", "-c", text])

    async def execute(self, text: str) -> Answer:
        return _run(["sh", "-c", text])
