"""Files and directory trees as byte streams, with bounded memory.

A stream begins with a line of JSON: `{"kind": "file", "name": ..., "mode": ..., "size": ...}`, followed by the file's
bytes; or `{"kind": "tree"}`, followed by a tar archive (POSIX.1-2001 pax) of the directory's contents. Frames transfer
it in a lane, and HTTP as a body.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import stat
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any, BinaryIO

from swerex_c.exceptions import ProtocolError, ResourceError, UploadError
from swerex_c.files import tar
from swerex_c.files.local import open_regular, sized
from swerex_c.files.staging import Staging
from swerex_c.files.writing import BLOCK, check_path, write_all
from swerex_c.utils.progress import Progress
from swerex_c.utils.threads import OrderedCalls, in_thread
from swerex_c.utils.wait import end_tasks

__all__ = ["TARGET", "open_source", "open_stream", "receive", "store_file"]

TARGET = "X-Swerex-Target"
"""HTTP header of an upload whose body is such a stream: the path to copy to, as JSON, which is ASCII for any path."""

_PIECE = 512 << 10
"""Maximum number of bytes of a file to read at once."""

_END_SECONDS = 2.0
"""Seconds to wait for a thread that has nothing more to read or write."""

Pieces = AsyncGenerator[bytes, None]

Pack = Callable[[str, Callable[[bytes], object]], None]
"""A function that packs a tree into an archive, which it writes."""

Unpack = Callable[[BinaryIO, Staging], object]
"""A function that unpacks an archive into a tree."""


# Sending


@contextlib.asynccontextmanager
async def open_stream(path: str, progress: Progress | None = None) -> AsyncIterator[Pieces]:
    """Open a file or directory for sending; give its stream.

    Raises:
        OSError: if the file or tree cannot be read.
        UploadError: if it is something other than a file or a directory.
    """
    async with open_source(path, progress=progress) as (head, content):
        async with contextlib.aclosing(_prepended(json.dumps(head).encode() + b"\n", content)) as pieces:
            yield pieces


@contextlib.asynccontextmanager
async def open_source(
    path: str, pack: Pack = tar.pack, progress: Progress | None = None
) -> AsyncIterator[tuple[dict[str, Any], Pieces]]:
    """Open a file or directory for sending; give its description, and its bytes or its archive.

    It raises the errors of `open_stream`.

    Args:
        pack: function that writes the archive of a directory.
    """
    stack, turns = contextlib.ExitStack(), OrderedCalls()
    try:
        opened = await turns.call(_open, path, stack)
        if opened is None:
            async with contextlib.aclosing(_packed(pack, path)) as packed:
                first = await anext(packed)  # errors that are known beforehand are raised here
                async with contextlib.aclosing(_counted(_prepended(first, packed), None, progress)) as content:
                    yield {"kind": "tree"}, content
            return
        file, first, size = opened
        name, mode = os.path.basename(os.path.normpath(path)), stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        pieces = _prepended(first, _read(file, size - len(first), turns))
        async with contextlib.aclosing(_counted(pieces, size or None, progress)) as content:
            yield {"kind": "file", "name": name, "mode": mode, "size": size or None}, content
    finally:
        await turns.end(stack.close)


def _open(path: str, stack: contextlib.ExitStack) -> tuple[BinaryIO, bytes, int] | None:
    """Return an open file, its beginning, and the number of its bytes; None for a directory. The stack closes it."""
    check_path(path)
    status = os.stat(path)
    if stat.S_ISDIR(status.st_mode):
        return None
    if not stat.S_ISREG(status.st_mode):
        raise UploadError(f"Cannot copy {path!r}: it is neither a file nor a directory")
    file = stack.enter_context(open_regular(path))
    return file, *sized(file, os.fstat(file.fileno()).st_size)


async def _read(file: BinaryIO, size: int, turns: OrderedCalls) -> Pieces:
    """Yield the next `size` bytes of a file; raise OSError if the file has become shorter.

    The next piece is read while the caller sends one.
    """

    def next_piece() -> asyncio.Task[bytes]:
        return asyncio.ensure_future(turns.call(file.read, min(size, _PIECE)))

    reading = next_piece()
    try:
        while data := await reading:
            size -= len(data)
            reading = next_piece()
            yield data
    finally:
        reading.cancel()
    if size:
        raise OSError(f"{file.name!r} became shorter while it was sent")


async def _packed(pack: Pack, path: str) -> Pieces:
    """Yield the archive of a directory in pieces. A thread packs, only a little ahead of the reader."""
    async with _thread_with_socket(lambda sock: pack(path, sock.sendall)) as (reader, _, packing):
        while data := await reader.read(_PIECE):
            yield data
        await packing


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
        _check_names(target, received_name)
        content = _counted(_prepended(rest, pieces), size, progress)
        if kind == "tree":
            await _store_tree(content, target)
        else:
            await store_file(content, target, received_name, mode=mode, follow=name is None)


def _check_names(*names: str) -> None:
    try:
        if any(b"\0" in os.fsencode(name) for name in names):
            raise UploadError("Cannot create the received file: its name contains a NUL character")
    except UnicodeEncodeError as error:
        raise UploadError(f"Cannot create the received file: {error}") from None


async def _first_line(pieces: Pieces) -> tuple[bytes, bytes]:
    """Return the first line, and what came behind it with its end."""
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
    """Return the kind, the name, the mode and the size that a first line says."""
    try:
        head = json.loads(line)
        kind, name, mode, size = head["kind"], head.get("name"), head.get("mode"), head.get("size")
        numbers = isinstance(mode, int | None) and isinstance(size, int | None)
        if kind not in ("file", "tree") or not numbers or not isinstance(name, str | None):
            raise ValueError
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise ProtocolError("The header of a transferred file is invalid") from None
    return kind, name, mode, size


async def store_file(
    pieces: AsyncIterator[bytes],
    target: str,
    name: str,
    *,
    mode: int | None = None,
    follow: bool = True,
    unpack: Unpack | None = None,
) -> None:
    """Save a received file, or the tree in a received archive, as `target`: all of it or nothing.

    Args:
        name: name of a file that goes into a directory.
        mode: mode of a file; None or an invalid one is that of a new file.
        follow: whether a file follows a target that is a link, or replaces it.
        unpack: function that unpacks the archive, which needs all of it; None for a file.
    """
    rights = mode if mode is not None and 0 <= mode <= 0o7777 else None
    stack, turns = contextlib.ExitStack(), OrderedCalls()
    try:
        staging = await turns.call(stack.enter_context, Staging(target))
        file = stack.enter_context(contextlib.ExitStack())
        fd = await turns.call(file.enter_context, staging.file("", rights))
        collected: list[bytes] = []
        size = 0
        async for piece in pieces:
            collected.append(piece)
            size += len(piece)
            if size >= BLOCK:
                await turns.call(write_all, fd, collected)
                collected, size = [], 0
        await turns.call(write_all, fd, collected)
        await turns.call(file.close)
        if unpack is not None:
            await turns.call(staging.commit_archive, target, unpack)
        else:
            await turns.call(staging.commit, name, follow=follow)
    finally:
        await turns.end(stack.close)


async def _store_tree(pieces: AsyncIterator[bytes], target: str) -> None:
    """Unpack a received tar archive while it arrives, and save the tree as `target`: all of it or nothing."""
    complete = threading.Event()

    def unpack(sock: socket.socket) -> None:
        with sock.makefile("rb") as archive, Staging(target) as staging:
            tar.unpack(archive, staging)
            while archive.read(BLOCK):
                pass  # padding after the end of the archive
            if complete.is_set():
                staging.commit()

    async def pass_on(writer: asyncio.StreamWriter) -> None:
        async for piece in pieces:
            writer.write(piece)
            try:
                await writer.drain()
            except ConnectionError:  # the thread has ended, and says why
                return
        complete.set()
        writer.write_eof()

    async with _thread_with_socket(unpack) as (_, writer, unpacking):
        passing = asyncio.ensure_future(pass_on(writer))
        try:
            await asyncio.wait([passing, unpacking], return_when=asyncio.FIRST_COMPLETED)
            if passing.done():
                passing.result()
            await unpacking
        finally:
            await end_tasks(passing)


# Helpers of both


async def _prepended(first: bytes, rest: Pieces) -> Pieces:
    """Yield a piece and then the others."""
    async with contextlib.aclosing(rest):
        yield first
        async for piece in rest:
            yield piece


async def _counted(pieces: Pieces, size: int | None, progress: Progress | None) -> Pieces:
    """Yield the pieces, and tell their progress towards `size` bytes."""
    done = 0
    async with contextlib.aclosing(pieces):
        async for piece in pieces:
            yield piece
            done += len(piece)
            if progress is not None:
                progress(done, size)


@contextlib.asynccontextmanager
async def _thread_with_socket(
    work: Callable[[socket.socket], None],
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter, asyncio.Future[None]]]:
    """Call a blocking function in a thread, with a socket; give the other end of the socket, and the call's outcome.

    The thread has two seconds to end after the connection is aborted.
    """
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=ours, limit=_PIECE)

    def call() -> None:
        with theirs:
            work(theirs)

    async def in_its_thread() -> None:
        try:
            await in_thread(call)
        except ResourceError:  # no thread may have begun
            theirs.close()
            raise

    working = asyncio.ensure_future(in_its_thread())
    try:
        yield reader, writer, working
    finally:
        writer.transport.abort()
        await asyncio.wait([working], timeout=_END_SECONDS)
        if working.done() and not working.cancelled():
            working.exception()
