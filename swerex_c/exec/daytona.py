"""A sandbox of Daytona, reached by its terminals: nothing is installed there, and no port is opened.

What Daytona's toolbox has for streams is terminals behind a WebSocket, and only these can be made exact. A terminal by
itself is not: the shell on it greets, echoes and edits; a program that prints faster than the network takes is cut off
from it ("slow consumer", once 256 messages wait); what a program prints last may be lost when it ends. So each
program has a terminal of its own with the carrier on it, a script of bash in `_daytona_carrier` that keeps the program
on pipes and carries their bytes in frames, so many at a time as were asked for.

    send()    == "i SIZE" + bytes ==> terminal --> carrier --> pipe --> the program
    receive() <== nonce, stream, size, base64 == terminal <-- carrier <-- pipes <-- the program
              == "1", "2": one more frame may come ==>

The frames begin with a nonce that programs are not given, so that whatever else is printed on the terminal is ignored;
one of the same user that searches the carrier's memory or pipes in /proc could forge them, as in any place. The same
goes for the mark of the pipes' end, which travels in them behind the program's last output, and for the exit code.
The terminal is ended by us, after all that has arrived.

A program that is to have a terminal gets a second one, inside, made by `script` (util-linux) or python3, so that its
output can be held back too. The place needs bash 4.4, and `stty`, `dd` and `base64` of coreutils or busybox.

Environment and words go the same way as input: they show in no list of processes or of terminals, and in no log.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from swerex_c.exceptions import PlaceLostError
from swerex_c.exec import loops
from swerex_c.exec._daytona_carrier import BOOTSTRAP, FAILURES, script
from swerex_c.exec.called import CalledBackend, Program

__all__ = ["DaytonaBackend", "DaytonaProgram", "sentence", "state_words", "why_lost"]

_START_SECONDS = 60.0
"""How long a terminal may take until the carrier runs on it."""

_ABANDON_SECONDS = 10.0
"""How long ending a terminal may take that was not even ready."""

_MESSAGE = 32 * 1024
"""Bytes of one message to a terminal. The toolbox takes 64 KiB."""

_INPUT = 256 * 1024
"""Bytes of input that are on their way at once."""

_CREDIT = 3
"""Frames of each stream that may be on their way. As base64, those of both are 288 KiB: at no less than 1.2 KiB in a
message they fit into what the toolbox keeps for one who reads slowly."""

_NOISE = 2000
"""Bytes that are kept of what the terminal shows before the carrier does, to tell why it does not."""

class _Ended:
    """In the place of output: there is no more."""

    def __init__(self, error: str | None) -> None:
        self.error = error


class DaytonaProgram(Program):
    """A program behind a terminal of the toolbox, carried by the script of `_daytona_carrier`."""

    def __init__(self, name: str) -> None:
        """name: what messages call the place."""
        self._name = name
        self._half, self._other = secrets.token_hex(8), secrets.token_hex(8)
        self._key = secrets.token_hex(16).encode()
        self._mark = secrets.token_hex(16).encode()
        self._id = f"swerex-c-{secrets.token_hex(12)}"
        self._handle: Any = None
        self._process: Any = None
        self._noise = bytearray()
        self._line: list[bytes] = []  # the beginning of a frame whose end has not come yet
        self._ready = asyncio.Event()
        self._letter = ""
        self._broken: str | None = None
        self._outputs: asyncio.Queue[tuple[int, bytes] | _Ended] = asyncio.Queue()  # bounded by the credit
        self._held = {1: b"", 2: b""}  # what may be the beginning of the mark
        self._open = {1, 2}
        self._code: int | None = None
        self._taken = asyncio.Event()  # the last input was
        self._sending = asyncio.Lock()
        self._watching: asyncio.Task[None] | None = None
        self._turn = loops.turn()

    async def start(
        self,
        process: Any,
        argv: Sequence[str],
        environment: Mapping[str, str],
        terminal: tuple[int, int] | None,
    ) -> None:
        """Begin. What was begun is ended by `abandon`, also if this fails.

        Args:
            process: the sandbox's `process` of the SDK.

        Raises:
            PlaceLostError: if the sandbox cannot run it, with the reason.
            Exception: the SDK's, if it cannot be reached.
        """
        self._process = process
        self._handle = await process.create_pty_session(self._id, self._hear)
        self._watching = asyncio.create_task(self._watch())
        await self._send(BOOTSTRAP.format(a=self._half, b=self._other).encode())
        try:
            await asyncio.wait_for(self._ready.wait(), _START_SECONDS)
        except TimeoutError:
            raise PlaceLostError(f"The shell of the {self._name} does not answer{self._shown()}") from None
        if self._letter != "R":
            why = FAILURES.get(self._letter) or f"its connection broke: {self._broken}{self._shown()}"
            raise PlaceLostError(f"Nothing can be run in the {self._name}, for {why}")
        text = script(self._key.decode(), self._mark.decode(), argv, environment, terminal)
        credit = b"1\n2\n" * _CREDIT
        await self._send(f"{self._other} {len(text)}\n".encode() + text + credit)

    def _shown(self) -> str:
        text = " ".join(bytes(self._noise).decode(errors="replace").split())
        return f" (it showed: {text[-300:]})" if text else ""

    # ---- what comes -----------------------------------------------------------------------------------------------

    async def _hear(self, data: bytes) -> None:
        """Called by the SDK with what the terminal shows. Whatever is wrong here must not go back to the SDK."""
        self._put(data)
        await self._turn.over()

    def _put(self, data: bytes) -> None:
        if not self._ready.is_set():
            self._wait_for_letter(data)
            return
        *lines, rest = data.split(b"\n")
        for line in lines:
            self._take(b"".join((*self._line, line)))
            self._line.clear()
        if rest:
            self._line.append(rest)

    def _wait_for_letter(self, data: bytes) -> None:
        self._noise += data
        sign = f"{self._half}{self._other}".encode()
        at = self._noise.find(sign)
        if at >= 0 and len(self._noise) > at + len(sign):
            self._letter = chr(self._noise[at + len(sign)])
            del self._noise[at:]
            self._ready.set()
        elif at < 0:
            del self._noise[: -_NOISE - len(sign)]

    def _take(self, line: bytes) -> None:
        """A line of the terminal. One that is no frame is somebody else's, and nothing to us."""
        at = line.rfind(self._key)
        if at < 0:
            return
        kind, body = line[at + len(self._key) : at + len(self._key) + 1], line[at + len(self._key) + 1 :]
        size, _, body = body.rstrip(b"\r").partition(b" ")
        try:
            if int(size) != len(body):
                raise ValueError("a part is missing")
            if kind in (b"1", b"2"):
                self._outputs.put_nowait((int(kind), base64.b64decode(body, validate=True)))
            elif kind == b"a":
                self._taken.set()
            elif kind == b"x":
                self._code = int(body)
            elif kind == b"f":
                why = FAILURES.get(body.decode(), "its shell does not work")
                self._lose(f"Nothing can be run in the {self._name}, for {why}")
        except ValueError:
            self._lose(f"What the {self._name} sent over its terminal was damaged on the way")
            return
        if kind == b"x":
            self._outputs.put_nowait(_Ended(None))

    async def _watch(self) -> None:
        """Wait for the end of the connection, which comes before the program's only if it broke."""
        why = ""
        try:
            result = await self._handle.wait()
            why = str(result.error or "") or (f"status {result.exit_code}" if result.exit_code is not None else "")
        except asyncio.CancelledError:
            raise
        except Exception as error:
            why = str(error)
        self._lose(f"The connection to a terminal of the {self._name} ended" + (f": {why}" if why else ""))

    def _lose(self, why: str) -> None:
        self._broken = self._broken or why
        self._ready.set()
        self._taken.set()
        self._outputs.put_nowait(_Ended(self._broken))

    async def receive(self) -> tuple[int, bytes] | None:
        while self._open or self._code is None:
            output = await self._outputs.get()
            if isinstance(output, _Ended):
                if output.error is not None:
                    raise PlaceLostError(output.error)
                continue  # the code; what was printed is still to come, if the frames of the streams come later
            stream, data = output
            if stream not in self._open:
                continue  # printed by what the program left
            with contextlib.suppress(Exception):  # a connection that broke is told in its turn
                await self._send(b"%d\n" % stream)
            data = self._until_mark(stream, data)
            if data:
                return stream, data
        return None

    def _until_mark(self, stream: int, data: bytes) -> bytes:
        """What belongs to the program, of what came on one of its streams."""
        data = self._held[stream] + data
        at = data.find(self._mark)
        if at >= 0:
            self._open.discard(stream)
            return data[:at]
        longest = min(len(self._mark) - 1, len(data))
        keep = next((n for n in range(longest, 0, -1) if self._mark.startswith(data[-n:])), 0)
        self._held[stream] = data[len(data) - keep :]
        return data[: len(data) - keep]

    async def wait(self) -> int:
        assert self._code is not None
        return self._code

    # ---- what goes ------------------------------------------------------------------------------------------------

    async def _send(self, data: bytes) -> None:
        async with self._sending:
            for i in range(0, len(data), _MESSAGE):
                await self._handle.send_input(data[i : i + _MESSAGE])

    async def send(self, data: bytes) -> None:
        for i in range(0, len(data), _INPUT):
            piece = data[i : i + _INPUT]
            self._taken.clear()
            if self._broken is None:
                await self._send(b"i %d\n" % len(piece) + piece)
                await self._taken.wait()
            if self._broken is not None:
                raise PlaceLostError(self._broken)

    async def end_input(self) -> None:
        await self._send(b"e\n")

    async def abandon(self) -> None:
        """End the terminal, and with it all that its shell has started and that has not gone its own ways."""
        if self._watching is not None:
            self._watching.cancel()
        if self._process is None:
            return
        try:
            await self._process.kill_pty_session(self._id)
        finally:
            if self._handle is not None:
                await self._handle.disconnect()


class DaytonaBackend(CalledBackend):
    """A sandbox that was started already. It stays when this is closed."""

    def __init__(self, sandbox: Any) -> None:
        """sandbox: an `AsyncSandbox` of the SDK, made in the loop of `swerex_c.exec.loops`."""
        self.name = f"sandbox {sandbox.id}"
        self._sandbox = sandbox

    async def start_program(
        self, argv: Sequence[str], environment: Mapping[str, str], terminal: tuple[int, int] | None
    ) -> Program:
        program = DaytonaProgram(self.name)
        try:
            await program.start(self._sandbox.process, argv, environment, terminal)
        except BaseException:
            with contextlib.suppress(Exception):
                await asyncio.shield(asyncio.wait_for(program.abandon(), _ABANDON_SECONDS))
            raise
        return program

    def why_lost(self, timeout: float) -> str | None:
        try:
            return self.call(why_lost(self._sandbox), timeout)
        except TimeoutError:
            raise TimeoutError(f"Daytona did not tell within {timeout:g} s what became of the {self.name}") from None


async def why_lost(sandbox: Any) -> str | None:
    """What became of a sandbox, as a sentence; None while it runs.

    Raises:
        TimeoutError: if Daytona cannot tell just now.
    """
    try:
        await sandbox.refresh_data()
    except Exception as error:
        status = getattr(error, "status_code", None)
        if status == 404:
            return f"The sandbox {sandbox.id} is gone: it was deleted, or its time was over"
        if status in (401, 403):
            return f"The sandbox {sandbox.id} is out of reach. {sentence(error)}"
        raise TimeoutError(sentence(error)) from error
    return state_words(sandbox)


def state_words(sandbox: Any) -> str | None:
    """What the state says that a sandbox was in when it was last asked for; None if something can be run in it."""
    state = str(getattr(sandbox.state, "value", sandbox.state) or "")
    what = _STATES.get(state)
    if what is None:
        return None
    reason = f": {sandbox.error_reason}" if sandbox.error_reason else ""
    return f"The sandbox {sandbox.id} {what}{reason}"


_STOPPED = "was stopped, by somebody or because it was not used for as long as its auto-stop allows"
_PAUSED = "was paused, by somebody or because it was not used"
_ARCHIVED = "was archived"
_DESTROYED = "was deleted, by somebody or because its time was over"

_STATES = {
    "stopped": _STOPPED,
    "stopping": _STOPPED,
    "paused": _PAUSED,
    "pausing": _PAUSED,
    "archived": _ARCHIVED,
    "archiving": _ARCHIVED,
    "destroyed": _DESTROYED,
    "destroying": _DESTROYED,
    "error": "has failed",
    "build_failed": "could not be built",
}
"""States in which nothing can be run, nor soon again. Of one that is starting the terminals tell."""


def sentence(error: BaseException) -> str:
    """What went wrong with Daytona, in one sentence for people."""
    words = " ".join(str(error).split()).rstrip(".")
    for prefix in ("Failed to create sandbox: ", "Failure during waiting for sandbox to start: "):
        words = words.removeprefix(prefix)
    name, status = type(error).__name__, getattr(error, "status_code", None)
    words = words or name
    if status == 401 or name == "DaytonaAuthenticationError":
        return f"Daytona does not know who asks: {words} (the key is api_key, or DAYTONA_API_KEY)"
    if status == 403:
        return f"Daytona does not permit it, or a quota is used up: {words}"
    if status == 429:
        return f"Daytona takes no more requests just now: {words}"
    if "Connection" in name or status in (502, 503, 504):
        return f"Daytona cannot be reached, or does not work just now: {words}"
    return f"Daytona says: {words}"
