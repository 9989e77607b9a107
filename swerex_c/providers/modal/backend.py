"""Backend that runs programs in a Modal sandbox with the SDK's `Sandbox.exec`.

Nothing is installed in the sandbox, and no port is opened.

Tested with the SDK 1.6.4 against a server that speaks Modal's protocol (`tests/support/modal_server.py`); not tested
with an account of Modal.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, TypeVar

from swerex_c.exceptions import ConnectionLostError, ResourceError, SandboxLostError
from swerex_c.sandbox.api_backend import ApiBackend
from swerex_c.sandbox.backend import Process
from swerex_c.sandbox.env_passing import as_words
from swerex_c.utils.visible import visible

__all__ = ["ModalBackend", "sentence", "why_ended"]

T = TypeVar("T")

_GRACE_SECONDS = 2.0
"""Seconds to wait, once the sandbox has ended, for the last output and the exit code of a program."""

_PAUSE_SECONDS = 5.0
"""Seconds to pause before watching for the end of a sandbox again, as after Modal could not be reached."""

_EOF_SECONDS = 2.0
"""Seconds to wait for the end of an abandoned program's input, or of the watch task."""

_CODES = {
    124: "was ended because its time limit was reached (deployment_timeout)",
    137: "was terminated, or killed because it exceeded its memory limit",
}
"""Why a sandbox has ended, by its exit code. Others are those of its first process."""

_GONE = ("NotFoundError", "SandboxTerminatedError", "SandboxTimeoutError")
"""Names of the SDK's errors that say that a sandbox is gone. Others leave that open."""

_UNREACHED = ("ConnectionError", "InternalError", "InternalFailure", "ServiceError", "TimeoutError")
"""Names of the SDK's errors when Modal or the network is unavailable now."""

_SET_THERE = ("PS1", "PS2", "TERM")
"""Variables that are set in the sandbox: the SDK sets TERM from this process, and the bash of `_RESIZE`, which is not
interactive, passes no prompts on."""

_RESIZE = 'stty rows "$1" cols "$2" 2>/dev/null; shift 2; exec "$@"'
"""Script that sets the size of its terminal and becomes a program. The SDK cannot be given a size: it uses that of this
process's terminal, if there is one."""


def sentence(error: BaseException) -> str:
    """Return a sentence for users that describes an error of Modal."""
    words = visible(" ".join(str(error).split())).rstrip(".")
    name = type(error).__name__
    if name == "AuthError":
        how = "run `modal setup`, or set MODAL_TOKEN_ID and MODAL_TOKEN_SECRET"
        return f"Modal refuses the credentials: {words or name} ({how})"
    if name == "PermissionDeniedError":
        return f"Modal does not permit it: {words or name}"
    if name == "ResourceExhaustedError":
        return f"Modal has no capacity for it, or a quota is exhausted: {words or name}"
    if name == "ImageBuildError":
        return f"Modal could not build the image: {words or name}"
    if isinstance(error, OSError) or name in _UNREACHED:
        return f"Modal cannot be reached, or is unavailable: {words or name}"
    return f"Modal says: {words or name}"


async def why_ended(sandbox: Any) -> str | None:
    """Return why a sandbox has ended; None while it runs.

    The reason is a sentence without its subject.

    Raises:
        Exception: any error of the SDK, if the state cannot be read.
    """
    code = await sandbox.poll.aio()
    return None if code is None else _CODES.get(code, f"has ended with exit code {code}")


class _Process(Process):
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
        # A request holds at most 16 MB, far more than is sent at a time.
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
                raise _not_told(output, "the output of the program")
            if output is not None:
                return output
            self._open -= 1
        return None

    async def wait(self) -> int:
        try:
            code = await _unless_lost(self._process.wait.aio(), self._lost)
        except SandboxLostError:
            raise
        except Exception as error:
            raise _not_told(error, "the exit code of the program") from None
        if code < 0:
            raise ResourceError("Modal does not report the exit code of the program")
        return int(code)

    async def close(self) -> None:
        for each in self._reading:
            each.cancel()
        await asyncio.gather(*self._reading, return_exceptions=True)
        if self._terminal or self._lost.done():
            return
        # This ends a shell that waits for its next script now, rather than with the sandbox.
        with contextlib.suppress(Exception):
            self._process.stdin.write_eof()
            await asyncio.wait_for(_unless_lost(self._process.stdin.drain.aio(), self._lost), _EOF_SECONDS)


def _not_told(error: Exception, what: str) -> ResourceError:
    return ResourceError(f"Cannot read {what}. {sentence(error)}")


async def _unless_lost(work: Awaitable[T], lost: asyncio.Future[str]) -> T:
    """Return the result of `work`, or give up when the sandbox has ended: some requests never return then.

    Raises:
        SandboxLostError: if the sandbox has ended.
    """
    doing = asyncio.ensure_future(work)
    try:
        await asyncio.wait((doing, lost), return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            await asyncio.wait((doing,), timeout=_GRACE_SECONDS)
        if not doing.done():
            raise SandboxLostError(lost.result())
        return await doing
    finally:
        if not doing.done():
            doing.cancel()


class ModalBackend(ApiBackend):
    """A running sandbox of Modal. This class neither starts nor ends it."""

    def __init__(self, sandbox: Any) -> None:
        """Create a backend for a running `modal.Sandbox`."""
        self.sandbox = sandbox
        self.name = f"sandbox {sandbox.object_id}"
        self._lost: asyncio.Future[str] | None = None
        self._watching: asyncio.Task[None] | None = None

    async def exec(
        self, argv: Sequence[str], env: Mapping[str, str], terminal: tuple[int, int] | None = None
    ) -> Process:
        lost = self._watched()
        words, variables = _sendable(argv, env, terminal)
        work = self.sandbox.exec.aio(*words, env=variables, text=False, pty=terminal is not None)
        try:
            process = await _unless_lost(work, lost)
        except SandboxLostError:
            raise
        except Exception as error:
            raise ResourceError(sentence(error)) from None
        return _Process(process, terminal is not None, lost)

    def _watched(self) -> asyncio.Future[str]:
        """Return a future for the reason why the sandbox has ended. Call it in the event loop of `background`."""
        if self._lost is None or self._lost.cancelled():
            self._lost = asyncio.get_running_loop().create_future()
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch(self._lost))
        return self._lost

    async def _watch(self, lost: asyncio.Future[str]) -> None:
        # The requests of programs do not report it: some are retried forever when the sandbox's machine is lost.
        while not lost.done():
            try:
                with contextlib.suppress(Exception):  # the SDK can raise for a sandbox that was ended
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
            if type(error).__name__ not in _GONE:
                raise
            return f"The {self.name} is gone. {sentence(error)}"
        return None if reason is None else f"The {self.name} {reason}"

    async def why_lost(self) -> str | None:
        lost = self._lost
        if lost is not None and lost.done() and not lost.cancelled():
            return lost.result()
        try:
            return await self._why()
        except Exception as error:
            msg = f"It is unknown whether the {self.name} still exists. {sentence(error)}"
            raise ConnectionLostError(msg) from error

    async def close(self) -> None:
        watching, self._watching = self._watching, None
        if watching is not None:
            watching.cancel()
            await asyncio.wait((watching,), timeout=_EOF_SECONDS)


def _sendable(
    argv: Sequence[str], environment: Mapping[str, str], terminal: tuple[int, int] | None
) -> tuple[list[str], dict[str, str]]:
    """Return the command and the variables to send, to run `argv` in the sandbox."""
    set_there = _SET_THERE if terminal is not None else ()
    odd = {name: value for name, value in environment.items() if name in set_there}
    words = as_words(argv, odd)
    if terminal is not None:
        words = ["bash", "-c", _RESIZE, "bash", *map(str, terminal), *words]
    return words, {name: value for name, value in environment.items() if name not in odd}
