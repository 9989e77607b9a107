"""Benchmark engine for the limit in plain Python.

It uses a terminal, `os.write`, `os.read` and a prompt mark. It has no timeouts, no proof that a command has ended, and
keeps nothing; it trusts any output that contains the mark. Other engines that drive a bash by hand use the same mark
and the same terminal mode.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import select
import shutil
import subprocess
import tempfile
import termios
import time
from dataclasses import dataclass

from .engine import GIVE_UP, Answer, Engine, is_right

__all__ = ["CHUNK", "PROMPT", "PROMPT_MARK", "RawTerminal", "plain_terminal", "read_answer"]

PROMPT = "\x1eF$?;\x1f"
"""Prompt mark for PS1."""

PROMPT_MARK = re.compile(rb"\x1eF(\d+);\x1f")
"""Pattern of the printed prompt mark; its group is the exit code."""

CHUNK = 65536
"""Maximum number of bytes of one read."""

# Source the files that any interactive bash reads, so that the cost of a start is comparable.
STARTUP = """\
[[ ! -r /etc/bash.bashrc ]] || . /etc/bash.bashrc
[[ ! -r ~/.bashrc ]] || . ~/.bashrc
unset PROMPT_COMMAND
PS2= PS1=$'\\036F$?;\\037'
"""


def plain_terminal(fd: int) -> None:
    """Set the terminal mode of the raw measurements: no echo and no output processing."""
    mode = termios.tcgetattr(fd)
    mode[1] &= ~termios.OPOST
    mode[3] &= ~termios.ECHO
    termios.tcsetattr(fd, termios.TCSANOW, mode)


def read_answer(fd: int) -> tuple[bytes, int]:
    """Read a terminal up to the next prompt mark. Blocks.

    Returns:
        the output before the mark, and the exit code.
    """
    chunks = []
    tail = b""
    while True:
        chunk = os.read(fd, CHUNK)
        chunks.append(chunk)
        tail = tail[-24:] + chunk[-24:]
        if tail.endswith(b"\x1f") and (found := PROMPT_MARK.search(tail)):
            output = b"".join(chunks)
            return output[: output.rindex(b"\x1e")], int(found[1])


def _take_terminal() -> None:
    """Make standard input the controlling terminal, so that ^C interrupts. Runs in the child."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@dataclass
class Shell:
    """Running bash and its terminal."""

    master: int
    process: subprocess.Popen[bytes]


class RawTerminal(Engine):
    """Engine with the least Python that works."""

    blocking = True

    def __init__(self) -> None:
        self.shells: dict[str, Shell] = {}
        self.bash = shutil.which("bash") or "/bin/bash"

    async def start(self) -> None:
        self.startup = tempfile.NamedTemporaryFile("w", prefix="swerex-c-bench-")
        self.startup.write(STARTUP)
        self.startup.flush()

    async def end(self) -> None:
        for key in list(self.shells):
            await self.close(key)
        self.startup.close()

    async def open(self, key: str) -> None:
        master, slave = os.openpty()
        plain_terminal(slave)
        words = [self.bash, "--noediting", "--rcfile", self.startup.name, "-i"]
        try:
            process = subprocess.Popen(
                words, stdin=slave, stdout=slave, stderr=slave, start_new_session=True, preexec_fn=_take_terminal
            )
        except BaseException:
            os.close(master)
            raise
        finally:
            os.close(slave)
        self.shells[key] = Shell(master, process)
        read_answer(master)

    async def close(self, key: str) -> None:
        shell = self.shells.pop(key)
        shell.process.kill()
        shell.process.wait()
        os.close(shell.master)

    def run_now(self, key: str, text: str) -> Answer:
        master = self.shells[key].master
        os.write(master, text.encode() + b"\n")
        return read_answer(master)

    async def begin(self, key: str, text: str) -> None:
        os.write(self.shells[key].master, text.encode() + b"\n")
        await asyncio.sleep(GIVE_UP)

    async def interrupt(self, key: str) -> None:
        os.write(self.shells[key].master, b"\x03")
        read_answer(self.shells[key].master)

    async def fleet(self, keys: list[str], text: str, count: int, until: float) -> tuple[list[float], int]:
        line, clock = text.encode() + b"\n", time.perf_counter_ns
        masters = [self.shells[key].master for key in keys]
        said, left = dict.fromkeys(masters, b""), dict.fromkeys(masters, count)
        began: dict[int, int] = {}
        samples: list[float] = []
        wrong = 0
        with select.epoll() as waiting:
            for master in masters:
                waiting.register(master, select.EPOLLIN)
                began[master] = clock()
                os.write(master, line)
            while left:
                for master, _ in waiting.poll():
                    said[master] += os.read(master, CHUNK)
                    if not (found := PROMPT_MARK.search(said[master])):
                        continue
                    samples.append((clock() - began[master]) / 1e3)
                    wrong += not is_right((said[master][: found.start()], int(found[1])))
                    said[master] = b""
                    left[master] -= 1
                    if left[master] and time.perf_counter() < until:
                        began[master] = clock()
                        os.write(master, line)
                    else:
                        del left[master]
        return samples, wrong
