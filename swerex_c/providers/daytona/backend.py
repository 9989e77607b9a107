"""Backend that runs programs in a Daytona sandbox over its terminals.

Nothing is installed in the sandbox, and no port is opened.

Of the streams of Daytona's toolbox only its terminals, which are behind a WebSocket, can be made exact. By itself a
terminal is not: its shell greets, echoes and edits; the toolbox cuts off a program that prints faster than the network
takes ("slow consumer", once 256 messages wait); the last output of a program may be lost when it ends. So each program
has a terminal of its own, on which the bash script `TRANSPORT` of `terminal` runs: it keeps the program on pipes and
transports their bytes in frames, never more at a time than were requested.

    send()    == "i SIZE" + bytes ==> terminal --> TRANSPORT --> pipe --> the program
    receive() <== nonce, stream, size, base64 == terminal <-- TRANSPORT <-- pipes <-- the program
              == "1", "2": one more frame may come ==>

The frames begin with a nonce that programs do not get, so that other output on the terminal is ignored. A process of
the same user that searches the script's memory or pipes in /proc could forge frames, as in any sandbox; also the mark
that ends the pipes, which travels in them behind the program's last output, and the exit code. We end the terminal
after all of these have arrived.

A program that needs a terminal gets a second one, inside, made by `script` (util-linux) or python3, so that its
output can be held back too. The sandbox needs bash 4.4, and `stty`, `dd` and `base64` of coreutils or busybox.

Environment and words are sent as input: they appear in no list of processes or of terminals, and in no log.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from swerex_c.exceptions import SandboxLostError, SwerexException
from swerex_c.providers.daytona.terminal import BOOTSTRAP, FAILURES, script
from swerex_c.sandbox.api_backend import ApiBackend
from swerex_c.sandbox.backend import Process
from swerex_c.utils.visible import error_line, visible

__all__ = ["DaytonaBackend", "DaytonaProgram", "sentence"]

_START_SECONDS = 60.0
"""Seconds to wait until bash on a new terminal is ready for the script."""

_ABANDON_SECONDS = 10.0
"""Seconds to wait for the end of a terminal whose program did not start."""

_MESSAGE = 32 * 1024
"""Maximum number of bytes in a message to a terminal. The toolbox takes 64 KiB."""

_INPUT = 256 * 1024
"""Maximum number of bytes of input in transit."""

_CREDIT = 3
"""Maximum number of frames of each stream in transit. In base64, those of both streams are 288 KiB: at no less than
1.2 KiB per message they fit into the buffer that the toolbox has for a slow reader."""

_PREAMBLE = 2000
"""Number of bytes of a terminal's output to keep until bash is ready, to explain why it is not."""


class DaytonaProgram(Process):
    """A program on a terminal of the toolbox, run by the script `TRANSPORT`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._nonce_begin, self._nonce_end = secrets.token_hex(8), secrets.token_hex(8)
        self._frame_key = secrets.token_hex(16).encode()
        self._end_mark = secrets.token_hex(16).encode()
        self._id = f"swerex-c-{secrets.token_hex(12)}"
        self._handle: Any = None
        self._process: Any = None
        self._preamble = bytearray()
        self._partial: list[bytes] = []  # the parts of a frame whose end has not arrived yet
        self._ready = asyncio.Event()
        self._readiness = ""  # the letter that `BOOTSTRAP` prints behind the nonce
        self._broken: str | None = None  # why the connection broke
        # Frames of the streams, whose number `_CREDIT` bounds; None for the exit code or the end of the connection.
        self._outputs: asyncio.Queue[tuple[int, bytes] | None] = asyncio.Queue()
        self._held_back = {1: b"", 2: b""}  # data that may be the beginning of the mark
        self._open = {1, 2}
        self._code: int | None = None
        self._acknowledged = asyncio.Event()  # set when the script has written the last input
        self._sending = asyncio.Lock()
        self._watching: asyncio.Task[None] | None = None

    async def start(
        self, process: Any, argv: Sequence[str], environment: Mapping[str, str], terminal: tuple[int, int] | None
    ) -> None:
        """Start the program with `sandbox.process` of the SDK. `close` ends what was started, also if this fails."""
        self._process = process
        self._handle = await process.create_pty_session(self._id, self._on_output)
        self._watching = asyncio.create_task(self._watch())
        await self._send(BOOTSTRAP.format(a=self._nonce_begin, b=self._nonce_end).encode())
        try:
            await asyncio.wait_for(self._ready.wait(), _START_SECONDS)
        except TimeoutError:
            raise SandboxLostError(f"The shell of the {self._name} does not answer{self._shown()}") from None
        if self._readiness != "R":
            why = FAILURES.get(self._readiness) or f"its connection broke: {self._broken}{self._shown()}"
            raise SandboxLostError(f"Cannot run commands in the {self._name}: {why}")
        text = script(self._frame_key.decode(), self._end_mark.decode(), argv, environment, terminal)
        credit = b"1\n2\n" * _CREDIT
        await self._send(f"{self._nonce_end} {len(text)}\n".encode() + text + credit)

    def _shown(self) -> str:
        text = " ".join(bytes(self._preamble).decode(errors="replace").split())
        return f" (it showed: {text[-300:]})" if text else ""

    # ---- output ---------------------------------------------------------------------------------------------------

    async def _on_output(self, data: bytes) -> None:
        """Handle output of the terminal; the SDK calls this, so it must not raise."""
        if self._ready.is_set():
            *lines, rest = data.split(b"\n")
            for line in lines:
                self._on_line(b"".join((*self._partial, line)))
                self._partial.clear()
            self._partial.append(rest)
        else:
            self._find_readiness(data)
        await asyncio.sleep(0)

    def _find_readiness(self, data: bytes) -> None:
        self._preamble += data
        _, _, after = self._preamble.partition(f"{self._nonce_begin}{self._nonce_end}".encode())
        if after:
            self._readiness = chr(after[0])
            self._ready.set()
        del self._preamble[:-_PREAMBLE]

    def _on_line(self, line: bytes) -> None:
        """Handle a line of the terminal. A line that is not a frame comes from another program and is ignored."""
        _, key, frame = line.rpartition(self._frame_key)
        if not key:
            return
        kind = frame[:1]
        size, _, body = frame[1:].rstrip(b"\r").partition(b" ")
        try:
            if int(size) != len(body):
                raise ValueError("a part is missing")
            if kind in (b"1", b"2"):
                self._outputs.put_nowait((int(kind), base64.b64decode(body, validate=True)))
            elif kind == b"a":
                self._acknowledged.set()
            elif kind == b"x":
                self._code = int(body)
                self._outputs.put_nowait(None)
            elif kind == b"f":
                why = FAILURES.get(body.decode(), "its shell does not work")
                self._break(f"Cannot run commands in the {self._name}: {why}")
        except ValueError:
            self._break(f"The data that the {self._name} sent over its terminal is corrupt")

    async def _watch(self) -> None:
        """Wait for the end of the connection, which ends before the program only if it broke."""
        try:
            result = await self._handle.wait()
            why = result.error or f"status {result.exit_code}"
        except Exception as error:
            why = error
        self._break(f"The connection to a terminal of the {self._name} ended: {why}")

    def _break(self, why: str) -> None:
        self._broken = self._broken or why
        self._ready.set()
        self._acknowledged.set()
        self._outputs.put_nowait(None)

    async def receive(self) -> tuple[int, bytes] | None:
        while self._open or self._code is None:
            if (output := await self._outputs.get()) is None:
                if self._broken is not None:
                    raise SandboxLostError(self._broken)
                continue  # frames of the streams may follow the exit code
            stream, data = output
            if stream not in self._open:
                continue  # output of processes that the program left behind
            with contextlib.suppress(Exception):  # the queue reports a broken connection
                await self._send(b"%d\n" % stream)
            data = self._until_mark(stream, data)
            if data:
                return stream, data
        return None

    def _until_mark(self, stream: int, data: bytes) -> bytes:
        """Return the output before the mark; hold back a possible beginning of the mark."""
        data = self._held_back[stream] + data
        at = data.find(self._end_mark)
        if at >= 0:
            self._open.discard(stream)
            return data[:at]
        longest = min(len(self._end_mark) - 1, len(data))
        keep = next((n for n in range(longest, 0, -1) if self._end_mark.startswith(data[-n:])), 0)
        self._held_back[stream] = data[len(data) - keep :]
        return data[: len(data) - keep]

    async def wait(self) -> int:
        assert self._code is not None
        return self._code

    # ---- input ----------------------------------------------------------------------------------------------------

    async def _send(self, data: bytes) -> None:
        async with self._sending:
            for i in range(0, len(data), _MESSAGE):
                await self._handle.send_input(data[i : i + _MESSAGE])

    async def send(self, data: bytes) -> None:
        for i in range(0, len(data), _INPUT):
            piece = data[i : i + _INPUT]
            self._acknowledged.clear()
            if self._broken is None:
                await self._send(b"i %d\n" % len(piece) + piece)
                await self._acknowledged.wait()
            if self._broken is not None:
                raise SandboxLostError(self._broken)

    async def end_input(self) -> None:
        await self._send(b"e\n")

    async def close(self) -> None:
        """End the terminal, with all processes of its shell that are attached to it."""
        if self._watching is not None:
            self._watching.cancel()
        try:
            await self._process.kill_pty_session(self._id)
        finally:
            if self._handle is not None:
                await self._handle.disconnect()


class DaytonaBackend(ApiBackend):
    """A running sandbox of Daytona. It keeps running when the backend is closed."""

    def __init__(self, sandbox: Any) -> None:
        """Take an `AsyncSandbox` of the SDK, made in the event loop of `swerex_c.utils.background`."""
        self.name = f"sandbox {sandbox.id}"
        self._sandbox = sandbox

    async def exec(
        self, argv: Sequence[str], env: Mapping[str, str], terminal: tuple[int, int] | None = None
    ) -> Process:
        program = DaytonaProgram(self.name)
        try:
            await program.start(self._sandbox.process, argv, env, terminal)
        except BaseException:
            with contextlib.suppress(Exception):
                await asyncio.shield(asyncio.wait_for(program.close(), _ABANDON_SECONDS))
            raise
        return program

    async def why_lost(self) -> str | None:
        """Return why the sandbox can run nothing more; None if it runs or is starting; see `Backend.why_lost`.

        Raises:
            TimeoutError: if the state cannot be read now.
        """
        sandbox, name = self._sandbox, f"The {self.name}"
        try:
            await sandbox.refresh_data()
        except Exception as error:
            status = getattr(error, "status_code", None)
            if status == 404:
                return f"{name} is gone: it was deleted, or its time limit was reached"
            if status in (401, 403):
                return f"{name} is out of reach. {sentence(error)}"
            raise TimeoutError(sentence(error)) from error
        what = _STATES.get(str(getattr(sandbox.state, "value", sandbox.state)))
        if what is None:
            return None
        return f"{name} {what}" + (f": {sandbox.error_reason}" if sandbox.error_reason else "")


_STATES = {
    **dict.fromkeys(("stopped", "stopping"), "was stopped, by a user or by its auto-stop interval"),
    **dict.fromkeys(("paused", "pausing"), "was paused, by a user or because it was idle"),
    **dict.fromkeys(("archived", "archiving"), "was archived"),
    **dict.fromkeys(("destroyed", "destroying"), "was deleted, by a user or because its time limit was reached"),
    "error": "has failed",
    "build_failed": "could not be built",
}
"""States in which nothing can run, now or soon. If a sandbox is starting, its terminals report whether it runs."""


def sentence(error: BaseException) -> str:
    """Return a sentence for users that describes an error of Daytona, or one of this package."""
    if isinstance(error, SwerexException):
        return str(error)
    words = visible(error_line(error)).rstrip(".")
    name, status = type(error).__name__, getattr(error, "status_code", None)
    if status == 401 or name == "DaytonaAuthenticationError":
        return f"Daytona refuses the key: {words} (set api_key or DAYTONA_API_KEY)"
    if status == 403:
        return f"Daytona does not permit it, or a quota is exhausted: {words}"
    if status == 429:
        return f"Daytona's rate limit is reached: {words}"
    if "Connection" in name or status in (502, 503, 504):
        return f"Daytona cannot be reached, or is unavailable: {words}"
    return f"Daytona says: {words}"
