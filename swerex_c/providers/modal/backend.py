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

from swerex_c.exceptions import ConnectionLostError, ResourceError, SandboxLostError, SwerexException
from swerex_c.sandbox.api_backend import ApiBackend
from swerex_c.sandbox.backend import Process
from swerex_c.sandbox.env_passing import as_words
from swerex_c.utils.visible import error_line, visible
from swerex_c.utils.wait import end_tasks

__all__ = ["ModalBackend", "sentence"]

T = TypeVar("T")

_GRACE_SECONDS = 2.0
"""Seconds to wait for the last output and the exit code of a program in a sandbox that has ended, for the end of an
abandoned program's input, or for that of the watch task."""

_PAUSE_SECONDS = 5.0
"""Seconds to pause before watching for the end of a sandbox again, as after Modal could not be reached."""

_CODES = {
    124: "was ended because its time limit was reached (deployment_timeout)",
    137: "was terminated, or killed because it exceeded its memory limit",
}
"""Why a sandbox has ended, by its exit code. Others are those of its first process."""

_GONE = ("NotFoundError", "SandboxTerminatedError", "SandboxTimeoutError")
"""Names of the SDK's errors that say that a sandbox is gone. Others leave that open."""

_SENTENCES = {
    "AuthError": "Modal refuses the credentials",
    "PermissionDeniedError": "Modal does not permit it",
    "ResourceExhaustedError": "Modal has no capacity for it, or a quota is exhausted",
    "ImageBuildError": "Modal could not build the image",
    **dict.fromkeys(
        ("ConnectionError", "InternalError", "InternalFailure", "ServiceError", "TimeoutError"),
        "Modal cannot be reached, or is unavailable",
    ),
}
"""Beginnings of sentences for errors of the SDK, by their names."""

_SET_THERE = ("PS1", "PS2", "TERM")
"""Variables that are set in the sandbox: the SDK sets TERM from this process, and the bash of `_RESIZE`, which is not
interactive, passes no prompts on."""

_RESIZE = 'stty rows "$1" cols "$2" 2>/dev/null; shift 2; exec "$@"'
"""Script that sets the size of its terminal and becomes a program. The SDK cannot be given a size: it uses that of this
process's terminal, if there is one."""


def sentence(error: BaseException) -> str:
    """Return a sentence for users that describes an error of Modal, or one of this package."""
    if isinstance(error, SwerexException):
        return str(error)
    name = type(error).__name__
    words = visible(error_line(error)).rstrip(".")
    what = _SENTENCES.get("ConnectionError" if isinstance(error, OSError) else name, "Modal says")
    how = " (run `modal setup`, or set MODAL_TOKEN_ID and MODAL_TOKEN_SECRET)" if name == "AuthError" else ""
    return f"{what}: {words}{how}"


class _Process(Process):
    """A program that `Sandbox.exec` has started."""

    def __init__(self, process: Any, terminal: bool, lost: asyncio.Task[str]) -> None:
        self._process = process
        self._terminal = terminal
        self._lost = lost
        self._outputs: asyncio.Queue[tuple[int, bytes] | Exception | None] = asyncio.Queue(maxsize=4)
        streams = [(1, process.stdout)] if terminal else [(1, process.stdout), (2, process.stderr)]
        self._reading = [asyncio.create_task(self._read(number, stream)) for number, stream in streams]
        self._open = len(streams)

    async def _read(self, number: int, stream: Any) -> None:
        end = None
        try:
            async for data in stream:
                await self._outputs.put((number, data))
        except Exception as error:
            end = error
        await self._outputs.put(end)

    async def send(self, data: bytes) -> None:
        # A request holds at most 16 MB, far more than is sent at a time.
        self._process.stdin.write(data)
        await self._drain()

    async def end_input(self) -> None:
        self._process.stdin.write_eof()
        await self._drain()

    async def _drain(self) -> None:
        await _unless_lost(self._process.stdin.drain.aio(), self._lost)

    async def receive(self) -> tuple[int, bytes] | None:
        while self._open:
            output = await _unless_lost(self._outputs.get(), self._lost)
            if isinstance(output, Exception):
                raise ResourceError(f"Cannot read the output of the program. {sentence(output)}")
            if output is not None:
                return output
            self._open -= 1
        return None

    async def wait(self) -> int:
        code = await _unless_lost(self._process.wait.aio(), self._lost, "Cannot read the exit code of the program. ")
        if code < 0:
            raise ResourceError("Modal does not report the exit code of the program")
        return int(code)

    async def close(self) -> None:
        await end_tasks(*self._reading)
        if self._terminal or self._lost.done():
            return
        # This ends a shell that waits for its next script now, rather than with the sandbox.
        with contextlib.suppress(Exception):
            await asyncio.wait_for(self.end_input(), _GRACE_SECONDS)


async def _unless_lost(work: Awaitable[T], lost: asyncio.Task[str], context: str = "") -> T:
    """Return the result of `work`, or give up when the sandbox has ended: some requests never return then.

    Raises:
        SandboxLostError: if the sandbox has ended.
        ResourceError: for an error of the SDK, with the context before it.
    """
    doing = asyncio.ensure_future(work)
    try:
        await asyncio.wait((doing, lost), return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            await asyncio.wait((doing,), timeout=_GRACE_SECONDS)
        if not doing.done() and not lost.cancelled():
            raise SandboxLostError(lost.result())
        return await doing
    except SandboxLostError:
        raise
    except Exception as error:
        raise ResourceError(f"{context}{sentence(error)}") from None
    finally:
        doing.cancel()


class ModalBackend(ApiBackend):
    """A running `modal.Sandbox`. This class neither starts nor ends it."""

    def __init__(self, sandbox: Any) -> None:
        self.sandbox = sandbox
        self.name = f"sandbox {sandbox.object_id}"
        self._watching: asyncio.Task[str] | None = None

    async def exec(
        self, argv: Sequence[str], env: Mapping[str, str], terminal: tuple[int, int] | None = None
    ) -> Process:
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch())
        lost, on_terminal = self._watching, terminal is not None
        odd = {name: value for name, value in env.items() if on_terminal and name in _SET_THERE}
        words = as_words(argv, odd)
        if terminal is not None:
            words = ["bash", "-c", _RESIZE, "bash", *map(str, terminal), *words]
        sent = {name: value for name, value in env.items() if name not in odd}
        work = self.sandbox.exec.aio(*words, env=sent, text=False, pty=on_terminal)
        return _Process(await _unless_lost(work, lost), on_terminal, lost)

    async def _watch(self) -> str:
        """Wait until the sandbox has ended; return the reason."""
        # The requests of programs do not report it: some are retried forever when the sandbox's machine is lost.
        while True:
            with contextlib.suppress(Exception):  # the SDK can raise for a sandbox that was ended
                await self.sandbox.wait.aio(raise_on_termination=False)
            with contextlib.suppress(Exception):
                if (reason := await self._why()) is not None:
                    return reason
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _why(self) -> str | None:
        """Return why the sandbox has ended; None while it runs. Raise the SDK's error if its state cannot be read."""
        try:
            code = await self.sandbox.poll.aio()
        except Exception as error:
            if type(error).__name__ not in _GONE:
                raise
            return f"The {self.name} is gone. {sentence(error)}"
        return None if code is None else f"The {self.name} {_CODES.get(code, f'has ended with exit code {code}')}"

    async def why_lost(self) -> str | None:
        if self._watching is not None and self._watching.done():
            return self._watching.result()
        try:
            return await self._why()
        except Exception as error:
            msg = f"It is unknown whether the {self.name} still exists. {sentence(error)}"
            raise ConnectionLostError(msg) from error

    async def close(self) -> None:
        watching, self._watching = self._watching, None
        if watching is not None:
            watching.cancel()
            await asyncio.wait((watching,), timeout=_GRACE_SECONDS)
