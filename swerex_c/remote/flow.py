"""One direction of a byte stream inside of a connection: bounded, in order, and able to go on over another one.

A `Sender` keeps what it wrote until the other end is done with it, a `Receiver` knows how far it got: between the two
no byte is lost or doubled, however often the connection breaks. Both belong to one event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

from swerex_c.exceptions import ProtocolError
from swerex_c.remote.protocol import CREDIT, END, PIECE, WINDOW

__all__ = ["Outlet", "Receiver", "Sender"]


class Outlet(Protocol):
    """The sending half of a connection."""

    paused: bool

    def send(self, frame: list[object]) -> None:
        """Send one frame."""

    def send_piece(self, exchange: int, lane: int, offset: int, piece: memoryview) -> None:
        """Send a DATA frame."""

    def wait_for_room(self, pump: Callable[[], None]) -> None:
        """Call `pump` when it is no longer paused."""


class Sender:
    """Sends a stream, at most WINDOW bytes ahead of the receiver."""

    def __init__(self, exchange: int, lane: int):
        self._exchange = exchange
        self._lane = lane
        self._gone: deque[memoryview] = deque()  # what was sent and the receiver is not done with: `_done` to `_sent`
        self._pieces: deque[memoryview] = deque()  # what was not sent yet: `_sent` to `_written`
        self._done = 0
        self._sent = 0
        self._written = 0
        self._finished = False
        self._ended = False  # END was sent, over the connection that there is
        self._told = False
        self._outlet: Outlet | None = None
        self._room: asyncio.Event | None = None
        self._at_end: Callable[[], None] | None = None

    @property
    def written(self) -> int:
        """Bytes written until now."""
        return self._written

    @property
    def through(self) -> bool:
        """Whether everything written was sent over the connection that there is now."""
        return self._outlet is not None and self._sent == self._written

    @property
    def held(self) -> int:
        """Bytes in memory."""
        return self._written - self._done

    def write(self, data: bytes | memoryview) -> None:
        """Take bytes to send. They are not copied and must not change. Long ones are better followed by `room`."""
        view = memoryview(data)
        for start in range(0, len(view), PIECE):
            self._pieces.append(view[start : start + PIECE])
        self._written += len(view)
        self._told = False
        self._pump()

    def finish(self) -> None:
        """There is no more."""
        self._finished = True
        self._pump()

    def when_sent(self, then: Callable[[], None]) -> None:
        """Call `then` when everything written has been sent, and once more for each later connection."""
        self._at_end = then
        self._told = False
        self._pump()

    async def room(self) -> None:
        """Wait until less than WINDOW bytes are held."""
        while self.held >= WINDOW:
            self._room = self._room or asyncio.Event()
            self._room.clear()
            await self._room.wait()

    def credit(self, offset: int) -> None:
        """The receiver is done with so many bytes.

        Raises:
            ProtocolError: if it cannot be.
        """
        if offset.__class__ is not int or offset > self._sent:
            raise ProtocolError("Credit was given for bytes that were never sent")
        self._drop(offset)
        if self._room is not None and self.held < WINDOW:
            self._room.set()
        self._pump()

    def attach(self, outlet: Outlet, offset: int) -> None:
        """Send over this connection, from this byte on, which the receiver is to get next.

        Raises:
            ProtocolError: if those bytes are not there any more, or never were.
        """
        if offset.__class__ is not int or not self._done <= offset <= self._written:
            raise ProtocolError("The stream cannot go on at the byte that was named")
        self._rewind(offset)
        self._ended = self._told = False
        self._outlet = outlet
        self._pump()

    def detach(self) -> None:
        """The connection is gone."""
        self._outlet = None

    def _drop(self, offset: int) -> None:
        while self._gone and self._done + len(self._gone[0]) <= offset:
            self._done += len(self._gone.popleft())
        if self._gone and offset > self._done:
            self._gone[0] = self._gone[0][offset - self._done :]
            self._done = offset

    def _rewind(self, offset: int) -> None:
        """Send next what is at this place, which was sent before, or not yet, to a connection that was lost."""
        self._pieces.extendleft(reversed(self._gone))
        self._gone.clear()
        self._sent = self._done
        while self._sent < offset:
            piece = self._pieces.popleft()
            if len(piece) > offset - self._sent:
                self._pieces.appendleft(piece[offset - self._sent :])
                piece = piece[: offset - self._sent]
            self._gone.append(piece)
            self._sent += len(piece)

    def _pump(self) -> None:
        outlet = self._outlet
        if outlet is None:
            return
        limit = self._done + WINDOW
        while self._sent < self._written:
            if self._sent >= limit:
                return
            if outlet.paused:
                outlet.wait_for_room(self._pump)
                return
            piece = self._pieces.popleft()
            self._gone.append(piece)
            offset = self._sent
            self._sent += len(piece)
            outlet.send_piece(self._exchange, self._lane, offset, piece)
        if self._finished and not self._ended:
            self._ended = True
            outlet.send([END, self._exchange, self._lane, self._written])
        if self._at_end is not None and not self._told:
            self._told = True
            self._at_end()


class Receiver:
    """Takes a stream, and hands it on in order."""

    def __init__(self, exchange: int, lane: int):
        self._exchange = exchange
        self._lane = lane
        self._waiting: deque[bytes] = deque()
        self._taken = 0
        self._credited = 0
        self._outlet: Outlet | None = None
        self._news: asyncio.Event | None = None
        self._error: BaseException | None = None
        self.received = 0
        """Bytes received until now, the same however often the connection broke."""
        self.total: int | None = None
        """The length of the stream, once it is known."""

    def attach(self, outlet: Outlet) -> None:
        self._outlet = outlet

    def detach(self) -> None:
        self._outlet = None

    def data(self, offset: int, data: bytes) -> None:
        """A piece has come.

        Raises:
            ProtocolError: if bytes before it are missing, or it was not to be sent yet.
        """
        if data.__class__ is not bytes:
            raise ProtocolError("A piece of a stream is not bytes")
        if offset != self.received or self.received + len(data) > self._credited + WINDOW + PIECE:
            raise ProtocolError("A stream has a gap, or came faster than it may")
        if self.total is not None:
            raise ProtocolError("A stream goes on after its end")
        if data:
            self.received += len(data)
            self._waiting.append(data)
            self._tell()

    def end(self, offset: int) -> None:
        """There is no more; may be said again after the connection broke."""
        if offset != self.received:
            raise ProtocolError("A stream ends elsewhere than it should")
        self.total = offset
        self._tell()

    def fail(self, error: BaseException) -> None:
        """Nothing will come any more: who reads gets this."""
        self._error = error
        self._tell()

    def _tell(self) -> None:
        if self._news is not None:
            self._news.set()

    async def read(self) -> bytes:
        """The next bytes, as they came; b"" at the end."""
        while not self._waiting:
            if self.total is not None:
                return b""
            if self._error is not None:
                raise self._error
            self._news = self._news or asyncio.Event()
            self._news.clear()
            await self._news.wait()
        data = self._waiting.popleft()
        self._done_with(len(data))
        return data

    def take(self) -> list[bytes]:
        """All that is there and was not read."""
        pieces = list(self._waiting)
        self._waiting.clear()
        self._done_with(sum(map(len, pieces)))
        return pieces

    def _done_with(self, size: int) -> None:
        self._taken += size
        if self._taken - self._credited >= WINDOW // 4 and self._outlet is not None:
            self._credited = self._taken
            self._outlet.send([CREDIT, self._exchange, self._lane, self._taken])

    def credit_again(self) -> None:
        """Over a new connection: what the last credit said may have been lost."""
        if self._outlet is not None and self._taken:
            self._credited = self._taken
            self._outlet.send([CREDIT, self._exchange, self._lane, self._taken])
