"""A bash on pipes."""

from __future__ import annotations

import asyncio
from typing import Any

from engines.base import Engine
from measuring.engine import Answer

__all__ = ["Pipes"]


class Pipes(Engine):
    """asyncio and a bash on pipes, by hand: no terminal, no interrupt, the exit code by a second line."""

    def __init__(self) -> None:
        self.sessions: dict[str, Any] = {}

    async def open(self, key: str) -> None:
        self.sessions[key] = await asyncio.create_subprocess_exec(
            "bash",
            "--noprofile",
            "--norc",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            limit=1 << 28,
        )
        await self.run(key, "true")

    async def close(self, key: str) -> None:
        process = self.sessions.pop(key)
        process.stdin.close()
        await process.wait()

    async def run(self, key: str, text: str) -> Answer:
        process = self.sessions[key]
        process.stdin.write(text.encode() + b"\nprintf '\\036F%d;\\037' $?\n")
        answer: bytes = await process.stdout.readuntil(b"\x1f")
        head = answer.rindex(b"\x1e")
        return answer[:head], int(answer[head + 2 : -2])
