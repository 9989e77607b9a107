"""Sandboxes of Modal, reached by `Sandbox.exec` of its SDK: nothing is installed there, and no port is open.

It has been run with the SDK 1.6.4 against a server that speaks Modal's protocol, in `tests/clouds/modal_server.py`; not
in an account of Modal.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from swerex_c.exceptions import (
    AuthenticationError,
    ConnectionLostError,
    PlaceLostError,
    ProtocolError,
    ResourceError,
    RuntimeClosedError,
    SwerexException,
)
from swerex_c.exec import loops
from swerex_c.exec.called import CalledBackend, Program

__all__ = ["ModalBackend", "sentence", "unknown", "why_ended"]

T = TypeVar("T")

_GRACE_SECONDS = 2.0
"""How long a program that has ended may still tell its last output and its exit code when the sandbox has ended."""

_PAUSE_SECONDS = 5.0
"""How long the end of a sandbox is not watched for after Modal could not be reached."""

_EOF_SECONDS = 2.0
"""How long ending the input of a program may take that nobody wants any more."""

_REASONS = {
    "GENERIC_STATUS_TIMEOUT": "was ended because its time was over (deployment_timeout)",
    "GENERIC_STATUS_TERMINATED": "was terminated",
    "GENERIC_STATUS_IDLE_TIMEOUT": "was ended because it did nothing for too long (idle_timeout)",
    "GENERIC_STATUS_KERNEL_OOM_KILL": "was ended because it took too much memory",
    "GENERIC_STATUS_MEMORY_MANAGER_EVICTION": "was ended because it took too much memory",
    "GENERIC_STATUS_MEMORY_THRASHING_EVICTION": "was ended because it took too much memory",
    "GENERIC_STATUS_INIT_FAILURE": "could not be started",
    "GENERIC_STATUS_INTERNAL_FAILURE": "was lost by a failure within Modal",
}
"""What became of a sandbox, by the names that Modal's protocol has for it."""

_CODES = {124: _REASONS["GENERIC_STATUS_TIMEOUT"], 137: _REASONS["GENERIC_STATUS_TERMINATED"]}
"""The same by the exit codes that the SDK makes of it, and that nothing else has."""

_GONE = ("NotFoundError", "SandboxTerminatedError", "SandboxTimeoutError")
_REFUSED = ("AuthError", "PermissionDeniedError")
_CLOSED = ("ClientClosed",)
_UNREACHED = ("ConnectionError", "InternalError", "InternalFailure", "ServiceError", "TimeoutError")
_PASSING = (*_UNREACHED, "ResourceExhaustedError")
"""Names of the SDK's errors, by what they mean when it is asked what became of a sandbox: it is gone, we are not let
in, this process has closed its connections, or Modal or the network does not work just now. Others mean neither."""

_FORGOTTEN = ("PS1", "PS2")
"""Variables that a bash that is not interactive does not pass on."""

# Words and values that are no text cannot be sent as they are, so bash makes them of an escaped form. And the SDK has
# no way to say how large a terminal is: the size is that of the terminal of this process, if it has one.
_ENTER = r"""
[ "$1" = 0 ] || { [ -z "$3" ] || export TERM="$3"; stty rows "$1" cols "$2" 2>/dev/null; }
swx_coded=$4 swx_n=$5; shift 5; swx_a=()
for swx_w; do
  [ -z "$swx_coded" ] || printf -v swx_w %b "$swx_w"
  if ((swx_n-- > 0)); then swx_a+=("$swx_w"); else export "$swx_w"; fi
done
exec "${swx_a[@]}"
"""


def sentence(error: BaseException) -> str:
    """What went wrong with Modal, in one sentence for people."""
    words = " ".join(str(error).split()).rstrip(".")
    name = type(error).__name__
    if name == "AuthError":
        how = "`modal setup` logs in, or MODAL_TOKEN_ID and MODAL_TOKEN_SECRET"
        return f"Modal does not know who asks: {words or name} ({how})"
    if name == "PermissionDeniedError":
        return f"Modal does not permit it: {words or name}"
    if name == "ResourceExhaustedError":
        return f"Modal has no room for it, or a quota is used up: {words or name}"
    if name == "ImageBuildError":
        return f"Modal could not build the image: {words or name}"
    if isinstance(error, OSError) or name in _UNREACHED:
        return f"Modal cannot be reached, or does not work just now: {words or name}"
    return f"Modal says: {words or name}"


def _is_any(error: BaseException, names: Sequence[str]) -> bool:
    """Whether an error is of one of these classes of the SDK, or of one below it; which is not imported for that."""
    return any(it.__name__ in names and it.__module__.partition(".")[0] == "modal" for it in type(error).__mro__)


def unknown(error: Exception, name: str) -> SwerexException:
    """What it means that the SDK cannot tell what became of a sandbox. `name` is what messages call it."""
    if isinstance(error, SwerexException):
        return error
    if _is_any(error, _REFUSED):
        return AuthenticationError(f"It cannot be learned what became of the {name}. {sentence(error)}")
    if _is_any(error, _CLOSED):
        words = "this process has closed its connections to it (`detach`, or the end of the SDK's client)"
        return RuntimeClosedError(f"The {name} cannot be used any more: {words}")
    if isinstance(error, OSError) or _is_any(error, _PASSING):
        return ConnectionLostError(f"It is not known whether the {name} is still there. {sentence(error)}")
    words = " ".join(str(error).split())
    return ProtocolError(
        f"Asking Modal what became of the {name} failed in a way that is none of the known ones, with "
        f"{type(error).__module__}.{type(error).__qualname__}{': ' if words else ''}{words}"
    )


async def why_ended(sandbox: Any) -> str | None:
    """What became of a sandbox, as a sentence without its subject; None while it runs.

    Raises:
        Exception: what the SDK raises when it cannot tell.
    """
    code = await sandbox.poll.aio()
    if code is None:
        return None
    status, words = _result(sandbox)
    reason = _REASONS.get(status) or _CODES.get(code) or f"has ended with exit code {code}"
    return f"{reason}: {words}" if words else reason


def _result(sandbox: Any) -> tuple[str, str]:
    """What the SDK has learned of a sandbox's end, and does not pass on; empty where it no longer keeps it so."""
    try:
        from modal._utils.async_utils import synchronizer

        result = synchronizer._translate_in(sandbox)._impl.result
        status = result.DESCRIPTOR.fields_by_name["status"].enum_type.values_by_number[result.status].name
        return str(status), " ".join(str(result.exception).split()).rstrip(".")
    except Exception:
        return "", ""


class _Process(Program):
    """A program that `Sandbox.exec` has started."""

    def __init__(self, process: Any, terminal: bool, lost: asyncio.Future[str]) -> None:
        self._process = process
        self._terminal = terminal
        self._lost = lost
        self._outputs: asyncio.Queue[tuple[int, bytes] | Exception | None] = asyncio.Queue(maxsize=4)
        streams = [(1, process.stdout)] if terminal else [(1, process.stdout), (2, process.stderr)]
        self._reading = [asyncio.create_task(self._read(number, stream)) for number, stream in streams]
        self._open = len(streams)

    async def _read(self, number: int, stream: Any) -> None:
        try:
            async for data in stream:
                await self._outputs.put((number, data))
        except Exception as error:
            await self._outputs.put(error)
        else:
            await self._outputs.put(None)

    async def send(self, data: bytes) -> None:
        # One request holds 16 MB at most, of which what a relay sends at a time is far.
        self._process.stdin.write(data)
        await _unless_lost(self._process.stdin.drain.aio(), self._lost)

    async def end_input(self) -> None:
        self._process.stdin.write_eof()
        await _unless_lost(self._process.stdin.drain.aio(), self._lost)

    async def receive(self) -> tuple[int, bytes] | None:
        while self._open:
            if self._outputs.empty():
                output = await _unless_lost(self._outputs.get(), self._lost)
            else:
                output = self._outputs.get_nowait()
            if isinstance(output, Exception):
                raise _not_told(output, "what the program prints")
            if output is not None:
                return output
            self._open -= 1
        return None

    async def wait(self) -> int:
        try:
            code = await _unless_lost(self._process.wait.aio(), self._lost)
        except PlaceLostError:
            raise
        except Exception as error:
            raise _not_told(error, "how the program ended") from None
        if code < 0:
            raise ResourceError("Modal does not tell how the program ended")
        return int(code)

    async def abandon(self) -> None:
        for each in self._reading:
            each.cancel()
        await asyncio.gather(*self._reading, return_exceptions=True)
        if self._terminal or self._lost.done():
            return
        # A shell that waits for its next script ends now, rather than with the sandbox.
        with contextlib.suppress(Exception):
            self._process.stdin.write_eof()
            await asyncio.wait_for(_unless_lost(self._process.stdin.drain.aio(), self._lost), _EOF_SECONDS)


def _not_told(error: Exception, what: str) -> ResourceError:
    return ResourceError(f"It cannot be learned {what}. {sentence(error)}")


async def _unless_lost(work: Coroutine[Any, Any, T], lost: asyncio.Future[str]) -> T:
    """The result of some work, which is not waited for when the sandbox has ended: not every request ends then.

    Raises:
        PlaceLostError: if it has.
    """
    doing = asyncio.ensure_future(work)
    try:
        await asyncio.wait((doing, lost), return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            await asyncio.wait((doing,), timeout=_GRACE_SECONDS)
        if not doing.done():
            raise PlaceLostError(lost.result())
        return await doing
    finally:
        if not doing.done():
            doing.cancel()


class ModalBackend(CalledBackend):
    """A sandbox that runs. It is neither started nor ended here."""

    def __init__(self, sandbox: Any) -> None:
        """
        Args:
            sandbox: a `modal.Sandbox`.
        """
        self.sandbox = sandbox
        self.name = f"sandbox {sandbox.object_id}"
        self._lost: asyncio.Future[str] | None = None
        self._watching: asyncio.Task[None] | None = None

    async def start_program(
        self, argv: Sequence[str], environment: Mapping[str, str], terminal: tuple[int, int] | None
    ) -> Program:
        lost = self._watched()
        words, variables = _sendable(argv, environment, terminal)
        work = self.sandbox.exec.aio(*words, env=variables, text=False, pty=terminal is not None)
        try:
            process = await _unless_lost(_awaited(work), lost)
        except PlaceLostError:
            raise
        except Exception as error:
            raise ResourceError(sentence(error)) from None
        return _Process(process, terminal is not None, lost)

    def _watched(self) -> asyncio.Future[str]:
        """The reason why the sandbox has ended, when it has. Called in the loop of `loops`."""
        if self._lost is None or self._lost.cancelled():
            self._lost = asyncio.get_running_loop().create_future()
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch(self._lost))
        return self._lost

    async def _watch(self, lost: asyncio.Future[str]) -> None:
        # Programs' own requests do not tell: some are repeated for ever when a sandbox has gone with its machine.
        while not lost.done():
            try:
                with contextlib.suppress(Exception):  # that it was ended is an exception
                    await self.sandbox.wait.aio(raise_on_termination=False)
                reason = await self._why()
            except Exception:
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            if reason is None:
                await asyncio.sleep(_PAUSE_SECONDS)
            elif not lost.done():
                lost.set_result(reason)

    async def _why(self) -> str | None:
        try:
            reason = await why_ended(self.sandbox)
        except Exception as error:
            if not _is_any(error, _GONE):
                raise
            return f"The {self.name} is gone. {sentence(error)}"
        return None if reason is None else f"The {self.name} {reason}"

    def why_lost(self, timeout: float) -> str | None:
        lost = self._lost
        if lost is not None and lost.done() and not lost.cancelled():
            return lost.result()
        try:
            return self.call(self._why(), timeout)
        except TimeoutError:
            msg = f"Modal did not tell within {timeout:g} s what became of {self.name}"
            raise TimeoutError(msg) from None
        except Exception as error:
            raise unknown(error, self.name) from error

    def close(self) -> None:
        watching, self._watching = self._watching, None
        if watching is not None:
            with contextlib.suppress(TimeoutError):
                loops.call(_end(watching), _EOF_SECONDS)


def _sendable(
    argv: Sequence[str], environment: Mapping[str, str], terminal: tuple[int, int] | None
) -> tuple[list[str], dict[str, str]]:
    """The words to be run in the sandbox so that `argv` is, and the variables to be sent beside them."""
    coded = not all(map(_is_text, (*argv, *environment.values())))
    if terminal is None and not coded:
        return list(argv), dict(environment)
    odd = {name: value for name, value in environment.items() if name in _FORGOTTEN or not _is_text(value)}
    plain = {name: value for name, value in environment.items() if name not in odd}
    rows, columns = terminal or (0, 0)
    # What TERM is in a terminal comes with its size, from this process too.
    kind = plain.pop("TERM", "") if terminal else ""
    words = [*argv, *(f"{name}={value}" for name, value in odd.items())]
    if coded:
        words = [_escaped(word) for word in words]
    head = ["bash", "-c", _ENTER, "bash", str(rows), str(columns), kind, "1" if coded else "", str(len(argv))]
    return [*head, *words], plain


def _is_text(word: str) -> bool:
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return True


def _escaped(word: str) -> str:
    """A word in ASCII, as `%b` of bash's printf reads it."""
    data = word.encode(errors="surrogateescape")
    return re.sub(rb"[^A-Za-z0-9_./=:, -]", lambda found: b"\\x%02x" % found[0][0], data).decode()


async def _awaited(work: Awaitable[T]) -> T:
    return await work


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
