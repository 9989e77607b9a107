"""Ordered byte streams with flow control that continue over another connection.

A `Sender` keeps sent pieces until the receiver has consumed them. After a reconnect, it sends again from the last
credit on; the `Receiver` drops what it already has. So no byte is lost or duplicated if the connection breaks. Both
objects belong to one event loop.
"""

from __future__ import annotations

import asyncio
import io
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator

from swerex_c.exceptions import ProtocolError
from swerex_c.remote.wire.connection import FrameConnection
from swerex_c.remote.wire.protocol import CREDIT, END, PIECE, WINDOW

__all__ = ["Receiver", "Sender"]


class Sender:
    """Sending end of a stream, at most WINDOW bytes ahead of the receiver's credit.

    Args:
        connection: connection to send over; None until `attach`.
    """

    def __init__(self, exchange: int, lane: int, connection: FrameConnection | None = None):
        self._exchange = exchange
        self._lane = lane
        self._unacknowledged: deque[memoryview] = deque()  # sent, from offset `_acknowledged` to `_sent`
        self._unsent: deque[memoryview] = deque()  # not sent yet, from offset `_sent` to `written`
        self._acknowledged = 0
        self._sent = 0
        self.written = 0
        """Number of bytes written so far."""
        self._finished = False
        self._ended = False  # END was sent over the current connection
        self._connection = connection
        self._room = asyncio.Event()

    @property
    def held(self) -> int:
        """Number of written bytes that the receiver has not consumed yet."""
        return self.written - self._acknowledged

    def write(self, data: bytes | memoryview) -> None:
        """Queue bytes for sending, which are not copied and must not change. After long data, await `room`."""
        view = memoryview(data)
        self._unsent += [view[start : start + PIECE] for start in range(0, len(view), PIECE)]
        self.written += len(view)
        self._pump()

    async def send(self, pieces: AsyncIterator[bytes]) -> None:
        """Send pieces as fast as the receiver takes them."""
        async for piece in pieces:
            self.write(piece)
            await self.room()

    def finish(self) -> None:
        """Mark the end of the stream, and send END after the written bytes."""
        self._finished = True
        self._pump()

    async def room(self) -> None:
        """Wait until fewer than WINDOW bytes are held."""
        while self.held >= WINDOW:
            self._room.clear()
            await self._room.wait()

    def credit(self, offset: int) -> None:
        """Drop the whole pieces before `offset`, which the receiver has consumed, and send more.

        Raises:
            ProtocolError: if some of these bytes were never written.
        """
        if offset.__class__ is not int or offset > self.written:
            raise ProtocolError("A CREDIT frame is for bytes that were never sent")
        for pieces in (self._unacknowledged, self._unsent):  # unsent again, if an earlier connection delivered them
            while pieces and self._acknowledged + len(pieces[0]) <= offset:
                self._acknowledged += len(pieces.popleft())
        self._sent = max(self._sent, self._acknowledged)
        self._room.set()
        self._pump()

    def attach(self, connection: FrameConnection) -> None:
        """Send over another connection, from the last credit on."""
        self._unsent.extendleft(reversed(self._unacknowledged))
        self._unacknowledged.clear()
        self._sent = self._acknowledged
        self._ended = False
        self._connection = connection
        self._pump()

    def detach(self) -> None:
        self._connection = None

    def _pump(self) -> None:
        connection = self._connection
        if connection is None:
            return
        limit = self._acknowledged + WINDOW
        while self._sent < self.written:
            if self._sent >= limit:
                return
            if connection.paused:
                connection.wait_for_room(self._pump)
                return
            piece = self._unsent.popleft()
            self._unacknowledged.append(piece)
            offset = self._sent
            self._sent += len(piece)
            connection.send_piece(self._exchange, self._lane, offset, piece)
        if self._finished and not self._ended:
            self._ended = True
            connection.send([END, self._exchange, self._lane, self.written])


class Receiver:
    """Receiving end of a stream.

    Args:
        connection: connection to send credit over; None until `attach`.
    """

    def __init__(self, exchange: int, lane: int, connection: FrameConnection | None = None):
        self._exchange = exchange
        self._lane = lane
        self._unread: deque[bytes] = deque()
        self._consumed = 0
        self._credited = 0
        self._connection = connection
        self._changed = asyncio.Event()
        self.error: BaseException | None = None
        """Error of a stream that has failed."""
        self.received = 0
        """Number of bytes received so far, each counted once."""
        self.total: int | None = None
        """Length of the stream in bytes; None until END is received."""

    def attach(self, connection: FrameConnection) -> None:
        """Receive over another connection; repeat the credit, which may be lost."""
        self._connection = connection
        if self._consumed:
            self._credit()

    def detach(self) -> None:
        self._connection = None

    def data(self, offset: int, data: bytes) -> None:
        """Add a received piece, or drop it if an earlier connection delivered it.

        Raises:
            ProtocolError: if there is a gap before it, or it exceeds the credit, comes after END, or is not bytes.
        """
        if data.__class__ is not bytes or offset.__class__ is not int or offset < 0:
            raise ProtocolError("A piece of a stream is not bytes at an offset")
        if offset + len(data) <= self.received:
            return
        if offset != self.received or self.received + len(data) > self._credited + WINDOW + PIECE:
            raise ProtocolError("A stream has a gap, or exceeds its credit")
        if self.total is not None:
            raise ProtocolError("A stream continues after its end")
        self.received += len(data)
        self._unread.append(data)
        self._changed.set()

    def end(self, offset: int) -> None:
        """Mark the end of the stream, at `offset`; a sender may repeat it over a new connection.

        Raises:
            ProtocolError: if `offset` is not the number of received bytes.
        """
        if offset != self.received:
            raise ProtocolError("A stream does not end at its announced length")
        self.total = offset
        self._changed.set()

    def fail(self, error: BaseException) -> None:
        """Let readers raise `error` after the pieces that were received before."""
        self.error = error
        self._changed.set()

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """Yield the pieces, then raise the stream's `error` if it has failed.

        Requesting the next piece gives the sender credit for the previous one.
        """
        try:
            while True:
                while self._unread:
                    piece = self._unread.popleft()
                    yield piece
                    self._consume(len(piece))
                if self.total is not None:
                    return
                if self.error is not None:
                    raise self.error
                self._changed.clear()
                await self._changed.wait()
        finally:
            self._unread.clear()

    def _consume(self, size: int) -> None:
        self._consumed += size
        if self._consumed - self._credited >= WINDOW // 4:  # fewer frames than one for each piece
            self._credit()

    def _credit(self) -> None:
        if self._connection is not None:
            self._credited = self._consumed
            self._connection.send([CREDIT, self._exchange, self._lane, self._consumed])

    def drain(self, into: io.BytesIO) -> None:
        """Write all unread pieces to `into`, and give the sender credit for them."""
        while self._unread:
            piece = self._unread.popleft()
            into.write(piece)
            self._consume(len(piece))
