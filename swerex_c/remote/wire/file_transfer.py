"""Files and directory trees as byte streams, with bounded memory.

A stream begins with a line of JSON: `{"kind": "file", "name": ..., "mode": ..., "size": ...}`, followed by the file's
bytes; or `{"kind": "tree"}`, followed by a tar archive (POSIX.1-2001 pax) of the directory's contents. Frames transfer
it in a lane, and HTTP as a body.

One thread for each transfer does all work with files: it reads at most two pieces ahead of the event loop, or lags
two pieces behind it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import queue
import stat
import threading
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable

from swerex_c.exceptions import ProtocolError, UploadError
from swerex_c.files import tar
from swerex_c.files.local import open_regular, sized
from swerex_c.files.staging import Staging
from swerex_c.files.writing import BLOCK, check_path, write_all
from swerex_c.utils.progress import Progress
from swerex_c.utils.threads import in_thread_settled
from swerex_c.utils.wait import end_tasks

__all__ = ["TARGET", "open_stream", "receive"]

TARGET = "X-Swerex-Target"
"""HTTP header of an upload whose body is such a stream: the path to copy to, as JSON, which is ASCII for any path."""

_AHEAD = 2
"""Maximum number of blocks between a thread and the event loop."""

_END_SECONDS = 2.0
"""Seconds to wait for the thread of a transfer that was given up."""

Pieces = AsyncGenerator[bytes, None]

Pack = Callable[[str, Callable[[bytes], object]], None]
"""A function that packs a tree into an archive, which it writes."""


# Sending


@contextlib.asynccontextmanager
async def open_stream(path: str, progress: Progress | None = None, pack: Pack = tar.pack) -> AsyncIterator[Pieces]:
    """Open a file or directory for sending; give its stream.

    Args:
        pack: function that writes the archive of a directory.

    Raises:
        OSError: if the file or tree cannot be read.
        UploadError: if it is something other than a file or a directory.
    """
    async with contextlib.aclosing(_written_by(lambda write: _send(path, pack, write))) as pieces:
        line, rest = await _first_line(pieces)  # raises the errors of opening
        size = json.loads(line).get("size")
        async with contextlib.aclosing(_joined([line + b"\n", rest], pieces, size, progress)) as stream:
            yield stream


def _send(path: str, pack: Pack, write: Callable[[bytes], None]) -> None:
    check_path(path)
    status = os.stat(path)
    if stat.S_ISDIR(status.st_mode):
        write(b'{"kind": "tree"}\n')
        pack(path, write)
        return
    if not stat.S_ISREG(status.st_mode):
        raise UploadError(f"Cannot copy {path!r}: it is neither a file nor a directory")
    with open_regular(path) as file:
        status = os.fstat(file.fileno())
        data, left = sized(file, status.st_size)
        name, mode = os.path.basename(os.path.normpath(path)), stat.S_IMODE(status.st_mode)
        head = {"kind": "file", "name": name, "mode": mode, "size": left or None}
        write(json.dumps(head).encode() + b"\n")
        while left:
            if not data:
                raise OSError(f"{file.name!r} became shorter while it was sent")
            write(data[:left])
            left -= min(left, len(data))
            data = file.read(min(left, BLOCK))


async def _written_by(work: Callable[[Callable[[bytes], None]], None]) -> Pieces:
    """Yield in blocks what `work` writes in a thread with the function that it gets, then raise its error."""
    loop, blocks, room = asyncio.get_running_loop(), asyncio.Queue[bytes](), threading.Semaphore(_AHEAD)
    held: list[bytes] = []
    size, closed = 0, False

    def flush() -> None:
        room.acquire()
        if closed:
            raise BrokenPipeError("The transfer has ended")
        loop.call_soon_threadsafe(blocks.put_nowait, b"".join(held))
        held.clear()

    def write(data: bytes) -> None:
        nonlocal size
        held.append(data)
        size += len(data)
        if size >= BLOCK:
            size = 0
            flush()

    def run() -> None:
        work(write)
        flush()

    writing = asyncio.ensure_future(in_thread_settled(_END_SECONDS, run))
    writing.add_done_callback(lambda _: blocks.put_nowait(b""))
    try:
        while block := await blocks.get():
            room.release()
            yield block
        await writing
    finally:
        closed = True
        room.release()
        await end_tasks(writing)


# Receiving


async def receive(pieces: Pieces, target: str, name: str | None = None, progress: Progress | None = None) -> None:
    """Save a received stream as `target`: all of it or nothing, by the rules of uploads.

    Args:
        name: name for a received file if `target` is a directory; None means the name that the sender gives.

    Raises:
        OSError, UploadError: as for `swerex_c.files.local.copy`.
        ProtocolError: if the stream does not have the format of `open_stream`.
    """
    async with contextlib.aclosing(pieces):
        line, rest = await _first_line(pieces)
        kind, sent_name, mode, size = _parsed(line)
        received_name = name or sent_name or ""
        if received_name:
            check_path(received_name)
        source, follow = _Received(), name is None  # an upload follows a target that is a link, a download replaces it
        saving = asyncio.ensure_future(
            in_thread_settled(_END_SECONDS, _save, source, kind, target, received_name, mode, follow)
        )
        passing = asyncio.ensure_future(source.fill(_joined([rest], pieces, size, progress)))
        passing.add_done_callback(lambda _: source.end())
        try:
            await asyncio.gather(passing, saving)
        finally:
            await end_tasks(passing, saving)


async def _first_line(pieces: Pieces) -> tuple[bytes, bytes]:
    """Return the first line without its end, and the rest of the piece that has its end."""
    head = b""
    async for piece in pieces:
        head += piece
        line, newline, rest = head.partition(b"\n")
        if len(line) > tar.LONGEST_HEAD:
            break
        if newline:
            return line, rest
    raise ProtocolError("The header of a transferred file is invalid")


def _parsed(line: bytes) -> tuple[str, str | None, int | None, int | None]:
    """Return kind, name, mode and size from a first line."""
    try:
        head = json.loads(line)
        kind, name, mode, size = head["kind"], head.get("name"), head.get("mode"), head.get("size")
        numbers = isinstance(mode, int | None) and isinstance(size, int | None)
        if kind not in ("file", "tree") or not numbers or not isinstance(name, str | None):
            raise ValueError
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise ProtocolError("The header of a transferred file is invalid") from None
    return kind, name, mode if mode in range(0o10000) else None, size  # None if no file can have that mode


def _save(source: _Received, kind: str, target: str, name: str, mode: int | None, follow: bool) -> None:
    with Staging(target) as staging:
        if kind == "tree":
            tar.unpack(source, staging)
            while source.read(BLOCK):
                pass  # padding after the end of the archive
        else:
            with staging.file("", mode) as fd:
                while data := source.read(BLOCK):
                    write_all(fd, [data])
        staging.commit(name, follow=follow)


class _Received:
    """Received pieces as a file that a thread reads."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._room = asyncio.Semaphore(_AHEAD)
        self._blocks = queue.SimpleQueue[list[bytes]]()
        self._unread: deque[bytes] = deque()

    async def fill(self, pieces: AsyncIterator[bytes]) -> None:
        block: list[bytes] = []
        size = 0
        async for piece in pieces:
            if piece:
                block.append(piece)
            size += len(piece)
            if size >= BLOCK:
                await self._room.acquire()
                self._blocks.put(block)
                block, size = [], 0
        self._blocks.put([*block, b""])

    def end(self) -> None:
        """Let the thread fail if it reads on."""
        self._blocks.put([])

    def read(self, size: int, /) -> bytes:
        """Return at most `size` bytes, or b"" at the end. Blocks."""
        if not self._unread:
            self._unread.extend(self._blocks.get())
            if not self._unread:
                raise BrokenPipeError("The transfer has ended")
            self._loop.call_soon_threadsafe(self._room.release)
        piece = self._unread.popleft()
        if len(piece) > size or not piece:  # the end stays
            self._unread.appendleft(piece[size:])
        return piece[:size]


# Helpers of both


async def _joined(begin: list[bytes], rest: Pieces, size: int | None, progress: Progress | None) -> Pieces:
    """Yield the pieces of a stream, and tell the progress towards `size` bytes; `begin` ends in the first of these."""
    async with contextlib.aclosing(rest):
        for piece in begin:
            yield piece
        done = len(begin[-1])
        async for piece in rest:
            yield piece
            done += len(piece)
            if progress is not None:
                progress(done, size)
