"""One direction of a byte stream inside of a connection: bounded, in order, and able to go on over another one.

A `Sender` keeps what it wrote until the other end is done with it, a `Receiver` knows how far it got: between the two
no byte is lost or doubled, however often the connection breaks. Both belong to one event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from typing import Protocol

from swerex_c.exceptions import ProtocolError
from swerex_c.remote.protocol import CREDIT, END, PIECE, WINDOW

__all__ = ["Outlet", "Receiver", "Sender"]


class Outlet(Protocol):
    """The sending half of a connection."""

    paused: bool
    spare: deque[bytearray]
    """Buffers that pieces came in and that may be used again."""

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
        self._pieces: deque[memoryview] = deque()  # what was not sent yet, from `_sent` on
        self._later: deque[Iterator[bytes]] = deque()  # the rest of that, up to `_written`, to be made when it is sent
        self._done = 0
        self._sent = 0
        self._written = 0
        self._finished = False
        self._ended = False  # END was sent, over the connection that there is
        self._told = False
        self._outlet: Outlet | None = None
        self._room: asyncio.Event | None = None
        self._at_end: Callable[[], None] | None = None
        self.when_done: Callable[[int], None] | None = None
        """Called with the number of bytes that the receiver is done with, whenever it says so."""

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
        """Bytes that the receiver has yet to be done with."""
        return self._written - self._done

    def write(self, data: bytes | memoryview) -> None:
        """Take bytes to send. They are not copied and must not change. Long ones are better followed by `room`."""
        view = memoryview(data)
        pieces = [view[start : start + PIECE] for start in range(0, len(view), PIECE)]
        if self._later:
            self._later.append(map(bytes, pieces))
        else:
            self._pieces += pieces
        self._written += len(view)
        self._told = False
        self._pump()

    def write_text(self, text: str | bytes) -> None:
        """Take a text to send, in ASCII or encoded. One in ASCII is encoded as it is sent: nothing long is copied."""
        if isinstance(text, bytes):
            self.write(text)
            return
        self._later.append(_ascii_pieces(text))
        self._written += len(text)
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
        if self.when_done is not None:
            self.when_done(self._done)
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
            piece = self._next()
            if len(piece) > offset - self._sent:
                self._pieces.appendleft(piece[offset - self._sent :])
                piece = piece[: offset - self._sent]
            self._gone.append(piece)
            self._sent += len(piece)

    def _next(self) -> memoryview:
        """The next piece that was not sent yet."""
        while not self._pieces:
            if (piece := next(self._later[0], None)) is not None:
                return memoryview(piece)
            self._later.popleft()
        return self._pieces.popleft()

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
            piece = self._next()
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


def _ascii_pieces(text: str) -> Iterator[bytes]:
    for start in range(0, len(text), PIECE):
        yield text[start : start + PIECE].encode()


class Receiver:
    """Takes a stream, and hands it on in order.

    Long pieces are views of buffers that are used again: who takes pieces gives them back with `release`.
    """

    def __init__(self, exchange: int, lane: int):
        self._exchange = exchange
        self._lane = lane
        self._waiting: deque[bytes | memoryview] = deque()
        self._taken = 0
        self._credited = 0
        self._outlet: Outlet | None = None
        self._news: asyncio.Event | None = None
        self.error: BaseException | None = None
        """Why nothing will come any more."""
        self.when_news: Callable[[], None] | None = None
        """Called when there is something to `take`, or the end, or an error."""
        self.received = 0
        """Bytes received until now, the same however often the connection broke."""
        self.total: int | None = None
        """The length of the stream, once it is known."""

    def attach(self, outlet: Outlet) -> None:
        self._outlet = outlet

    def detach(self) -> None:
        self._outlet = None

    def data(self, offset: int, data: bytes | memoryview) -> None:
        """A piece has come.

        Raises:
            ProtocolError: if bytes before it are missing, or it was not to be sent yet.
        """
        if data.__class__ is not bytes and data.__class__ is not memoryview:
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
        self.error = error
        self._tell()

    def _tell(self) -> None:
        if self._news is not None:
            self._news.set()
        if self.when_news is not None:
            self.when_news()

    async def read(self) -> bytes:
        """The next bytes, as they came; b"" at the end."""
        await self.news()
        if not self._waiting:
            return b""
        piece = self._waiting.popleft()
        data = bytes(piece)
        self.release(piece)
        self.done_with(len(data))
        return data

    async def news(self) -> None:
        """Wait until there is something to take, or the end. Raises what `fail` was told if there is neither."""
        while not self._waiting and self.total is None:
            if self.error is not None:
                raise self.error
            self._news = self._news or asyncio.Event()
            self._news.clear()
            await self._news.wait()

    def take(self) -> list[bytes | memoryview]:
        """All that is there and was not read. The sender learns of it by `done_with`."""
        pieces = list(self._waiting)
        self._waiting.clear()
        return pieces

    def release(self, piece: bytes | memoryview) -> None:
        """A piece is not used any more. From any thread."""
        outlet = self._outlet
        if outlet is not None and isinstance(piece, memoryview):
            outlet.spare.append(piece.obj)  # type: ignore[arg-type]

    def done_with(self, size: int) -> None:
        """So many bytes more of what was taken have found their place: as many more may come."""
        self._taken += size
        if self._taken - self._credited >= WINDOW // 4 and self._outlet is not None:
            self._credited = self._taken
            self._outlet.send([CREDIT, self._exchange, self._lane, self._taken])

    def close(self) -> None:
        """Nothing more is read: what was kept for more to come is not needed."""
        self._waiting.clear()
        if self._outlet is not None:
            self._outlet.spare.clear()

    def credit_again(self) -> None:
        """Over a new connection: what the last credit said may have been lost."""
        if self._outlet is not None and self._taken:
            self._credited = self._taken
            self._outlet.send([CREDIT, self._exchange, self._lane, self._taken])
