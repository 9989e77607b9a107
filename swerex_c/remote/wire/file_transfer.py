"""Transfer of files and directory trees through streams, with bounded memory.

A stream begins with a line of JSON: `{"kind": "file", "name": ..., "mode": ...}`, followed by the file's bytes; or
`{"kind": "tree"}`, followed by a tar archive (POSIX.1-2001 pax) of the directory's contents.
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
from typing import TypeVar

from swerex_c.exceptions import ProtocolError, SwerexException, UploadError
from swerex_c.files import local, tar
from swerex_c.files.staging import Staging
from swerex_c.files.writing import BLOCK, check_path, write_all
from swerex_c.remote.wire.protocol import WINDOW
from swerex_c.remote.wire.streams import Receiver, Sender
from swerex_c.utils.threads import in_thread

__all__ = ["Progress", "receive", "send", "send_text"]

T = TypeVar("T")

Progress = Callable[[int], None]
"""Function to call with the size in bytes of each transferred piece."""

_AHEAD = WINDOW // BLOCK + 3
"""Maximum number of blocks in memory: WINDOW bytes to send without credit, and 3 blocks to read ahead."""

_TELL = 512 << 10
"""Bytes to write to disk before the sender gets credit for them, to save calls into the event loop."""


class _GivenUp(BaseException):
    """Exception raised in the thread of a cancelled transfer, to end it."""


class _Blocks:
    """Buffer of blocks from a reading thread to a `Sender`, which are reused when the receiver has consumed them."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, sender: Sender, begins: Callable[[], None] | None = None
    ) -> None:
        self._loop = loop
        self._begins = begins
        self._sender = sender
        self._free: SimpleQueue[bytearray | None] = SimpleQueue()  # None: a block that is not allocated yet
        self._ready: deque[tuple[memoryview, bytearray | None]] = deque()
        self._under_way: deque[tuple[int, bytearray | None]] = deque()  # sent blocks, with their end offsets
        self._told = False  # whether `_send` is scheduled; it sends all blocks that are ready then
        self._ended = False
        for _ in range(_AHEAD):
            self._free.put(None)

    # Called by the thread

    def block(self) -> bytearray | None:
        """Wait for a free block; return its buffer, or None if it has to be allocated."""
        block = self._free.get()
        if self._ended:
            raise _GivenUp
        return block

    def put(self, data: bytes | memoryview, block: bytearray | None = None) -> None:
        """Queue `data` for sending. `block` is the buffer that contains it, or None."""
        self._ready.append((memoryview(data), block))
        if not self._told:
            self._told = True
            self._loop.call_soon_threadsafe(self._send)

    # Called in the event loop

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
        """Make the thread end, if it still runs."""
        self._ended = True
        waited_for, self._free = self._free, SimpleQueue()
        waited_for.put(None)
        self._free.put(None)


class _Arrivals:
    """Queue of received pieces for a thread that writes them to disk. The sender gets credit for written pieces."""

    def __init__(self, loop: asyncio.AbstractEventLoop, receiver: Receiver):
        self._loop = loop
        self._receiver = receiver
        self._come: SimpleQueue[list[bytes | memoryview] | BaseException] = SimpleQueue()
        self._over = False
        self._written = 0
        receiver.when_news = self._news
        self._news()

    def _news(self) -> None:
        """Queue the pieces that the receiver has, and the end of the stream or its error."""
        receiver = self._receiver
        if pieces := receiver.take():
            self._come.put(pieces)
        if not self._over and (receiver.total is not None or receiver.error is not None):
            self._over = True
            self._come.put([] if receiver.total is not None or receiver.error is None else receiver.error)

    def end(self) -> None:
        """Make the thread end."""
        self._over = True
        self._come.put(_GivenUp())

    # Called by the thread

    def get(self) -> list[bytes | memoryview]:
        """Wait for received pieces and return them, or [] at the end of the stream."""
        come = self._come.get()
        if isinstance(come, BaseException):
            raise come
        if not come:
            self._come.put(come)
        return come

    def release(self, pieces: list[bytes | memoryview]) -> None:
        """Release the buffers of written pieces, and give the sender credit for them."""
        for piece in pieces:
            self._written += len(piece)
            self._receiver.release(piece)
        if self._written >= _TELL:
            written, self._written = self._written, 0
            self._loop.call_soon_threadsafe(self._receiver.done_with, written)


async def _in_thread(work: Callable[[], T], end: Callable[[], None]) -> T:
    """Run `work` in its own thread, because a slow peer may block it for long, then call `end` to end the thread."""
    try:
        return await in_thread(work)
    finally:
        end()


async def send(path: str, sender: Sender, progress: Progress | None = None) -> None:
    """Send the file or tree at `path` to a stream.

    Raises:
        OSError: if the file or tree cannot be read.
        UploadError: if it is, or contains, something other than files, directories and symbolic links.
    """
    blocks = _Blocks(asyncio.get_running_loop(), sender)
    await _in_thread(lambda: _produce(path, blocks, progress), blocks.end)


async def send_text(
    path: str, encoding: str | None, errors: str | None, limit: int, sender: Sender, begins: Callable[[], None]
) -> bool | str:
    """Send a file's text to a stream, in UTF-8 that may contain surrogates.

    The text is that of `local.read_text`.

    Args:
        limit: maximum size of the file in bytes.
        begins: function to call in the event loop before the first piece is sent.

    Returns:
        The text if the file is shorter than a block; then nothing is sent. True if the text was sent. False if it is
        not a regular file, `os.stat` fails, or the encoding is unknown or cannot be decoded in pieces.

    Raises:
        UnicodeError: if the file does not decode; the positions are not those in the file. The text before was sent.
        OSError: if the file cannot be read.
        ResourceError: if the file has more than `limit` bytes.
    """
    blocks = _Blocks(asyncio.get_running_loop(), sender, begins)
    gone = threading.Event()

    def end() -> None:
        gone.set()
        blocks.end()

    return await _in_thread(lambda: _produce_text(path, encoding, errors, limit, blocks, gone), end)


async def receive(receiver: Receiver, target: str, progress: Progress | None = None, name: str | None = None) -> None:
    """Receive a file or tree from a stream, and save it as `target`.

    All of it is saved or nothing, by the rules of uploads.

    Args:
        name: name for a received file if `target` is a directory; None means the name that the sender gives.

    Raises:
        OSError, UploadError: as for `swerex_c.files.local.copy`.
        ProtocolError: if the stream does not have the format that `send` writes.
    """
    arrivals = _Arrivals(asyncio.get_running_loop(), receiver)
    try:
        await _in_thread(lambda: _consume(_Reader(arrivals, progress), target, name), arrivals.end)
    finally:
        receiver.when_news = None
        receiver.close()


# Functions that the thread of a transfer runs


def _produce(path: str, blocks: _Blocks, progress: Progress | None) -> None:
    """Write the file or tree at `path` to `blocks`, in this module's format.

    This call blocks.
    """

    def write(data: bytes) -> None:
        blocks.block()
        blocks.put(data)
        if progress is not None:
            progress(len(data))

    check_path(path)
    status = os.stat(path)
    if stat.S_ISDIR(status.st_mode):
        write(b'{"kind": "tree"}\n')
        tar.pack(path, write)
        return
    if not stat.S_ISREG(status.st_mode):
        raise UploadError(f"Cannot copy {path!r}: it is not a regular file")
    with local.open_regular(path) as file:
        name = os.path.basename(os.path.normpath(path))
        head = {"kind": "file", "name": name, "mode": stat.S_IMODE(status.st_mode)}
        write(json.dumps(head).encode() + b"\n")
        while True:
            block = blocks.block() or bytearray(BLOCK)
            size = file.readinto(block)  # type: ignore[attr-defined]
            if not size:
                break
            blocks.put(memoryview(block)[:size], block)
            if progress is not None:
                progress(size)


def _produce_text(
    path: str, encoding: str | None, errors: str | None, limit: int, blocks: _Blocks, gone: threading.Event
) -> bool | str:
    """Do the work of `send_text` in its thread; stop when `gone` is set or `blocks` is ended."""
    errors = errors or "strict"
    try:
        status = os.stat(path)
        name = codecs.lookup(encoding or locale.getpreferredencoding(False)).name
        decoder = codecs.getincrementaldecoder(name)(errors)
    except (LookupError, ValueError, OSError):
        return False  # the caller then reads the file as a whole, which raises the error
    if not stat.S_ISREG(status.st_mode):
        return False
    if status.st_size > limit:
        raise local.too_long(path, limit)
    if status.st_size < BLOCK:
        return local.read_text(path, encoding, errors, limit=limit, gone=gone)
    newlines = io.IncrementalNewlineDecoder(None, True)
    same = name == "utf-8" and errors == "strict"  # the file's bytes can be sent unchanged
    done = 0
    with local.open_regular(path) as file:
        while True:
            block = blocks.block() or bytearray(BLOCK)
            size = file.readinto(block)  # type: ignore[attr-defined]
            done += size
            if done > limit:  # the file grew while it was read
                raise local.too_long(path, limit)
            data = memoryview(block)[:size]
            whole = not decoder.getstate()[0]
            text = decoder.decode(bytes(data), not size)
            whole = whole and not decoder.getstate()[0]  # the block has whole characters only
            same = same and block.find(b"\r", 0, size) < 0
            if not same:
                text = newlines.decode(text, not size)
            blocks.put(data if same and whole else text.encode("utf-8", "surrogatepass"), block)
            if not size:
                return True


class _Reader:
    """File-like reader of a stream.

    Pieces of a file are written to disk uncopied; those of a tree are copied once.
    """

    def __init__(self, arrivals: _Arrivals, progress: Progress | None = None):
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
        """Read a line, and return it without its newline."""
        head = b""
        while not head.endswith(b"\n"):
            data = self.read(1)
            if not data or len(head) > tar.LONGEST_HEAD:
                raise ProtocolError("The header of a transferred file is invalid")
            head += data
        return head[:-1]

    def write_to(self, fd: int) -> None:
        """Write the rest of the stream to a file descriptor."""
        if self._pieces and self._at:
            write_all(fd, [memoryview(self._pieces[0])[self._at :]])
            self._arrivals.release([self._pieces.popleft()])
        self._at = 0
        pieces = list(self._pieces)
        self._pieces.clear()
        while pieces or (pieces := self._more()):
            write_all(fd, pieces)
            self._arrivals.release(pieces)
            pieces = []

    def skip(self) -> None:
        """Read and discard the rest of the stream."""
        while self.read(BLOCK):
            pass

    def read(self, size: int) -> bytes:
        """Read `size` bytes, or fewer only at the end of the stream."""
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


def _consume(reader: _Reader, target: str, own_name: str | None) -> None:
    """Save the file or tree of a stream as `target`, by the rules of `receive`.

    This call blocks.
    """
    try:
        head = json.loads(reader.line())
        kind, name, mode = head["kind"], head.get("name"), head.get("mode", 0o644)
        if kind not in ("file", "tree") or not isinstance(mode, int) or not isinstance(name, str | None):
            raise ValueError
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise ProtocolError("The header of a transferred file is invalid") from None
    with Staging(target) as staging:
        try:
            if kind == "tree":
                tar.unpack(reader, staging)
                reader.skip()  # padding after the end of the archive
                staging.commit()
            else:
                with staging.file("", mode) as fd:
                    reader.write_to(fd)
                staging.commit(name if own_name is None else own_name, follow=own_name is None)
        except SwerexException:
            raise
        except ValueError as error:  # an invalid file name
            raise UploadError(f"Cannot create the received file: {error}") from None
