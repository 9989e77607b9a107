"""Frame connection for client and server, and its transport over descriptors.

A `FrameConnection` is an asyncio protocol and works with any asyncio transport, such as a server's or TLS. Over plain
descriptors (a socket, or the two standard streams of a process), `FdTransport` is its transport: it saves one copy of
the data, and it can move from an event loop that ended to another one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import struct
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from swerex_c import _core
from swerex_c.exceptions import ConnectionLostError, ProtocolError
from swerex_c.remote.wire.protocol import DATA, HEAD_BYTES, PIECE, PING, PONG, encode, new_decoder

__all__ = ["FdTransport", "FrameConnection"]

_HIGH_WATER = 1 << 20
"""Bytes in the write buffer above which senders pause."""

_RECEIVE = 256 << 10
"""Size in bytes of a receive buffer, and so of the longest read."""

_DATA_HEADER = struct.Struct(">IBBBQBBQBI")
"""Frame length, and start of the msgpack array [DATA, exchange, lane, offset, bytes], with uint 64 and bin 32."""

_LONG_PIECE = 32 << 10
"""Minimum bytes of a piece to receive directly into its own buffer; copying a shorter piece costs less."""

_AFTER_PIECE = 4096
"""Maximum bytes of the first read after a long piece, so that little of the next piece has to be copied."""

_SPARE = 24
"""Maximum number of buffers, of PIECE bytes each, that a connection keeps for reuse while a stream runs."""


class _Piece:
    """Long DATA frame that is being received directly into its own buffer."""

    __slots__ = ("frame", "rest", "whole")

    def __init__(self, exchange: int, lane: int, offset: int, whole: memoryview):
        self.whole = whole
        self.rest = whole
        self.frame: list[Any] = [DATA, exchange, lane, offset, whole]

    def take(self, data: bytes | memoryview) -> bytes | memoryview:
        """Copy received data into the piece, and return the data after its end."""
        size = min(len(data), len(self.rest))
        self.rest[:size] = data[:size]
        self.rest = self.rest[size:]
        return data[size:]


class _Buffers(threading.local):
    """Receive buffer of a thread. Its connections share it, because received data is decoded before the next read."""

    def __init__(self) -> None:
        self.view = memoryview(bytearray(_RECEIVE))


_buffers = _Buffers()


class FrameConnection(asyncio.BufferedProtocol):
    """Connection that sends and receives frames.

    A subclass adds `handlers`, by kind of frame, and overrides `lost`; and `head_received` if an HTTP head comes before
    the frames.

    Args:
        head: how the head begins that comes first; None if there is none.
    """

    handlers: dict[int, Callable[[list[Any]], None]]

    def __init__(self, head: bytes | None = None) -> None:
        self.transport: Any = None
        self.paused = False
        self.heard = True
        """True if data was received since a user of the connection last set this to False."""
        self.closing = False
        self.spare: deque[bytearray] = deque(maxlen=_SPARE)
        """Buffers to reuse for long pieces. Users of the pieces append them, from any thread."""
        self._head_start = head
        self._head: bytearray | None = None if head is None else bytearray()
        self._piece: _Piece | None = None
        self.error: BaseException | None = None
        self._decoder = new_decoder()
        self._batch: list[bytes] | None = None
        self._corked = False
        self._waiting: deque[Callable[[], None]] = deque()
        self._loop: asyncio.AbstractEventLoop
        self.handlers = {PING: self._ping, PONG: lambda frame: None}

    # -- methods that the transport calls

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self._loop = asyncio.get_running_loop()
        self._whole_buffer = self._buffer = _buffers.view
        self._short_buffer = self._buffer[:_AFTER_PIECE]
        if hasattr(transport, "set_write_buffer_limits"):
            transport.set_write_buffer_limits(high=_HIGH_WATER)

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
        """Decode and handle received bytes. `data` is not used after the call."""
        if self.closing:
            return  # TLS still delivers buffered data
        self.heard = True
        if self._head is not None:
            data = self._read_head(data)
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
            self.fail(ProtocolError(f"The received data is not a frame of this protocol: {error}"))
            return
        if _DATA_HEADER.size <= decoder.pending <= len(data):
            self._begin_piece(data[-decoder.pending :])
        self.handle(frames)

    def _read_head(self, data: bytes | memoryview) -> bytes:
        """Collect the head, pass it on when it is complete, and return what came behind it."""
        assert self._head is not None and self._head_start is not None
        self._head += data
        head, end, rest = bytes(self._head).partition(b"\r\n\r\n")
        if not head.startswith(self._head_start[: len(head)]) or len(head) > HEAD_BYTES:
            self.fail(ProtocolError(f"What came is no HTTP head: {head[:60]!r}"))
        elif end:
            self._head = None
            self.head_received(head, rest)
        return rest if not self.closing else b""

    def _begin_piece(self, data: bytes | memoryview) -> None:
        """Start to receive a long piece without the decoder; `data` is the incomplete frame that the decoder holds."""
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
        """Handle the frames of one read, then write the frames sent meanwhile together."""
        self._batch = []
        try:
            for frame in frames:
                self.handlers[frame[0]](frame)
                if self.closing:
                    break
        except ProtocolError as error:
            self.fail(error)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            self.fail(ProtocolError(f"The received frame is invalid: {error!r:.200}"))
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

    # -- methods for subclasses and users of the connection

    def head_received(self, head: bytes, rest: bytes) -> None:
        """Handle the HTTP head that came before the frames; `rest` came with it."""

    def lost(self, error: BaseException) -> None:
        """Handle the end of the connection, for the reason `error`.

        The connection calls this method once.
        """

    def send(self, frame: list[Any]) -> None:
        """Send a frame.

        Frames that are sent while the frames of one read are handled are written together.

        Raises:
            FrameError: if the frame is too large, or contains a value that frames do not support.
        """
        self.send_encoded(encode(frame))

    def send_encoded(self, data: bytes) -> None:
        """Send an encoded frame."""
        if self._batch is not None:
            self._batch.append(data)
        elif not self.closing:
            self._write(data)

    def send_piece(self, exchange: int, lane: int, offset: int, piece: memoryview) -> None:
        """Send a DATA frame, without a copy of the piece."""
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
        """Call `pump` once when the connection is no longer paused."""
        if pump not in self._waiting:
            self._waiting.append(pump)

    def fail(self, error: BaseException) -> None:
        """Abort the connection, and pass the first error of the connection to `lost`."""
        if self.error is None:
            self.error = error
        self.abort()

    def abort(self) -> None:
        """Close the connection now, and discard the frames that are not written."""
        if not self.closing:
            self.closing = True
            self.transport.abort()

    def close(self) -> None:
        """Write the queued frames, and close the connection."""
        if not self.closing:
            self._flush()
            self.closing = True
            self.transport.close()

    def _write(self, data: bytes) -> None:
        """Write the first frame of a loop iteration at once, and its later frames together in the next iteration."""
        if self._corked:
            self._cork.append(data)
        else:
            self._corked = True
            self._cork: list[bytes] = []
            self._loop.call_soon(self._uncork)
            self.transport.write(data)

    def _flush(self) -> None:
        """Write the queued frames now, to keep their order with data that bypasses the queues."""
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
    """Transport of a `FrameConnection` over file descriptors.

    One descriptor serves both directions, or each direction has its own.

    It owns the descriptors and closes them, at the latest when it is deleted, which needs no event loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, read_fd: int, write_fd: int, protocol: FrameConnection):
        self._loop = loop
        self._read_fd = read_fd
        self._write_fd = write_fd
        self._protocol = protocol
        self._queue: deque[memoryview] = deque()
        self._queued = 0
        self._closing = False
        self._reading = False
        os.set_blocking(read_fd, False)
        os.set_blocking(write_fd, False)
        protocol.connection_made(self)
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

    def _readable(self) -> None:
        try:
            size = os.readv(self._read_fd, [self._protocol.get_buffer(-1)])
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._lost(error)
            return
        if size:
            self._protocol.buffer_updated(size)
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
        if self._queued > _HIGH_WATER and not self._protocol.paused:
            self._protocol.pause_writing()

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
        if self._queued <= _HIGH_WATER // 4 and self._protocol.paused:
            self._protocol.resume_writing()

    def close(self) -> None:
        """Close the transport when the write buffer is empty."""
        self._closing = True
        self.pause_reading()
        if not self._queue:
            self._lost(None)

    def abort(self) -> None:
        """Close the transport now, and discard the write buffer."""
        self._lost(None)

    def _lost(self, error: BaseException | None) -> None:
        if self._read_fd < 0:
            return
        self._closing = True
        self.pause_reading()
        if self._queue:
            self._loop.remove_writer(self._write_fd)
        self._close_fds()
        self._loop.call_soon(self._protocol.connection_lost, error)

    def _close_fds(self) -> None:
        for fd in {self._read_fd, self._write_fd} - {-1}:
            os.close(fd)
        self._read_fd = self._write_fd = -1
        self._queue.clear()

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError, OSError):
            self._close_fds()
