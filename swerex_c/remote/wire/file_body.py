"""Files and directory trees as bodies of HTTP requests and responses between two ends of this package.

The body is the bytes of a file, or a tar archive of a directory. Headers say which of them it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import stat
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from typing import BinaryIO, TypeVar

from swerex_c.exceptions import UploadError
from swerex_c.files import tar
from swerex_c.files.local import open_regular
from swerex_c.files.staging import Staging
from swerex_c.files.writing import BLOCK, check_path, write_all
from swerex_c.remote.wire.packed import packed
from swerex_c.utils.threads import OrderedCalls, in_file_thread, in_thread

__all__ = ["KIND", "MODE", "NAME", "TARGET", "Unpack", "open_source", "prepended", "store", "unpacker"]

KIND = "X-Swerex-Kind"
"""Header that is "file" or "tree"."""

MODE = "X-Swerex-Mode"
"""Header with the file's or directory's mode, octal."""

NAME = "X-Swerex-Name"
"""Header with the file's name, as JSON, which is ASCII for any name."""

TARGET = "X-Swerex-Target"
"""Header of an upload with the path to copy to, as JSON."""

_PIECE = 512 << 10
"""Maximum number of bytes of a file to read at once."""

_END_SECONDS = 2.0
"""Seconds to wait for a thread that has nothing more to read."""

Data = TypeVar("Data", bytes, bytes | memoryview)

Unpack = Callable[[BinaryIO, Staging], object]
"""A function that unpacks an archive into a tree."""


@contextlib.asynccontextmanager
async def open_source(
    path: str, pack: Callable[[str, Callable[[bytes], object]], None] = tar.pack
) -> AsyncIterator[tuple[dict[str, str], int | None, AsyncGenerator[bytes, None]]]:
    """Open a file or directory for sending; give its headers, the size of a file if it has one, and the body.

    Args:
        pack: function that writes the archive of a directory.

    Raises:
        OSError: if it cannot be read.
        UploadError: if it is neither a file nor a directory.
    """
    file, status = await in_file_thread(_open, path)
    headers = {KIND: "tree" if file is None else "file", MODE: f"{stat.S_IMODE(status.st_mode):o}"}
    if file is not None:
        size = status.st_size or None  # files of /proc have content, and no size
        turns = OrderedCalls()
        try:
            async with contextlib.aclosing(_read(file, size, turns)) as pieces:
                yield headers, size, pieces
        finally:
            await turns.end(file.close)
        return
    async with contextlib.aclosing(packed(pack, path)) as pieces:
        first = await anext(pieces)  # errors that are known beforehand are raised here
        async with contextlib.aclosing(prepended(first, pieces)) as body:
            yield headers, None, body


def _open(path: str) -> tuple[BinaryIO | None, os.stat_result]:
    check_path(path)
    status = os.stat(path)
    if stat.S_ISDIR(status.st_mode):
        return None, status
    if not stat.S_ISREG(status.st_mode):
        raise UploadError(f"Cannot copy {path!r}: it is neither a file nor a directory")
    file = open_regular(path)
    return file, os.fstat(file.fileno())


async def _read(file: BinaryIO, size: int | None, turns: OrderedCalls) -> AsyncGenerator[bytes, None]:
    """Yield `size` bytes of a file, or all; raise OSError if the file has become shorter.

    The next piece is read while the caller sends one.
    """

    def next_piece() -> asyncio.Task[bytes]:
        return asyncio.ensure_future(turns.call(file.read, _PIECE if size is None else min(size, _PIECE)))

    reading = next_piece()
    try:
        while data := await reading:
            size = None if size is None else size - len(data)
            reading = next_piece()
            yield data
    finally:
        reading.cancel()
    if size:
        raise OSError(f"{file.name!r} became shorter while it was sent")


async def prepended(first: Data, rest: AsyncGenerator[Data, None]) -> AsyncGenerator[Data, None]:
    """Yield a piece and then the others."""
    async with contextlib.aclosing(rest):
        yield first
        async for piece in rest:
            yield piece


def unpacker(headers: Mapping[str, str]) -> Unpack | None:
    """Return the function that unpacks a body with these headers, or None for a file."""
    return tar.unpack if headers.get(KIND) == "tree" else None


async def store(
    pieces: AsyncIterator[bytes | memoryview],
    target: str,
    unpack: Unpack | None,
    mode: str | None,
    name: str,
    *,
    follow: bool = True,
) -> None:
    """Save a received body as `target`: all of it or nothing.

    Args:
        unpack: function for the archive of a tree; None for a file.
        mode: mode of a file, octal; None or an invalid one is that of a new file.
        name: name of a file that goes into a directory.
        follow: whether a file follows a target that is a link, or replaces it.
    """
    if unpack is tar.unpack:  # a zip has to be there as a whole
        await _unpack_tree(pieces, target)
        return
    rights = int(mode, 8) if mode and len(mode) <= 4 and set(mode) <= set("01234567") else None
    stack, turns = contextlib.ExitStack(), OrderedCalls()
    try:
        staging = await turns.call(stack.enter_context, Staging(target))
        file = stack.enter_context(contextlib.ExitStack())
        fd = await turns.call(file.enter_context, staging.file("", rights))
        collected: list[bytes | memoryview] = []
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


async def _unpack_tree(pieces: AsyncIterator[bytes | memoryview], target: str) -> None:
    """Unpack a tar archive while it arrives, in a thread that reads it from a socket, and save the tree as `target`."""
    complete = threading.Event()
    ours, theirs = socket.socketpair()
    _, writer = await asyncio.open_connection(sock=ours)

    def unpack() -> None:
        with theirs, theirs.makefile("rb") as archive, Staging(target) as staging:
            tar.unpack(archive, staging)
            while archive.read(BLOCK):
                pass  # padding after the end of the archive
            if complete.is_set():
                staging.commit()

    async def pass_on() -> None:
        async for piece in pieces:
            writer.write(piece)
            try:
                await writer.drain()
            except ConnectionError:  # the thread has ended, and says why
                return
        complete.set()
        writer.write_eof()

    passing = asyncio.ensure_future(pass_on())
    unpacking = asyncio.ensure_future(in_thread(unpack))
    try:
        await asyncio.wait([passing, unpacking], return_when=asyncio.FIRST_COMPLETED)
        if passing.done():
            passing.result()
        await unpacking
    finally:
        passing.cancel()
        writer.transport.abort()
        await asyncio.wait([passing, unpacking], timeout=_END_SECONDS)
        if unpacking.done():
            theirs.close()  # no thread may have begun
        for each in (passing, unpacking):
            if each.done() and not each.cancelled():
                each.exception()
