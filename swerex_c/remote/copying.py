"""Files and trees through the streams of a connection, in both directions, never whole in memory.

A stream begins with a line of JSON: `{"kind": "file", "name": ..., "mode": ...}`, and the file's bytes follow; or
`{"kind": "tree"}`, and the rest is a tar archive (POSIX.1-2001 pax) of what is in the directory. Each transfer has a
thread of its own, since a slow peer may hold it for long.
"""

from __future__ import annotations

import asyncio
import codecs
import io
import json
import locale
import os
import stat
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Protocol, TypeVar

from swerex_c.exceptions import ProtocolError, SwerexException, UploadError
from swerex_c.remote.flow import Receiver, Sender
from swerex_c.remote.protocol import WINDOW
from swerex_c.runtime import _tars, files
from swerex_c.runtime._spool import Spool

__all__ = ["Come", "Progress", "Reader", "Room", "consume", "produce", "receive", "send", "send_text"]

T = TypeVar("T")

Progress = Callable[[int], None]
"""Told how many more bytes of a stream were written."""

_AHEAD = WINDOW // _tars.BLOCK + 3
"""Blocks in memory: as many as may be under way, and some that are read ahead."""

_TELL = 512 << 10
"""Bytes that are written before the loop is told."""


class Room(Protocol):
    """What a file or a tree is written to, in a thread; `_Blocks` is one."""

    def block(self) -> bytearray | None: ...
    def put(self, data: bytes | memoryview, block: bytearray | None = None) -> None: ...


class Come(Protocol):
    """What a file or a tree is read from, in a thread; `_Arrivals` is one."""

    def get(self) -> list[bytes | memoryview]: ...
    def release(self, pieces: list[bytes | memoryview]) -> None: ...


class _GivenUp(BaseException):
    """Ends the thread of a transfer that nobody waits for."""


class _Blocks:
    """What a thread reads ahead of a sender: a few blocks, each of which is used again when the receiver is done with
    it. One call into the loop is for all that was read meanwhile."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, sender: Sender, begins: Callable[[], None] | None = None
    ) -> None:
        self._loop = loop
        self._begins = begins
        self._sender = sender
        self._free: SimpleQueue[bytearray | None] = SimpleQueue()  # None: one that is yet to be made
        self._ready: deque[tuple[memoryview, bytearray | None]] = deque()
        self._under_way: deque[tuple[int, bytearray | None]] = deque()  # with where each ends
        self._told = False
        self._ended = False
        for _ in range(_AHEAD):
            self._free.put(None)

    # In the thread

    def block(self) -> bytearray | None:
        """Room for one block: its buffer, if there is one yet."""
        block = self._free.get()
        if self._ended:
            raise _GivenUp
        return block

    def put(self, data: bytes | memoryview, block: bytearray | None = None) -> None:
        """Send this. `block`: what it is in."""
        self._ready.append((memoryview(data), block))
        if not self._told:
            self._told = True
            self._loop.call_soon_threadsafe(self._send)

    # In the loop

    def _send(self) -> None:
        self._told = False
        self._sender.when_done = self._done
        if self._begins is not None:
            self._begins()
            self._begins = None
        while self._ready and not self._ended:
            data, block = self._ready.popleft()
            self._under_way.append((self._sender.written + len(data), block))
            self._sender.write(data)

    def _done(self, offset: int) -> None:
        while self._under_way and self._under_way[0][0] <= offset:
            block = self._under_way.popleft()[1]
            if not self._ended:
                self._free.put(block)

    def end(self) -> None:
        """The thread is to end, if it has not."""
        self._ended = True
        waited_for, self._free = self._free, SimpleQueue()
        waited_for.put(None)
        self._free.put(None)


class _Arrivals:
    """What has come for a thread that writes it. The sender may go on when it was written."""

    def __init__(self, loop: asyncio.AbstractEventLoop, receiver: Receiver):
        self._loop = loop
        self._receiver = receiver
        self._come: SimpleQueue[list[bytes | memoryview] | BaseException] = SimpleQueue()
        self._over = False
        self._written = 0
        receiver.when_news = self._news
        self._news()

    def _news(self) -> None:
        receiver = self._receiver
        if pieces := receiver.take():
            self._come.put(pieces)
        if not self._over and (receiver.total is not None or receiver.error is not None):
            self._over = True
            self._come.put([] if receiver.total is not None or receiver.error is None else receiver.error)

    def end(self) -> None:
        """The thread is to end."""
        self._over = True
        self._come.put(_GivenUp())

    # In the thread

    def get(self) -> list[bytes | memoryview]:
        """What has come; [] at the end."""
        come = self._come.get()
        if isinstance(come, BaseException):
            raise come
        if not come:
            self._come.put(come)
        return come

    def release(self, pieces: list[bytes | memoryview]) -> None:
        """These were written."""
        for piece in pieces:
            self._written += len(piece)
            self._receiver.release(piece)
        if self._written >= _TELL:
            written, self._written = self._written, 0
            self._loop.call_soon_threadsafe(self._receiver.done_with, written)


async def _in_thread(work: Callable[[], T], end: Callable[[], None]) -> T:
    """Do it in a thread of its own, since a slow peer may hold it for long. `end`: has it end soon."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def tell(result: T | None, error: BaseException | None) -> None:
        if not done.done():
            if error is not None:
                done.set_exception(error)
            else:
                done.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result: T | None = None
        error: BaseException | None = None
        try:
            result = work()
        except BaseException as e:
            error = e
        try:
            loop.call_soon_threadsafe(tell, result, error)
        except RuntimeError:
            pass  # the loop was closed: nobody waits

    threading.Thread(target=run, name="swerex-transfer", daemon=True).start()
    try:
        return await done
    finally:
        end()


async def send(path: str, sender: Sender, progress: Progress | None = None) -> None:
    """Write a file or a tree to a stream.

    Raises:
        OSError: if it cannot be read.
        UploadError: if it is, or holds, something that is neither a file nor a directory nor a symbolic link.
    """
    blocks = _Blocks(asyncio.get_running_loop(), sender)
    await _in_thread(lambda: produce(path, blocks, progress), blocks.end)


async def send_text(
    path: str, encoding: str | None, errors: str | None, sender: Sender, begins: Callable[[], None]
) -> bool | str:
    """Write a file's text to a stream, as `files.read_text` gives it, in UTF-8 in which surrogates may occur.

    Args:
        begins: called in the event loop when the first of it is to be sent.

    Returns:
        The text, if it is not long: nothing was sent then. Whether it was sent: False if it is not a file that can be
        read in pieces, or not in this encoding.

    Raises:
        UnicodeError: if it does not decode; positions are not those in the file. What came before was sent.
        OSError: if it cannot be read.
    """
    blocks = _Blocks(asyncio.get_running_loop(), sender, begins)
    return await _in_thread(lambda: _produce_text(path, encoding, errors, blocks), blocks.end)


async def receive(receiver: Receiver, target: str, progress: Progress | None = None, name: str | None = None) -> None:
    """Make what comes in a stream the file or the tree `target`, by the rules of uploads; all of it or nothing.

    Args:
        name: what a file is called if `target` is a directory; None: what the other end says.

    Raises:
        OSError, UploadError: as `files.upload`.
        ProtocolError: if the stream is not one that `send` writes.
    """
    arrivals = _Arrivals(asyncio.get_running_loop(), receiver)
    try:
        await _in_thread(lambda: consume(Reader(arrivals, progress), target, name), arrivals.end)
    finally:
        receiver.when_news = None
        receiver.close()


# In the thread


def produce(path: str, blocks: Room, progress: Progress | None) -> None:
    """Write a file or a tree as a stream, see above. Blocks."""
    def write(data: bytes) -> None:
        blocks.block()
        blocks.put(data)
        if progress is not None:
            progress(len(data))

    status = os.stat(path)
    if stat.S_ISDIR(status.st_mode):
        write(b'{"kind": "tree"}\n')
        _tars.pack(path, write)
        return
    if not stat.S_ISREG(status.st_mode):
        raise UploadError(f"Cannot copy {path!r}: it is not a regular file")
    with open(path, "rb", buffering=0) as file:
        name = os.path.basename(os.path.normpath(path))
        head = {"kind": "file", "name": name, "mode": stat.S_IMODE(status.st_mode)}
        write(json.dumps(head).encode() + b"\n")
        while True:
            block = blocks.block() or bytearray(_tars.BLOCK)
            size = file.readinto(block)
            if not size:
                break
            blocks.put(memoryview(block)[:size], block)
            if progress is not None:
                progress(size)


def _produce_text(path: str, encoding: str | None, errors: str | None, blocks: _Blocks) -> bool | str:
    errors = errors or "strict"
    try:
        status = os.stat(path)
        name = codecs.lookup(encoding or locale.getpreferredencoding(False)).name
        decoder = codecs.getincrementaldecoder(name)(errors)
    except (LookupError, ValueError, OSError):
        return False  # who reads it as a whole finds that, too
    if not stat.S_ISREG(status.st_mode):
        return False
    if status.st_size < _tars.BLOCK:
        return files.read_text(path, encoding, errors)
    newlines = io.IncrementalNewlineDecoder(None, True)
    same = name == "utf-8" and errors == "strict"  # what is in the file is what is sent
    with open(path, "rb", buffering=0) as file:
        while True:
            block = blocks.block() or bytearray(_tars.BLOCK)
            size = file.readinto(block)
            data = memoryview(block)[:size]
            whole = not decoder.getstate()[0]
            text = decoder.decode(bytes(data), not size)
            whole = whole and not decoder.getstate()[0]  # no character begins before the block or ends after it
            same = same and block.find(b"\r", 0, size) < 0
            if not same:
                text = newlines.decode(text, not size)
            blocks.put(data if same and whole else text.encode("utf-8", "surrogatepass"), block)
            if not size:
                return True


class Reader:
    """A file-like view of the pieces of a stream; of a file they are written from where they came, of a tree each is
    copied once."""

    def __init__(self, arrivals: Come, progress: Progress | None = None):
        self._arrivals = arrivals
        self._progress = progress
        self._pieces: deque[bytes | memoryview] = deque()
        self._at = 0

    def _more(self) -> list[bytes | memoryview]:
        pieces = self._arrivals.get()
        if self._progress is not None and pieces:
            self._progress(sum(map(len, pieces)))
        return pieces

    def line(self) -> bytes:
        """Up to the first newline, which is not part of it."""
        head = b""
        while not head.endswith(b"\n"):
            data = self.read(1)
            if not data or len(head) > _tars.LONGEST_HEAD:
                raise ProtocolError("A file does not begin as it should")
            head += data
        return head[:-1]

    def write_to(self, fd: int) -> None:
        """All that is left, into a file."""
        if self._pieces and self._at:
            _tars.write_all(fd, [memoryview(self._pieces[0])[self._at :]])
            self._arrivals.release([self._pieces.popleft()])
        self._at = 0
        pieces = list(self._pieces)
        self._pieces.clear()
        while pieces or (pieces := self._more()):
            _tars.write_all(fd, pieces)
            self._arrivals.release(pieces)
            pieces = []

    def skip(self) -> None:
        """All that is left, to nowhere."""
        while self.read(_tars.BLOCK):
            pass

    def read(self, size: int) -> bytes:
        """At most `size` bytes; b"" only at the end."""
        parts: list[bytes | memoryview] = []
        done: list[bytes | memoryview] = []
        while size:
            if not self._pieces:
                self._pieces += self._more()
                if not self._pieces:
                    break
            first = self._pieces[0]
            part = first[self._at : self._at + size] if self._at or len(first) > size else first
            parts.append(part)
            size -= len(part)
            self._at += len(part)
            if self._at == len(first):
                done.append(self._pieces.popleft())
                self._at = 0
        data = bytes(parts[0]) if len(parts) == 1 else b"".join(parts)
        if done:
            self._arrivals.release(done)
        return data


def consume(reader: Reader, target: str, own_name: str | None) -> None:
    """Make the file or the tree of a stream, see `receive`. Blocks."""
    try:
        head = json.loads(reader.line())
        kind, name, mode = head["kind"], head.get("name"), head.get("mode", 0o644)
        if kind not in ("file", "tree") or not isinstance(mode, int) or not isinstance(name, str | None):
            raise ValueError
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise ProtocolError("A file does not begin as it should") from None
    with Spool(target) as spool:
        try:
            if kind == "tree":
                _tars.unpack(reader, spool)
                reader.skip()  # what is after the end of the archive
                spool.place()
            else:
                with spool.file("", mode) as file:
                    reader.write_to(file.fileno())
                spool.place(name if own_name is None else own_name)
        except SwerexException:
            raise
        except ValueError as error:  # names that no file can have
            raise UploadError(f"What came cannot be made here: {error}") from None
