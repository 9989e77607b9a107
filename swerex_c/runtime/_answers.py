"""What the core answers, and which exception stands for it: for sessions and for single programs."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Protocol

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
    from asyncio import Future

__all__ = ["Answer", "cause", "check_seconds", "death", "failure", "finish", "resource_error", "shown", "translate"]

_RESOURCES = {
    errno.EMFILE: "this process has no file descriptors left (raise `ulimit -n`, or close sessions)",
    errno.ENFILE: "the system has no file descriptors left",
    errno.ENOSPC: "the system has no pseudo-terminals left (see /proc/sys/kernel/pty/max)",
    errno.EAGAIN: "the limit on processes is reached (see `ulimit -u`)",
    errno.ENOMEM: "out of memory",
}


_SHOWN = 10_000
"""So many characters of a command are told in a message; callers find in it what they sent, if it is not longer."""


def shown(command: object) -> str:
    """A command as messages show it: `repr`, of a long text only its beginning and its end."""
    if isinstance(command, str) and len(command) > _SHOWN:
        half = _SHOWN // 2
        left = len(command) - 2 * half
        return repr(f"{command[:half]}[... {left} characters of the command are left out here ...]{command[-half:]}")
    if isinstance(command, list):
        return f"[{', '.join(map(shown, command))}]"
    return repr(command)


class Answer(Protocol):
    """What came of an operation that has ended."""

    @property
    def end(self) -> str: ...
    @property
    def code(self) -> int: ...
    @property
    def signal(self) -> int: ...
    @property
    def output(self) -> str: ...
    @property
    def dropped(self) -> int: ...
    @property
    def hit(self) -> int: ...
    @property
    def typed(self) -> bool: ...
    @property
    def error(self) -> str: ...
    @property
    def errno(self) -> int: ...


class _Cancellable(Protocol):
    @property
    def done(self) -> bool: ...
    def cancel(self) -> None: ...


async def finish(operation: _Cancellable, future: Future[None]) -> None:
    """Wait for an operation; if the waiting is given up, so is the operation."""
    if not operation.done:
        try:
            await future
        except BaseException:
            operation.cancel()
            raise


def check_seconds(value: float | None, name: str) -> None:
    """Raise `InvalidInputError` unless this is a number of seconds, or None."""
    if value is not None and not value >= 0:
        msg = f"{name} has to be a number of seconds that is not negative, or None: {value!r}"
        raise InvalidInputError(msg)


def resource_error(e: OSError | MemoryError, what: str) -> SwerexException:
    """The typed error for something that the machine did not give."""
    number = e.errno if isinstance(e, OSError) else errno.ENOMEM
    reason = _RESOURCES.get(number or 0, str(e))
    call = f" ({e.strerror})" if isinstance(e, OSError) and e.strerror and reason != str(e) else ""
    return ResourceError(f"{what}: {reason}{call}", errno=number)


def cause(answer: Answer) -> str:
    """How the shell ended."""
    if answer.signal:
        return f"It was ended by signal {answer.signal}."
    return f"It exited with status {answer.code}."


def death(answer: Answer) -> dict[str, int]:
    """The same as the arguments of `SessionDiedError`."""
    return {"signal": answer.signal} if answer.signal else {"exit_code": answer.code}


def failure(
    operation: Answer, command: str, timeout: float | None = None, quiet: float | None = None
) -> SwerexException | OSError:
    """The exception for an operation that did not come to its end."""
    end = operation.end
    if end == "timeout":
        msg = f"timeout after {timeout} seconds while running command {shown(command)}"
        if not operation.typed:
            msg += " (it was not sent, because an earlier command of the session still runs: interrupt that one)"
            return SessionBusyError(msg)
        return CommandTimeoutError(msg, output=operation.output)
    if end == "quiet":
        msg = f"no output for {quiet} seconds while running command {shown(command)}"
        return CommandTimeoutError(msg, output=operation.output)
    if end == "died":
        msg = f"The session's shell has ended. {cause(operation)} Close the session and create another one"
        return SessionDiedError(msg, **death(operation))
    if end == "lost":
        msg = (
            "It cannot be proved what the shell of this session is doing, so "
            f"command {shown(command)} has no true answer. Close the session and create another one"
        )
        return SessionLostSyncError(msg)
    if end == "closed":
        return RuntimeClosedError("The session was closed")
    if end == "memory":
        return ResourceError(f"Out of memory while running command {shown(command)}")
    if end == "system" and operation.errno:
        return resource_error(OSError(operation.errno, operation.error), f"Command {shown(command)} cannot be run")
    if end == "system":
        return InvalidInputError(f"{operation.error}: {shown(command)}")
    return SwerexException(f"The command {shown(command)} was cancelled")


def translate(e: Exception) -> SwerexException:
    """What the core raises at the start of an operation, as one of our own."""
    if isinstance(e, SwerexException):
        return e
    if isinstance(e, ValueError):
        return InvalidInputError(str(e))
    if isinstance(e, OSError | MemoryError):
        return resource_error(e, "The command cannot be run")
    return SessionDiedError(str(e)) if "fork" in str(e) else SwerexException(str(e))
