"""The limit that needs no compiler: a terminal, `os.write` and `os.read`, and a mark in the prompt.

No timeouts, no proof that a command has ended, nothing kept; any output that has the mark in it would be believed.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import select
import shutil
import subprocess
import tempfile
import termios
import time
from dataclasses import dataclass

from swerex_c.bench.engines import GIVE_UP, Answer, Engine, is_right
from swerex_c.bench.fence import CHUNK, FENCE, plain_terminal, read_answer

__all__ = ["RawTerminal"]

# The same files as any interactive bash reads, so that starting one costs the same.
STARTUP = """\
[[ ! -r /etc/bash.bashrc ]] || . /etc/bash.bashrc
[[ ! -r ~/.bashrc ]] || . ~/.bashrc
unset PROMPT_COMMAND
PS2= PS1=$'\\036F$?;\\037'
"""


def _take_terminal() -> None:
    """In the child: its standard input becomes the terminal from which it is interrupted."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@dataclass
class Shell:
    """A bash of ours."""

    master: int
    process: subprocess.Popen[bytes]


class RawTerminal(Engine):
    """The least Python that works."""

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

    async def run(self, key: str, text: str) -> Answer:
        master = self.shells[key].master
        os.write(master, text.encode() + b"\n")
        return read_answer(master)

    async def interrupt(self, key: str) -> float:
        master = self.shells[key].master
        os.write(master, b"sleep 100\n")
        await asyncio.sleep(GIVE_UP)
        start = time.perf_counter()
        os.write(master, b"\x03")
        read_answer(master)
        return (time.perf_counter() - start) * 1e6

    async def fleet(self, keys: list[str], text: str, until: float) -> tuple[int, int]:
        line = text.encode() + b"\n"
        parts = {self.shells[key].master: b"" for key in keys}
        count = wrong = 0
        with select.epoll() as waiting:
            for master in parts:
                waiting.register(master, select.EPOLLIN)
                os.write(master, line)
            left = len(parts)
            while left:
                for master, _ in waiting.poll():
                    said = parts[master] + os.read(master, CHUNK)
                    if not (found := FENCE.search(said)):
                        parts[master] = said
                        continue
                    parts[master] = b""
                    count += 1
                    wrong += not is_right((said[: found.start()], int(found[1])))
                    if time.perf_counter() < until:
                        os.write(master, line)
                    else:
                        left -= 1
        return count, wrong
