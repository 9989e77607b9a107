"""One call of a client program that answers and ends, with an end to the waiting."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Said", "ask", "line_of"]

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
    until: bytes = b"",
    started: Callable[[subprocess.Popen[bytes]], None] | None = None,
) -> Said:
    """Run a program and wait for its end, at most `timeout` seconds (None: for ever). Blocks.

    It has a process group of its own, so that a terminal's interrupt does not reach it, and is killed with that group
    when the time is over, or when something is raised here.

    Args:
        environment: the whole of it.
        input: what its standard input has.
        until: not empty: when a line of its standard output begins with this and is whole, it is killed, and the answer
            is what it has printed so far, with exit code 0. It has no input then.
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
        if until:
            return _heard(process, until, timeout)
        stdout, stderr = process.communicate(input or None, timeout=timeout)
    except BaseException as error:
        end(process)
        if isinstance(error, subprocess.TimeoutExpired):
            raise TimeoutError(f"`{' '.join(argv[:2])}` did not answer within {timeout:g} seconds") from None
        raise
    return Said(process.returncode, stdout, stderr)


def line_of(printed: bytes | bytearray, beginning: bytes) -> bytes | None:
    """The rest of the first whole line that begins so; None if there is none."""
    at = 0 if printed.startswith(beginning) else printed.find(b"\n" + beginning) + 1 or -1
    end = printed.find(b"\n", at) if at >= 0 else -1
    return None if end < 0 else bytes(printed[at + len(beginning) : end])


def _heard(process: subprocess.Popen[bytes], until: bytes, timeout: float | None) -> Said:
    """The answer of a program that may go on when it has printed a line which begins with `until`.

    Raises:
        subprocess.TimeoutExpired: if it has neither printed that nor ended in time.
    """
    assert process.stdout is not None and process.stderr is not None
    deadline = None if timeout is None else time.monotonic() + timeout
    printed = {process.stdout.fileno(): bytearray(), process.stderr.fileno(): bytearray()}
    stdout, stderr = printed.values()
    with selectors.DefaultSelector() as selector:
        for fd in printed:
            selector.register(fd, selectors.EVENT_READ)
        while selector.get_map():
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise subprocess.TimeoutExpired(process.args, timeout or 0)
            for key, _ in selector.select(left):
                data = os.read(key.fd, 1 << 16)
                printed[key.fd] += data
                if not data:
                    selector.unregister(key.fd)
            if line_of(stdout, until) is not None:
                end(process)
                return Said(0, bytes(stdout), bytes(stderr))
    code = process.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
    end(process)  # its streams
    return Said(code, bytes(stdout), bytes(stderr))


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
