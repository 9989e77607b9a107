"""From the core's answers to models and exceptions: what sessions and single programs share."""

from __future__ import annotations

import asyncio
from typing import Any

from swerex_c.exceptions import (
    CommandTimeoutError,
    InvalidInputError,
    NonZeroExitCodeError,
    ResourceError,
    RuntimeClosedError,
    SessionBusyError,
    SessionDiedError,
    SessionLostSyncError,
    SwerexException,
)


def _check_seconds(value: float | None, name: str) -> None:
    if value is not None and not value >= 0:
        msg = f"{name} has to be a number of seconds that is not negative, or None: {value!r}"
        raise InvalidInputError(msg)


def _resource_error(e: OSError | MemoryError, what: str) -> SwerexException:
    """The typed error for something that the machine did not give."""
    import errno

    number = e.errno if isinstance(e, OSError) else errno.ENOMEM
    reason = {
        errno.EMFILE: "this process has no file descriptors left (raise `ulimit -n`, or close sessions)",
        errno.ENFILE: "the system has no file descriptors left",
        errno.ENOSPC: "the system has no pseudo-terminals left (see /proc/sys/kernel/pty/max)",
        errno.EAGAIN: "the limit on processes is reached (see `ulimit -u`)",
        errno.ENOMEM: "out of memory",
    }.get(number or 0, str(e))
    call = f" ({e.strerror})" if isinstance(e, OSError) and e.strerror and reason != str(e) else ""
    return ResourceError(f"{what}: {reason}{call}", errno=number)


async def _finish(operation: Any, future: asyncio.Future[None]) -> None:
    """Wait for an operation; if the waiting is cancelled, so is the operation."""
    if not operation.done:
        try:
            await future
        except asyncio.CancelledError:
            operation.cancel()
            raise


_abstract: Any = None


def abstract_module() -> Any:
    """The models; they are imported when they are first used, because pydantic is not quick to import."""
    global _abstract
    if _abstract is None:
        from swerex_c.runtime import abstract

        _abstract = abstract
    return _abstract


def _observation(output: str, code: int | None, expect_string: str, reason: str, dropped: int) -> Any:
    return (_abstract or abstract_module()).BashObservation(
        output=output, exit_code=code, failure_reason=reason, expect_string=expect_string, output_dropped=dropped
    )


def _non_zero(action: Any, code: int | None, output: str) -> NonZeroExitCodeError:
    msg = f"Command {action.command!r} failed with exit code {code}. Here is the output:\n{output!r}"
    if action.error_msg:
        msg = f"{action.error_msg}: {msg}"
    return NonZeroExitCodeError(msg)


def _cause(code: int) -> str:
    return f"It was ended by signal {code - 128}." if code > 128 else f"It exited with status {code}."


def _death(code: int) -> dict[str, int]:
    return {"signal": code - 128} if code > 128 else {"exit_code": code}


def _failure(
    operation: Any, command: str, timeout: float | None = None, quiet: float | None = None
) -> SwerexException | OSError:
    """The exception for an operation that did not come to its end."""
    end = operation.end
    if end == "timeout":
        msg = f"timeout after {timeout} seconds while running command {command!r}"
        if not operation.typed:
            msg += " (it was not sent, because an earlier command of the session still runs: interrupt that one)"
            return SessionBusyError(msg)
        return CommandTimeoutError(msg, output=operation.output)
    if end == "quiet":
        msg = f"no output for {quiet} seconds while running command {command!r}"
        return CommandTimeoutError(msg, output=operation.output)
    if end == "died":
        msg = f"The session's shell has ended. {_cause(operation.code)} Close the session and create another one"
        return SessionDiedError(msg, **_death(operation.code))
    if end == "lost":
        msg = (
            f"It cannot be proved what the shell of this session is doing, so command {command!r} has no true answer. "
            "Close the session and create another one"
        )
        return SessionLostSyncError(msg)
    if end == "closed":
        return RuntimeClosedError("The session was closed")
    if end == "memory":
        return ResourceError(f"Out of memory while running command {command!r}")
    if end == "system":
        return InvalidInputError(f"{operation.error}: {command!r}")
    return SwerexException(f"The command {command!r} was cancelled")


def _translate(e: Exception) -> SwerexException:
    """What the core raises at the start of an operation, as one of our own."""
    if isinstance(e, SwerexException):
        return e
    if isinstance(e, ValueError):
        return InvalidInputError(str(e))
    if isinstance(e, OSError | MemoryError):
        return _resource_error(e, "The command cannot be run")
    return SessionDiedError(str(e)) if "fork" in str(e) else SwerexException(str(e))
