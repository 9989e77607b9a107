"""Files and trees through the streams of a connection, in both directions, never whole in memory.

A stream begins with a line of JSON: `{"kind": "file", "name": ..., "mode": ...}`, and the file's bytes follow; or
`{"kind": "tree"}`, and the rest is a tar archive (POSIX.1-2001 pax) of what is in the directory. Each transfer has a
thread of its own, since a slow peer may hold it for long.
"""

from __future__ import annotations

import asyncio
import json
import os
import stat
import threading
from collections.abc import Callable
from concurrent.futures import Future as ThreadFuture
from typing import Any, TypeVar

from swerex_c.exceptions import ProtocolError, SwerexException, UploadError
from swerex_c.remote.flow import Receiver, Sender
from swerex_c.runtime import _tars
from swerex_c.runtime._spool import Spool

__all__ = ["Progress", "receive", "send"]

T = TypeVar("T")

Progress = Callable[[int], None]
"""Told how many more bytes of a stream were written."""


class _Bridge:
    """Lets a thread wait for what the event loop has."""

    def __init__(self, loop: asyncio.AbstractEventLoop):
        self._loop = loop
        self._waiting: ThreadFuture[Any] | None = None
        self._lock = threading.Lock()
        self._ended = False

    def wait(self, work: Callable[[], Any]) -> Any:
        """In the thread: the result of the coroutine that `work` makes, run by the loop."""
        with self._lock:
            if self._ended:
                raise InterruptedError("The transfer was given up")
            waiting = self._waiting = asyncio.run_coroutine_threadsafe(work(), self._loop)
        return waiting.result()

    def end(self) -> None:
        """In the loop: the thread is to end."""
        with self._lock:
            self._ended = True
            if self._waiting is not None:
                self._waiting.cancel()


async def _in_thread(work: Callable[[_Bridge], T]) -> T:
    loop = asyncio.get_running_loop()
    bridge = _Bridge(loop)
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
            result = work(bridge)
        except BaseException as e:
            error = e
        try:
            loop.call_soon_threadsafe(tell, result, error)
        except RuntimeError:
            pass  # the loop was closed: nobody waits

    threading.Thread(target=run, name="swerex-transfer", daemon=True).start()
    try:
        return await done
    except asyncio.CancelledError:
        bridge.end()
        raise


async def send(path: str, sender: Sender, progress: Progress | None = None) -> None:
    """Write a file or a tree to a stream.

    Raises:
        OSError: if it cannot be read.
        UploadError: if it is, or holds, something that is neither a file nor a directory nor a symbolic link.
    """

    async def put(data: bytes) -> None:
        sender.write(data)
        await sender.room()

    def work(bridge: _Bridge) -> None:
        def write(data: bytes) -> None:
            bridge.wait(lambda: put(data))
            if progress is not None:
                progress(len(data))

        _produce(path, write)

    await _in_thread(work)


async def receive(receiver: Receiver, target: str, progress: Progress | None = None, name: str | None = None) -> None:
    """Make what comes in a stream the file or the tree `target`, by the rules of uploads; all of it or nothing.

    Args:
        name: what a file is called if `target` is a directory; None: what the other end says.

    Raises:
        OSError, UploadError: as `files.upload`.
        ProtocolError: if the stream is not one that `send` writes.
    """

    async def get() -> list[bytes]:
        first = await receiver.read()
        return [first, *receiver.take()] if first else []

    def work(bridge: _Bridge) -> None:
        def read() -> list[bytes]:
            pieces: list[bytes] = bridge.wait(get)
            if progress is not None:
                progress(sum(map(len, pieces)))
            return pieces

        _consume(_Reader(read), target, name)

    await _in_thread(work)


# In the thread


def _produce(path: str, write: Callable[[bytes], None]) -> None:
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
        while data := file.read(_tars.BLOCK):
            write(data)


class _Writer:
    """What tarfile writes to."""

    def __init__(self, write: Callable[[bytes], None]):
        self.write = write


class _Reader:
    """A file-like view of the pieces of a stream; each piece is copied at most once."""

    def __init__(self, more: Callable[[], list[bytes]]):
        self._more = more
        self._pieces: list[bytes] = []
        self._at = 0

    def line(self) -> bytes:
        head = b""
        while b"\n" not in head:
            data = self.read(256)
            if not data or len(head) > _tars.LONGEST_HEAD:
                raise ProtocolError("A file does not begin as it should")
            head += data
        line, _, rest = head.partition(b"\n")
        self._pieces[:0] = [rest] if not self._at else [rest, self._pieces.pop(0)[self._at :]]
        self._at = 0
        return line

    def pieces(self) -> list[bytes]:
        """All that is there, or as it comes; [] at the end."""
        pieces, self._pieces = self._pieces, []
        if pieces and self._at:
            pieces[0] = pieces[0][self._at :]
        self._at = 0
        return [piece for piece in pieces if piece] or self._more()

    def read(self, size: int) -> bytes:
        """At most `size` bytes; b"" only at the end."""
        parts: list[bytes] = []
        while size:
            if not self._pieces:
                self._pieces = self._more()
                if not self._pieces:
                    break
            first = self._pieces[0]
            part = first[self._at : self._at + size] if self._at or len(first) > size else first
            parts.append(part)
            size -= len(part)
            self._at += len(part)
            if self._at == len(first):
                self._pieces.pop(0)
                self._at = 0
        return parts[0] if len(parts) == 1 else b"".join(parts)


def _consume(reader: _Reader, target: str, own_name: str | None) -> None:
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
                while reader.pieces():  # what is after the end of the archive
                    pass
                spool.place()
            else:
                with spool.file("", mode) as file:
                    while pieces := reader.pieces():
                        _tars.write_all(file.fileno(), pieces)
                spool.place(name if own_name is None else own_name)
        except SwerexException:
            raise
        except ValueError as error:  # names that no file can have
            raise UploadError(f"What came cannot be made here: {error}") from None
