"""A person at a terminal."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import subprocess
import sys
import termios
import time
from typing import Any, Self

from tests.support.original import our_environment
from tests.support.processes import command_lines
from tests.support.wait import DEADLINE, until

COMMAND = [sys.executable, "-m", "swerex_c", "shell"]
PROMPT = rb"@[^:\r\n]+:[^\r\n]*[#$] "


def readable_modes(fd: int) -> list[Any]:
    """Return the modes without the bit that the kernel sets for waiting data."""
    modes = termios.tcgetattr(fd)
    modes[3] &= ~getattr(termios, "PENDIN", 0)
    return modes


class Person:
    """Somebody at a terminal that runs `swerex-c shell`; as a context it ends the program and the terminal."""

    def __init__(self, *arguments: str, rows: int = 24, columns: int = 80, command: list[str] = COMMAND, **env: str):
        self.master, slave = pty.openpty()
        self.slave = slave
        termios.tcsetwinsize(slave, (rows, columns))
        self.modes = readable_modes(slave)
        self.said = b""
        self.process = subprocess.Popen(
            [*command, *arguments],
            preexec_fn=lambda: os.login_tty(slave),
            env={**our_environment(), "TERM": "xterm", "PYTHON_COLORS": "0", **env},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(5)
        self.process.kill()
        self.process.wait()
        os.close(self.master)
        os.close(self.slave)

    def until(self, pattern: bytes, seconds: float = DEADLINE) -> bytes:
        """Return the output up to the end of a match; the next call goes on from there."""
        deadline = time.monotonic() + seconds
        while not (found := re.search(pattern, self.said)):
            ready = select.select([self.master], [], [], max(0.0, deadline - time.monotonic()))[0]
            assert ready, f"no {pattern!r} in {self.said!r}"
            try:
                self.said += os.read(self.master, 65536)
            except OSError:
                raise AssertionError(f"it ended without {pattern!r}: {self.said!r}") from None
        shown, self.said = self.said[: found.end()], self.said[found.end() :]
        return shown

    def keys(self, keys: bytes) -> None:
        os.write(self.master, keys)

    def begin(self, command: str) -> None:
        """Type a command, and wait until its program is there."""
        self.keys(command.encode() + b"\r")
        until(lambda: any(line.rstrip() == command for line in command_lines().values()))

    def exit_code(self) -> int:
        """Return the program's exit code when it has ended, and all that it has shown is in `said`."""
        has_ended = False
        while not has_ended:
            has_ended = self.process.poll() is not None
            while select.select([self.master], [], [], 0.05)[0]:
                self.said += os.read(self.master, 65536)
        return self.process.returncode

    def hang_up(self) -> None:
        """Let the terminal go away, and wait until the program has ended."""
        os.close(self.slave)
        os.close(self.master)
        self.process.wait(DEADLINE)
        self.slave, self.master = os.openpty()
