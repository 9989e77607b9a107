"""Files and trees through Ray's object store, in pieces, in both directions; never more than a few pieces at a time.

What goes through is the stream of `swerex_c.remote.copying`: a line of JSON, then a file's bytes or a tar archive. The
sender puts each piece into its node's object store and hands the actor the reference; Ray moves it to the other node.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable
from queue import Empty, Full, Queue

from swerex_c.remote.copying import Progress, Reader, consume, produce

__all__ = ["AHEAD", "PIECE", "GivenUp", "Passage", "Turns", "pack", "unpack"]

PIECE = 4 << 20
"""Bytes of a piece, and a block more."""

AHEAD = 4
"""Pieces that are under way at once."""

_LOOK = 0.2
"""Seconds after which one that waits looks whether it is still wanted."""


class GivenUp(Exception):
    """Nobody wants the rest. It does not reach callers."""


class _Given:
    """Where a stream is written to: its pieces go to `send`, which may block."""

    def __init__(self, send: Callable[[bytes], None]):
        self._send = send
        self._held: list[bytes] = []
        self._size = 0

    def block(self) -> bytearray | None:
        return None

    def put(self, data: bytes | memoryview, block: bytearray | None = None) -> None:
        self._held.append(bytes(data))
        self._size += len(data)
        if self._size >= PIECE:
            self.flush()

    def flush(self) -> None:
        """Send what is held."""
        if self._held:
            piece = self._held[0] if len(self._held) == 1 else b"".join(self._held)
            self._held, self._size = [], 0
            self._send(piece)


class _Taken:
    """Where a stream is read from: `receive` gives its next piece, b"" at the end, and may block."""

    def __init__(self, receive: Callable[[], bytes]):
        self._receive = receive
        self._over = False

    def get(self) -> list[bytes | memoryview]:
        if self._over:
            return []
        piece = self._receive()
        self._over = not piece
        return [piece] if piece else []

    def release(self, pieces: list[bytes | memoryview]) -> None:
        """They are not used again."""


def pack(path: str, send: Callable[[bytes], None], progress: Progress | None = None) -> None:
    """Send a file or a tree. Blocks. Raises what `copying.send` raises, and `send`."""
    given = _Given(send)
    produce(path, given, progress)
    given.flush()


def unpack(
    target: str, receive: Callable[[], bytes], progress: Progress | None = None, name: str | None = None
) -> None:
    """Make what is received a file or a tree. Blocks. Raises what `copying.receive` raises, and `receive`."""
    consume(Reader(_Taken(receive), progress), target, name)


class Passage:
    """A stream that passes from one thread to another, in the actor: a few pieces wait, then the writer does."""

    def __init__(self) -> None:
        self._pieces: Queue[bytes] = Queue(AHEAD)
        self._ended = threading.Event()

    def put(self, piece: bytes) -> None:
        """Hand over a piece. Blocks.

        Raises:
            GivenUp: if it is not wanted any more.
        """
        while not self._ended.is_set():
            try:
                self._pieces.put(piece, timeout=_LOOK)
                return
            except Full:
                continue
        raise GivenUp

    def get(self) -> bytes:
        """The next piece; b"" is the end. Blocks.

        Raises:
            GivenUp: if there will be none.
        """
        while True:
            try:
                return self._pieces.get(timeout=_LOOK)
            except Empty:
                if not self._ended.is_set():
                    continue
            try:
                return self._pieces.get_nowait()  # put since, before the end
            except Empty:
                raise GivenUp from None

    def end(self) -> None:
        """Nobody puts anything more, or wants it."""
        self._ended.set()


class Turns:
    """Has what is numbered from 0 take place in that order. One event loop uses it."""

    def __init__(self) -> None:
        self._now = 0
        self._waiting: dict[int, asyncio.Future[None]] = {}

    @contextlib.asynccontextmanager
    async def turn(self, index: int) -> AsyncIterator[None]:
        """Wait for the turn of this number, which is over at the end of the block."""
        if index > self._now:
            self._waiting[index] = asyncio.get_running_loop().create_future()
            await self._waiting[index]
        try:
            yield
        finally:
            self._now = index + 1
            if (following := self._waiting.pop(self._now, None)) is not None and not following.done():
                following.set_result(None)
