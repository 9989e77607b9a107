"""Exceptions for the outcomes of sessions and programs that the core reports."""

from __future__ import annotations

import contextlib
import errno
from typing import TYPE_CHECKING, Any

from swerex_c.exceptions import (
    CommandTimeoutError,
    InvalidInputError,
    ResourceError,
    RuntimeClosedError,
    SessionBusyError,
    SessionDiedError,
    SessionLostSyncError,
    SwerexException,
)

if TYPE_CHECKING:
    from asyncio import Future, Task
    from collections.abc import Iterator

    from swerex_c import _core

__all__ = [
    "UNKNOWN_STATUS",
    "death_reason",
    "validate_seconds",
    "death_details",
    "failure",
    "finish",
    "retrieve_exception",
    "resource_error",
    "shorten",
    "start_error",
    "translated",
]

_RESOURCES = {
    errno.EMFILE: "this process has no file descriptors left (raise `ulimit -n`, or close sessions)",
    errno.ENFILE: "the system has no file descriptors left",
    errno.ENOSPC: "the system has no pseudo-terminals left (see /proc/sys/kernel/pty/max)",
    errno.EAGAIN: "the limit on processes is reached (see `ulimit -u`)",
    errno.ENOMEM: "out of memory",
}


UNKNOWN_STATUS = (
    "Its exit status is unknown, because another part of this process collected it: set SIGCHLD to its default "
    "instead of ignoring it, and wait only for your own child processes"
)
"""Sentence, without its period, for a program or a shell whose exit status was taken away."""

_SHOWN = 10_000
"""Maximum number of characters of a command in an error message, high enough for callers to find a usual command."""


def shorten(command: object) -> str:
    """Return a command's `repr` for messages, without the middle of a long text."""
    if isinstance(command, str) and len(command) > _SHOWN:
        half = _SHOWN // 2
        left = len(command) - 2 * half
        return repr(f"{command[:half]}[... {left} characters of the command are left out here ...]{command[-half:]}")
    if isinstance(command, list):
        return f"[{', '.join(map(shorten, command))}]"
    return repr(command)


async def finish(operation: _core.Operation | _core.Process, future: Future[None]) -> None:
    """Wait for an operation, and cancel it if the waiting is cancelled."""
    if not operation.done:
        try:
            await future
        except BaseException:
            operation.cancel()
            raise


def retrieve_exception(task: Task[Any]) -> None:
    """Retrieve the exception of an abandoned task (a done callback), so that asyncio does not log it."""
    if not task.cancelled():
        task.exception()


def validate_seconds(value: float | None, name: str) -> None:
    """Check that a number of seconds is not negative, or is None.

    Raises:
        InvalidInputError: if it is negative or not a number. The message begins with `name`.
    """
    if value is not None and not value >= 0:
        raise InvalidInputError(f"{name} must be a non-negative number of seconds, or None: {value!r}")


def resource_error(e: OSError | MemoryError, what: str) -> SwerexException:
    """Return the typed error for a resource that the machine could not provide."""
    number = e.errno if isinstance(e, OSError) else errno.ENOMEM
    reason = _RESOURCES.get(number or 0, str(e))
    call = f" ({e.strerror})" if isinstance(e, OSError) and e.strerror and reason != str(e) else ""
    return ResourceError(f"{what}: {reason}{call}", errno=number)


def death_reason(answer: _core.Operation) -> str:
    """Return a sentence that says how the shell ended."""
    if answer.code < 0:
        return f"{UNKNOWN_STATUS}."
    if answer.signal:
        return f"It was killed by signal {answer.signal}."
    return f"It exited with status {answer.code}."


def death_details(answer: _core.Operation) -> dict[str, int]:
    """Return how the shell ended, as keyword arguments of `SessionDiedError`; none if that is unknown."""
    if answer.code < 0:
        return {}
    return {"signal": answer.signal} if answer.signal else {"exit_code": answer.code}


def failure(
    operation: _core.Operation,
    command: str,
    timeout: float | None = None,
    quiet: float | None = None,
    waits: bool = False,
) -> SwerexException | OSError:
    """Return the exception for an operation that did not complete.

    Args:
        timeout, quiet: the limits of the action in seconds.
        waits: whether the command waits for input from its terminal.
    """
    end = operation.end
    advice = " (it waits for input: use is_interactive_command)" if waits else ""
    if end == "timeout":
        msg = f"timeout after {timeout} seconds while running command {shorten(command)}"
        if not operation.typed and operation.error:
            return CommandTimeoutError(f"{msg} (it was not sent, because {operation.error})")
        if not operation.typed:
            msg += " (it was not sent, because an earlier command of the session still runs: interrupt that one)"
            return SessionBusyError(msg)
        return CommandTimeoutError(msg + advice, output=operation.output)
    if end == "quiet":
        msg = f"no output for {quiet} seconds while running command {shorten(command)}"
        return CommandTimeoutError(msg + advice, output=operation.output)
    if end == "died":
        silent = operation.typed and not operation.begun
        unread = f", and nothing shows that it ran command {shorten(command)}" if silent else ""
        why = death_reason(operation)
        if operation.error:
            why = f"{why.rstrip('.')}: {operation.error}."
        msg = f"The session's shell has ended{unread}. {why} Close the session and create another one"
        return SessionDiedError(msg, **death_details(operation))
    if end == "lost":
        why = operation.error or "The state of this session's shell is unknown"
        msg = f"{why}, so the result of command {shorten(command)} is unknown. Close the session and create another one"
        return SessionLostSyncError(msg)
    if end == "closed":
        return RuntimeClosedError("The session was closed")
    if end == "costly":
        msg = f"searching the output of command {shorten(command)} for the patterns of expect takes too long: "
        return CommandTimeoutError(f"{msg}interrupt it, and use simpler patterns", output=operation.output)
    if end == "memory":
        return ResourceError(f"Out of memory while running command {shorten(command)}")
    if end == "system" and operation.errno:
        return resource_error(OSError(operation.errno, operation.error), f"Command {shorten(command)} cannot be run")
    if end == "system":
        return InvalidInputError(f"{operation.error}: {shorten(command)}")
    return SwerexException(f"The command {shorten(command)} was cancelled")


def start_error(e: Exception, what: str = "The command cannot be run") -> SwerexException:
    """Translate an exception that the core raised at the start of an operation or a program."""
    if isinstance(e, ValueError):
        return InvalidInputError(f"{what}: {e}")
    if isinstance(e, OSError | MemoryError):
        return resource_error(e, what)
    return SessionDiedError(str(e)) if "fork" in str(e) else SwerexException(str(e))


@contextlib.contextmanager
def translated(what: str = "The command cannot be run") -> Iterator[None]:
    """Translate exceptions that the core raises at the start of an operation or a program."""
    try:
        yield
    except SwerexException:
        raise
    except (ValueError, OSError, MemoryError, RuntimeError) as e:
        raise start_error(e, what) from e
