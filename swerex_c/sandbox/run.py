"""Run a client program to completion with a timeout."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from swerex_c.utils.threads import cancellable, check_cancelled

__all__ = ["CompletedCommand", "run_command", "find_line"]

_KILLED_SECONDS = 2.0
"""Seconds to read the pipes of a killed program: a process that left its process group may hold them open."""


@dataclass(frozen=True)
class CompletedCommand:
    """Exit code and output of a client program."""

    code: int
    stdout: bytes
    stderr: bytes

    @property
    def words(self) -> str:
        """Return the error output as one line.

        If it is empty, return standard output; if that is empty too, the exit code.
        """
        text = (self.stderr.strip() or self.stdout.strip()).decode(errors="replace")
        return " ".join(text.split()) or f"exit code {self.code}"


def run_command(
    argv: Sequence[str],
    *,
    environment: Mapping[str, str],
    timeout: float | None,
    input: bytes = b"",
    until: bytes = b"",
    tell: Callable[[str], object] | None = None,
    patience: float = 0.0,
) -> CompletedCommand:
    """Run a program to completion with a timeout. Blocks.

    The program has a process group of its own, so that a terminal's interrupt does not reach it. On a timeout or any
    exception raised here, the program is killed with that group. In a call of `in_cancellable_thread` a cancellation
    kills it too.

    Args:
        environment: the complete environment.
        timeout: maximum seconds until the program ends; None means no limit.
        input: the program's standard input.
        until: if not empty, a complete line of standard output that begins with this ends the run: the program is
            killed, and the result is its output so far with exit code 0. The program gets no input then.
        tell: called with every line of standard output while the program runs. The program gets no input then.
        patience: seconds to let the program end after a cancellation, because the result of its request is known only
            then. If it ends in that time, its result is returned.

    Raises:
        concurrent.futures.CancelledError: if the call was cancelled.
        TimeoutError: if the program did not end in time.
        OSError: if the program cannot be started; FileNotFoundError if it does not exist.
    """
    check_cancelled()
    process = subprocess.Popen(
        argv,
        stdin=subprocess.PIPE if input else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=dict(environment),
        start_new_session=True,
    )
    try:
        with cancellable(lambda: kill_group(process), patience):
            if until or tell is not None:
                completed = _heard(process, until, tell, timeout)
            else:
                stdout, stderr = process.communicate(input or None, timeout=timeout)
                completed = CompletedCommand(process.returncode, stdout, stderr)
        if completed.code == -signal.SIGKILL:
            check_cancelled()
        return completed
    except BaseException as error:
        kill_and_wait(process)
        if isinstance(error, subprocess.TimeoutExpired):
            raise TimeoutError(f"`{' '.join(argv[:2])}` did not answer within {timeout:g} seconds") from None
        raise


def find_line(printed: bytes | bytearray, beginning: bytes) -> bytes | None:
    """Return the rest of the first complete line with this beginning, or None."""
    at = 0 if printed.startswith(beginning) else printed.find(b"\n" + beginning) + 1 or -1
    end = printed.find(b"\n", at) if at >= 0 else -1
    return None if end < 0 else bytes(printed[at + len(beginning) : end])


def _heard(
    process: subprocess.Popen[bytes], until: bytes, tell: Callable[[str], object] | None, timeout: float | None
) -> CompletedCommand:
    """Return the result of a program whose output is read by line; `run_command` describes `until` and `tell`.

    Raises:
        subprocess.TimeoutExpired: if it has neither printed the line `until` nor ended in time.
    """
    assert process.stdout is not None and process.stderr is not None
    deadline = None if timeout is None else time.monotonic() + timeout
    printed = {process.stdout.fileno(): bytearray(), process.stderr.fileno(): bytearray()}
    stdout, stderr = printed.values()
    begin = 0
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
            while (end := stdout.find(b"\n", begin)) >= 0:
                line, begin = bytes(stdout[begin:end]), end + 1
                if until and line.startswith(until):
                    kill_and_wait(process)
                    return CompletedCommand(0, bytes(stdout), bytes(stderr))
                if tell is not None:
                    tell(line.decode(errors="replace").strip())
    code = process.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
    kill_and_wait(process)  # closes its streams
    return CompletedCommand(code, bytes(stdout), bytes(stderr))


def kill_and_wait(process: subprocess.Popen[bytes]) -> None:
    """Kill the process group that the program leads, and reap the program.

    The wait is bounded.
    """
    kill_group(process)
    with contextlib.suppress(subprocess.TimeoutExpired, ValueError, OSError):
        process.communicate(timeout=_KILLED_SECONDS)
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill the process group that the program leads, if it was not reaped yet."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
