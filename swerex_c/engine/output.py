"""Stream of a running operation's output, and buffer for its head and tail."""

from __future__ import annotations

import asyncio

from swerex_c import _core

__all__ = ["HeadTailBuffer", "OutputStream"]


class OutputStream:
    """The connection between a running action and the reader of its output."""

    def __init__(self) -> None:
        self.news = asyncio.Event()
        """Set when the source may have more output."""

        self.source: asyncio.Future[_core.Operation] = asyncio.get_running_loop().create_future()
        """Set when the action was submitted to the core."""


class HeadTailBuffer:
    """The beginning and the end of a stream of bytes: the parts that the core keeps of an operation's output."""

    def __init__(self, limit: int):
        self._half = max(1, limit // 2)
        self._head = bytearray()
        self._tail = bytearray()
        self._dropped = 0

    def add(self, data: bytes) -> None:
        room = self._half - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        if len(self._tail) > 2 * self._half:  # trim rarely, because it moves the rest of the bytes
            self._trim()

    def _trim(self) -> None:
        more = len(self._tail) - self._half
        if more > 0:
            del self._tail[:more]
            self._dropped += more

    def content(self) -> bytes:
        """Return the kept bytes, with a line for the dropped ones."""
        self._trim()
        note = b"\n[... %d bytes of output were dropped here ...]\n" % self._dropped if self._dropped else b""
        return bytes(self._head + note + self._tail)
