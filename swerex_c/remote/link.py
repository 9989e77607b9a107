"""One connection that carries frames, at either end, and what it runs over.

A `Link` is an asyncio protocol: it works on whatever transport a server or TLS brings. Where there is only a descriptor
(a socket, or the two of a process's standard streams), `FdTransport` is its transport: one copy less, and one that can
go from an event loop that ended to the next.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from swerex_c import _core
from swerex_c.exceptions import ConnectionLostError, ProtocolError
from swerex_c.remote.protocol import DATA, PIECE, PING, PONG, new_decoder, new_encoder

__all__ = ["FdTransport", "Link"]

_HIGH_WATER = 1 << 20
"""Bytes that wait to be sent at which senders are asked to pause."""

_RECEIVE = 256 << 10
"""Bytes that are received at once, at most."""

_MOST_SELECTED = 1024
"""Descriptors from here on are not for select(2), which alone waits for less than a millisecond."""

_DATA_HEADER = struct.Struct(">IBBBQBBQBI")
"""A frame's length and [DATA, exchange, lane, offset, bytes] up to the bytes: msgpack's array of 5, uint 64, bin 32."""


_LONG_PIECE = 32 << 10
"""Bytes of a piece from which on it is worth to receive it into where it stays."""

_AFTER_PIECE = 4096
"""Bytes that are received at once behind a long piece, so that little of the next one has to be copied."""

_SPARE = 24
"""Buffers of a PIECE each that a connection keeps for pieces to come while a stream runs."""


class _Piece:
    """A long DATA frame that is being received, into where it stays."""

    __slots__ = ("frame", "rest", "whole")

    def __init__(self, exchange: int, lane: int, offset: int, whole: memoryview):
        self.whole = whole
        self.rest = whole
        self.frame: list[Any] = [DATA, exchange, lane, offset, whole]

    def take(self, data: bytes | memoryview) -> bytes | memoryview:
        """Copy into it what belongs to it; returns what does not."""
        size = min(len(data), len(self.rest))
        self.rest[:size] = data[:size]
        self.rest = self.rest[size:]
        return data[size:]


class _Buffers(threading.local):
    """One buffer for a thread: what is received there is decoded before anything else is."""

    def __init__(self) -> None:
        self.view = memoryview(bytearray(_RECEIVE))


_buffers = _Buffers()


class Link(asyncio.BufferedProtocol):
    """Frames in and out. What they mean is for the subclass: `handlers` by kind, and `lost`."""

    handlers: dict[int, Callable[[list[Any]], None]]

    def __init__(self) -> None:
        self.transport: Any = None
        self.paused = False
        self.heard = True
        """Whether anything has come since this was last set to False."""
        self.closing = False
        self.spare: deque[bytearray] = deque(maxlen=_SPARE)
        """Buffers for long pieces, from those who are done with them; threads may append."""
        self._piece: _Piece | None = None
        self.alone = False
        """Whether the frame that is being handled came without others."""
        self.error: BaseException | None = None
        self._decoder = new_decoder()
        self._encode = new_encoder().encode
        self._batch: list[bytes] | None = None
        self._corked = False
        self._waiting: deque[Callable[[], None]] = deque()
        self._loop: asyncio.AbstractEventLoop
        self.handlers = {PING: self._ping, PONG: lambda frame: None}

    # -- the transport's side

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self._loop = asyncio.get_running_loop()
        self._take_buffer()
        if hasattr(transport, "set_write_buffer_limits"):
            transport.set_write_buffer_limits(high=_HIGH_WATER)

    def _take_buffer(self) -> None:
        """The running thread's."""
        self._whole_buffer = self._buffer = _buffers.view
        self._short_buffer = self._buffer[:_AFTER_PIECE]

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer if self._piece is None else self._piece.rest

    def buffer_updated(self, nbytes: int) -> None:
        piece = self._piece
        if piece is None:
            buffer, self._buffer = self._buffer, self._whole_buffer
            self.data_received(buffer[:nbytes])
        else:
            self.heard = True
            piece.rest = piece.rest[nbytes:]
            if not piece.rest:
                self._end_piece(piece)

    def data_received(self, data: bytes | memoryview) -> None:
        """Bytes have come; they are only looked at during the call."""
        self.heard = True
        if (piece := self._piece) is not None:
            data = piece.take(data)
            if piece.rest:
                return
            self._end_piece(piece)
            if not data or self.closing:
                return
        decoder = self._decoder
        try:
            frames = decoder.feed(data)
        except _core.FrameError as error:
            self.fail(ProtocolError(f"What came is not a frame of this protocol: {error}"))
            return
        if _DATA_HEADER.size <= decoder.pending <= len(data):
            self._begin_piece(data[-decoder.pending :])
        self.handle(frames)

    def _begin_piece(self, data: bytes | memoryview) -> None:
        """Of a frame that is not whole yet there is this, in the decoder. Of a long piece, the rest passes it by."""
        length, head, kind, u1, exchange, lane, u2, offset, b, size = _DATA_HEADER.unpack_from(data)
        if (head, kind, u1, u2, b) != (0x95, DATA, 0xCF, 0xCF, 0xC6) or lane > 0x7F:
            return
        if not _LONG_PIECE <= size <= PIECE or length != size + _DATA_HEADER.size - 4:
            return
        self._decoder.reset()
        buffer = self.spare.pop() if self.spare else bytearray(PIECE)
        self._piece = _Piece(exchange, lane, offset, memoryview(buffer)[:size])
        self._piece.take(data[_DATA_HEADER.size :])

    def _end_piece(self, piece: _Piece) -> None:
        self._piece = None
        self._buffer = self._short_buffer
        self.handle([piece.frame])

    def handle(self, frames: list[Any]) -> None:
        """Do what came together."""
        self._batch = []
        self.alone = len(frames) == 1
        try:
            for frame in frames:
                self.handlers[frame[0]](frame)
                if self.closing:
                    break
        except ProtocolError as error:
            self.fail(error)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            self.fail(ProtocolError(f"A frame is not as it should be: {error!r:.200}"))
        finally:
            batch, self._batch = self._batch, None
            if batch:
                self._uncork()
                self._write_all(batch)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: BaseException | None) -> None:
        self.closing = True
        self._waiting.clear()
        if self.error is None:
            self.error = ConnectionLostError(f"The connection was lost: {exc}" if exc else "The connection was closed")
        self.lost(self.error)

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False
        for _ in range(len(self._waiting)):
            if self.paused:
                break
            self._waiting.popleft()()

    # -- the other side

    def lost(self, error: BaseException) -> None:
        """The connection is gone, for good."""

    def send(self, frame: list[Any]) -> None:
        """Send one frame. What is sent in answer to what came together goes together.

        Raises:
            FrameError: if it is too large, or holds what frames cannot.
        """
        self.send_encoded(self._encode(frame))

    def send_encoded(self, data: bytes) -> None:
        """Send a frame that was encoded before."""
        if self._batch is not None:
            self._batch.append(data)
        elif not self.closing:
            self._write(data)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """What is sent within goes together, at the end of it, whatever else this turn of the loop sends."""
        self._batch = []
        try:
            yield
        finally:
            batch, self._batch = self._batch, None
            self._uncork()
            self._write_all(batch)

    def send_piece(self, exchange: int, lane: int, offset: int, piece: memoryview) -> None:
        """Send a DATA frame; the piece itself goes to the system from where it is."""
        if self.closing:
            return
        size = len(piece)
        header = _DATA_HEADER.pack(
            size + _DATA_HEADER.size - 4, 0x95, DATA, 0xCF, exchange, lane, 0xCF, offset, 0xC6, size
        )
        self._flush()
        self.transport.write(header)
        self.transport.write(piece)

    def wait_for_room(self, pump: Callable[[], None]) -> None:
        """Call `pump` when the connection takes more."""
        if pump not in self._waiting:
            self._waiting.append(pump)

    def fail(self, error: BaseException) -> None:
        """Give the connection up because of this."""
        if self.error is None:
            self.error = error
        self.abort()

    def abort(self) -> None:
        if not self.closing:
            self.closing = True
            self.transport.abort()

    def close(self) -> None:
        """Send what was to be sent, and end the connection."""
        if not self.closing:
            self._flush()
            self.closing = True
            self.transport.close()

    def _write(self, data: bytes) -> None:
        """The first frame of a turn of the loop goes at once; the others of that turn go together after it."""
        if self._corked:
            self._cork.append(data)
        else:
            self._corked = True
            self._cork: list[bytes] = []
            self._loop.call_soon(self._uncork)
            self.transport.write(data)

    def _flush(self) -> None:
        """What was sent before goes before what comes now."""
        self._uncork()
        if self._batch:
            self._write_all(self._batch)
            self._batch.clear()

    def _uncork(self) -> None:
        if self._corked:
            self._corked = False
            self._write_all(self._cork)

    def _write_all(self, frames: list[bytes]) -> None:
        if frames and not self.closing:
            self.transport.write(frames[0] if len(frames) == 1 else b"".join(frames))

    def _ping(self, frame: list[Any]) -> None:
        self.send([PONG])


class FdTransport:
    """What a `Link` needs of a transport, over one descriptor or over one for each direction, which it owns.

    They are closed with it, at the latest when nobody refers to it any more; that needs no event loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, read_fd: int, write_fd: int, link: Link):
        self._loop = loop
        self._read_fd = read_fd
        self._write_fd = write_fd
        self._link = link
        self._queue: deque[memoryview] = deque()
        self._queued = 0
        self._closing = False
        self._reading = False
        os.set_blocking(read_fd, False)
        os.set_blocking(write_fd, False)
        link.connection_made(self)
        self.resume_reading()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def is_closing(self) -> bool:
        return self._closing

    def pause_reading(self) -> None:
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._read_fd)

    def resume_reading(self) -> None:
        if not self._reading and self._read_fd >= 0:
            self._reading = True
            self._loop.add_reader(self._read_fd, self._readable)

    def wait(self, seconds: float) -> None:
        """Read what comes within so many seconds, without the event loop. Does not wait if it cannot."""
        if self._reading and self._read_fd < _MOST_SELECTED and select.select([self._read_fd], (), (), seconds)[0]:
            self._readable()

    def _readable(self) -> None:
        try:
            size = os.readv(self._read_fd, [self._link.get_buffer(-1)])
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._lost(error)
            return
        if size:
            self._link.buffer_updated(size)
        else:
            self._lost(None)

    def write(self, data: bytes | memoryview) -> None:
        if self._write_fd < 0:
            return
        sent = 0
        if not self._queue:
            try:
                sent = os.write(self._write_fd, data)
            except (BlockingIOError, InterruptedError):
                pass
            except OSError as error:
                self._lost(error)
                return
            if sent == len(data):
                return
            self._loop.add_writer(self._write_fd, self._writable)
        self._queue.append(memoryview(data)[sent:])
        self._queued += len(data) - sent
        if self._queued > _HIGH_WATER and not self._link.paused:
            self._link.pause_writing()

    def _writable(self) -> None:
        try:
            sent = os.writev(self._write_fd, [self._queue[i] for i in range(min(len(self._queue), 64))])
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._lost(error)
            return
        self._queued -= sent
        while self._queue and sent >= len(self._queue[0]):
            sent -= len(self._queue.popleft())
        if sent:
            self._queue[0] = self._queue[0][sent:]
        if not self._queue:
            self._loop.remove_writer(self._write_fd)
            if self._closing:
                self._lost(None)
                return
        if self._queued <= _HIGH_WATER // 4 and self._link.paused:
            self._link.resume_writing()

    def close(self) -> None:
        """End it when everything is written."""
        self._closing = True
        self.pause_reading()
        if not self._queue:
            self._lost(None)

    def abort(self) -> None:
        """End it now."""
        self._lost(None)

    def move(self, loop: asyncio.AbstractEventLoop) -> None:
        """Go on in another loop; the one before does not run. If it runs again it has nothing to do with this."""
        if not self._loop.is_closed():
            self._loop.remove_reader(self._read_fd)
            self._loop.remove_writer(self._write_fd)
        self._loop = loop
        self._reading = False
        self.resume_reading()
        if self._queue:
            loop.add_writer(self._write_fd, self._writable)

    def _lost(self, error: BaseException | None) -> None:
        if self._read_fd < 0:
            return
        self._closing = True
        self.pause_reading()
        if self._queue:
            self._loop.remove_writer(self._write_fd)
        self._close_fds()
        self._loop.call_soon(self._link.connection_lost, error)

    def _close_fds(self) -> None:
        for fd in {self._read_fd, self._write_fd} - {-1}:
            os.close(fd)
        self._read_fd = self._write_fd = -1
        self._queue.clear()

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError, OSError):
            self._close_fds()
