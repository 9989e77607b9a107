"""Frame connection for client and server: an asyncio protocol for any transport."""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Callable
from typing import Any

from swerex_c import _core
from swerex_c.exceptions import ConnectionLostError, ProtocolError
from swerex_c.remote.wire.protocol import DATA, HEAD_BYTES, MAX_FRAME, PING, PONG, VALUE_LIMITS, encode

__all__ = ["FrameConnection"]

_HIGH_WATER = 1 << 20
"""Bytes in the write buffer above which senders pause."""

_DATA_HEADER = struct.Struct(">IBBBQBBQBI")
"""Frame length, and start of the msgpack array [DATA, exchange, lane, offset, bytes], with uint 64 and bin 32."""


class FrameConnection(asyncio.Protocol):
    """Connection that sends and receives frames.

    A subclass adds `handlers`, by kind of frame, and overrides `lost`; and `head_received` if an HTTP head comes first.

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
        self.error: BaseException | None = None
        self._head_start = head
        self._head: bytearray | None = None if head is None else bytearray()
        self._decoder = _core.FrameDecoder(max_frame=MAX_FRAME, **VALUE_LIMITS)
        self._corked: list[bytes] | None = None
        """Frames to write together in the next iteration of the event loop; None if none was written in this one."""
        self._waiting: deque[Callable[[], None]] = deque()
        self._loop: asyncio.AbstractEventLoop
        self.handlers = {PING: self._ping, PONG: lambda frame: None}

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self._loop = asyncio.get_running_loop()
        transport.set_write_buffer_limits(high=_HIGH_WATER)

    def data_received(self, data: bytes) -> None:
        if self.closing:
            return  # TLS still delivers buffered data
        self.heard = True
        if self._head is not None:
            data = self._read_head(data)
        try:
            frames = self._decoder.feed(data)
        except _core.FrameError as error:
            self.fail(ProtocolError(f"The received data is not a frame of this protocol: {error}"))
        else:
            self.handle(frames)

    def _read_head(self, data: bytes) -> bytes:
        """Collect the head, and return the data that follows it."""
        assert self._head is not None and self._head_start is not None
        self._head += data
        head, end, rest = bytes(self._head).partition(b"\r\n\r\n")
        if not head.startswith(self._head_start[: len(head)]) or len(head) > HEAD_BYTES:
            self.fail(ProtocolError(f"The received data is not an HTTP head: {head[:60]!r}"))
        elif end:
            self._head = None
            self.head_received(head, rest)
        return b"" if self.closing else rest

    def handle(self, frames: list[Any]) -> None:
        try:
            for frame in frames:
                self.handlers[frame[0]](frame)
                if self.closing:
                    break
        except ProtocolError as error:
            self.fail(error)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            self.fail(ProtocolError(f"The received frame is invalid: {error!r:.200}"))

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
        """Handle the end of the connection, for the reason `error`; called once."""

    def send(self, frame: list[Any]) -> None:
        """Send a frame.

        Raises:
            FrameError: if the frame is too large, or contains a value that frames do not support.
        """
        self.send_encoded(encode(frame))

    def send_encoded(self, data: bytes) -> None:
        """Send an encoded frame: at once, or with others of this iteration of the event loop after a first one."""
        if self.closing:
            return
        if self._corked is not None:
            self._corked.append(data)
        else:
            self._corked = []
            self._loop.call_soon(self._uncork)
            self.transport.write(data)

    def send_piece(self, exchange: int, lane: int, offset: int, piece: memoryview) -> None:
        """Send a DATA frame, without a copy of the piece."""
        if self.closing:
            return
        size = len(piece)
        header = _DATA_HEADER.pack(
            size + _DATA_HEADER.size - 4, 0x95, DATA, 0xCF, exchange, lane, 0xCF, offset, 0xC6, size
        )
        self._uncork()
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
        self.closing = True
        self.transport.abort()

    def close(self) -> None:
        """Write the queued frames, and close the connection."""
        if not self.closing:
            self._uncork()
            self.closing = True
            self.transport.close()

    def _uncork(self) -> None:
        corked, self._corked = self._corked, None
        if corked and not self.closing:
            self.transport.write(b"".join(corked))

    def _ping(self, frame: list[Any]) -> None:
        self.send([PONG])
