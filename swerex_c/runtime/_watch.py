"""The output of an operation while it comes: searched in Python for the patterns that the core cannot, and streamed.

core --news--> Watch.finish --pieces without a match--> Watch.take --> the stream

A stream whose reader is behind is not fed: then the core has its output, and lets the program wait.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from swerex_c import _core

if TYPE_CHECKING:
    from swerex_c.runtime._answers import Answer
    from swerex_c.runtime._patterns import WindowMatcher

__all__ = ["Matched", "Source", "Stream", "Watch"]

_AHEAD = 1 << 20
"""Bytes that a stream's reader has yet to take, from which on no more are searched."""


class Source(Protocol):
    """Where a stream takes raw output from."""

    def take(self) -> bytes: ...


class Stream:
    """What connects an action that runs to the reader of its output."""

    def __init__(self) -> None:
        self.news = asyncio.Event()
        """Set when the source may have more to take."""

        self.source: asyncio.Future[Source] = asyncio.get_running_loop().create_future()
        """Set when the action was given to the core."""


@dataclass(frozen=True)
class Matched:
    """The answer of an operation whose output matched a pattern: it was cancelled, what it had started goes on."""

    hit: int
    output: str
    dropped: int
    end: str = "matched"
    code: int = 0
    signal: int = 0
    typed: bool = True
    error: str = ""
    errno: int = 0


class Watch:
    """Searches the output of one operation. Used within one event loop."""

    def __init__(self, matcher: WindowMatcher, limit: int, stream: Stream | None = None):
        self._matcher = matcher
        self._kept = _Kept(limit)
        self._stream = stream
        self._pieces: list[bytes] = []
        self._waiting = 0
        self.news = asyncio.Event()
        """For the core, which tells of output by it."""

    def take(self) -> bytes:
        """What came before a match and was not taken yet."""
        data = b"".join(self._pieces)
        self._pieces.clear()
        if self._full:
            self.news.set()
        self._waiting = 0
        return data

    @property
    def _full(self) -> bool:
        return self._waiting >= _AHEAD

    async def finish(self, operation: _core.Operation, future: asyncio.Future[None]) -> Answer:
        """Wait for a match or for the operation's own end, whichever is first; `future` is the operation's.

        When the waiting is given up, the operation is cancelled.
        """
        future.add_done_callback(lambda _: self.news.set())
        try:
            while True:
                ended = operation.done
                self.news.clear()
                found = self._search(operation, ended)
                if found is not None or (ended and not self._full):
                    return found or operation
                await self.news.wait()
        except BaseException:
            operation.cancel()
            raise

    def _search(self, operation: _core.Operation, ended: bool) -> Matched | None:
        found = None
        while found is None and not self._full and (data := operation.take()):
            found = self._feed(data)
        if found is None and ended and not self._full:
            found = self._matcher.feed(b"", True)
        if found is None:
            return None
        operation.cancel()
        hit, start = found
        self._kept.cut(start)
        return Matched(hit, self._kept.text(operation.crlf), self._kept.dropped)

    def _feed(self, data: bytes) -> tuple[int, int] | None:
        before = self._kept.total
        self._kept.add(data)
        found = self._matcher.feed(data)
        if self._stream is not None:
            piece = data if found is None else data[: max(0, found[1] - before)]
            if piece:
                self._pieces.append(piece)
                self._waiting += len(piece)
                self._stream.news.set()
        return found


class _Kept:
    """The beginning and the end of a stream of bytes, as the core keeps them of an operation's output."""

    def __init__(self, limit: int):
        self._half = max(1, limit // 2)
        self._head = bytearray()
        self._tail = bytearray()
        self.total = 0
        self.dropped = 0

    def add(self, data: bytes) -> None:
        room = self._half - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        self.total += len(data)
        if len(self._tail) > 2 * self._half:  # not at every byte, because moving the rest has its cost
            self._trim()

    def _trim(self) -> None:
        more = len(self._tail) - self._half
        if more > 0:
            del self._tail[:more]
            self.dropped += more

    def cut(self, size: int) -> None:
        """Forget what came after the first `size` bytes."""
        more = self.total - size
        self.total = size
        if more < len(self._tail):
            del self._tail[len(self._tail) - more :]
            self._trim()
            return
        del self._tail[:]
        self.dropped = max(0, size - len(self._head))
        del self._head[size:]

    def content(self) -> bytes:
        """What is kept, without a word on what is missing."""
        self._trim()
        return bytes(self._head + self._tail)

    def text(self, crlf: bool) -> str:
        note = f"\n[... {self.dropped} bytes of output were dropped here ...]\n".encode() if self.dropped else b""
        return _core.strip(bytes(self._head + note + self._tail), crlf).decode("utf-8", "backslashreplace")
