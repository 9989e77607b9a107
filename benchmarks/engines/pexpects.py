"""pexpect: as a careful user tunes it, as it comes, and its own wrapper for shells."""

from __future__ import annotations

import asyncio
import importlib
import signal
from typing import Any

from engines.base import BARE_ARGUMENTS, Engine, bare_environment
from measuring.engine import GIVE_UP, Answer
from measuring.pty import CHUNK, PROMPT_MARK, plain_terminal

__all__ = ["Pexpect", "PlainPexpect", "Replwrap"]


class Pexpect(Engine):
    """pexpect as a careful user tunes it: no delays, a fence in the prompt, a small search window."""

    threads = True

    def __init__(self) -> None:
        self.pexpect: Any = importlib.import_module("pexpect")
        self.sessions: dict[str, Any] = {}
        self.fence = [PROMPT_MARK]

    async def open(self, key: str) -> None:
        tuned = {"timeout": None, "maxread": CHUNK, "searchwindowsize": 200}
        child = self.pexpect.spawn("bash", BARE_ARGUMENTS, env=bare_environment(), echo=False, **tuned)
        child.delaybeforesend = None
        child.delayafterread = None
        plain_terminal(child.child_fd)
        self.sessions[key] = child
        child.expect_list(self.fence)

    async def close(self, key: str) -> None:
        child = self.sessions.pop(key)
        child.kill(signal.SIGKILL)
        child.wait()
        child.ptyproc.delayafterclose = 0
        child.close()

    def run_now(self, key: str, text: str) -> Answer:
        child = self.sessions[key]
        child.sendline(text)
        child.expect_list(self.fence)
        return child.before, int(child.match.group(1))

    async def wait_for(self, key: str, text: str, patterns: list[str]) -> str:
        child = self.sessions[key]
        child.sendline(text)
        index: int = child.expect([*patterns, PROMPT_MARK.pattern])
        if index < len(patterns):
            child.expect_list(self.fence)
            return patterns[index]
        return ""

    async def begin(self, key: str, text: str) -> None:
        self.sessions[key].sendline(text)
        await asyncio.sleep(GIVE_UP)

    async def interrupt(self, key: str) -> None:
        self.sessions[key].sendintr()
        self.sessions[key].expect_list(self.fence)


class PlainPexpect(Pexpect):
    """pexpect as it comes: 50 ms before each line, small reads, all of what was read searched again and again."""

    async def open(self, key: str) -> None:
        child = self.pexpect.spawn("bash", BARE_ARGUMENTS, env=bare_environment(), echo=False, timeout=None)
        plain_terminal(child.child_fd)
        self.sessions[key] = child
        child.expect(PROMPT_MARK.pattern)

    def run_now(self, key: str, text: str) -> Answer:
        child = self.sessions[key]
        child.sendline(text)
        child.expect(PROMPT_MARK.pattern)
        return child.before, int(child.match.group(1))


class Replwrap(Engine):
    """`pexpect.replwrap.bash()`. It has no exit codes, so a second line prints them."""

    threads = True

    def __init__(self) -> None:
        self.make: Any = importlib.import_module("pexpect.replwrap").bash
        self.sessions: dict[str, Any] = {}

    async def open(self, key: str) -> None:
        self.sessions[key] = self.make()

    async def close(self, key: str) -> None:
        child = self.sessions.pop(key).child
        child.kill(signal.SIGKILL)
        child.wait()
        child.ptyproc.delayafterclose = 0
        child.close()

    def run_now(self, key: str, text: str) -> Answer:
        said = self.sessions[key].run_command(text + "; echo F$?", timeout=None)
        output, _, code = said.rstrip().rpartition("F")
        return output, int(code)
