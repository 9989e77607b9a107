"""One call of a client program that answers and ends, with an end to the waiting."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Said", "ask"]

_KILLED_SECONDS = 2.0
"""How long the pipes of a program that was killed are read on: something may have escaped from its process group."""


@dataclass(frozen=True)
class Said:
    """What a client program answered: its exit code and all that it printed."""

    code: int
    stdout: bytes
    stderr: bytes

    @property
    def words(self) -> str:
        """What it said of a failure, as one line; its exit code if it said nothing."""
        text = (self.stderr.strip() or self.stdout.strip()).decode(errors="replace")
        return " ".join(text.split()) or f"exit code {self.code}"


def ask(
    argv: Sequence[str],
    *,
    environment: Mapping[str, str],
    timeout: float | None,
    input: bytes = b"",
    started: Callable[[subprocess.Popen[bytes]], None] | None = None,
) -> Said:
    """Run a program and wait for its end, at most `timeout` seconds (None: for ever). Blocks.

    It has a process group of its own, so that a terminal's interrupt does not reach it, and is killed with that group
    when the time is over, or when something is raised here.

    Args:
        environment: the whole of it.
        input: what its standard input has.
        started: called with the process before anything is waited for; who keeps it may kill it.

    Raises:
        TimeoutError: if it did not end in time.
        OSError: if it cannot be started; FileNotFoundError if there is no such program.
    """
    process = subprocess.Popen(
        argv,
        stdin=subprocess.PIPE if input else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=dict(environment),
        start_new_session=True,
    )
    try:
        if started is not None:
            started(process)
        stdout, stderr = process.communicate(input or None, timeout=timeout)
    except BaseException as error:
        end(process)
        if isinstance(error, subprocess.TimeoutExpired):
            raise TimeoutError(f"`{' '.join(argv[:2])}` did not answer within {timeout:g} seconds") from None
        raise
    return Said(process.returncode, stdout, stderr)


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill a program that leads a process group, with the group, and reap it. Bounded."""
    kill_group(process)
    with contextlib.suppress(subprocess.TimeoutExpired, ValueError, OSError):
        process.communicate(timeout=_KILLED_SECONDS)
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill a program that leads a process group, with the group. One that has ended, and was waited for, is left."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
