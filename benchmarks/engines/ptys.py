"""ptyprocess, with reading and writing by hand."""

from __future__ import annotations

import asyncio
import importlib
import os
import re
import signal
from typing import Any

from engines.base import BARE_ARGUMENTS, Engine, bare_environment
from measuring.engine import GIVE_UP, Answer
from measuring.pty import CHUNK, PROMPT_MARK, plain_terminal, read_answer

__all__ = ["Ptyprocess"]


class Ptyprocess(Engine):
    """ptyprocess for the start, then os.write and os.read by hand: the least Python that works."""

    threads = True

    def __init__(self) -> None:
        self.spawn: Any = importlib.import_module("ptyprocess").PtyProcess.spawn
        self.sessions: dict[str, Any] = {}

    async def open(self, key: str) -> None:
        process = self.spawn(["bash", *BARE_ARGUMENTS], env=bare_environment(), echo=False)
        process.delayafterclose = 0  # else a tenth of a second for each session that is closed
        plain_terminal(process.fd)
        self.sessions[key] = process
        read_answer(process.fd)

    async def close(self, key: str) -> None:
        process = self.sessions.pop(key)
        process.kill(signal.SIGKILL)
        process.wait()
        process.close()

    def run_now(self, key: str, text: str) -> Answer:
        fd = self.sessions[key].fd
        os.write(fd, text.encode() + b"\n")
        return read_answer(fd)

    async def wait_for(self, key: str, text: str, patterns: list[str]) -> str:
        # One alternation, searched in each chunk with 200 bytes of what came before.
        wanted = re.compile("|".join(f"(?P<p{i}>{p})" for i, p in enumerate(patterns)).encode(), re.DOTALL)
        fd = self.sessions[key].fd
        os.write(fd, text.encode() + b"\n")
        window = b""
        while True:
            window = window[-200:] + os.read(fd, CHUNK)
            found = wanted.search(window)
            if found and found.lastgroup:
                if not PROMPT_MARK.search(window):
                    read_answer(fd)
                return patterns[int(found.lastgroup[1:])]

    async def begin(self, key: str, text: str) -> None:
        os.write(self.sessions[key].fd, text.encode() + b"\n")
        await asyncio.sleep(GIVE_UP)

    async def interrupt(self, key: str) -> None:
        self.sessions[key].sendintr()
        read_answer(self.sessions[key].fd)
