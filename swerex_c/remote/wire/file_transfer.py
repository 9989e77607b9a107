"""Transfer of files and directory trees through streams, with bounded memory.

A stream begins with a line of JSON: `{"kind": "file", "name": ..., "mode": ...}`, followed by the file's bytes; or
`{"kind": "tree"}`, followed by a tar archive (POSIX.1-2001 pax) of the directory's contents.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import json
import locale
import os
import stat
import threading
from collections.abc import AsyncGenerator, Callable, Iterator

from swerex_c.exceptions import ProtocolError, SwerexException, UploadError
from swerex_c.files import local, tar
from swerex_c.files.writing import BLOCK
from swerex_c.remote.wire import file_body
from swerex_c.remote.wire.streams import Receiver, Sender
from swerex_c.utils.threads import OrderedCalls

__all__ = ["Progress", "receive", "send", "send_text"]

Progress = Callable[[int], None]
"""Function to call with the size in bytes of each transferred piece."""


async def send(path: str, sender: Sender, progress: Progress | None = None) -> None:
    """Send the file or tree at `path` to a stream.

    Raises:
        OSError: if the file or tree cannot be read.
        UploadError: if it is something other than a file or a directory.
    """
    async with file_body.open_source(path) as (headers, _, pieces):
        head: dict[str, object] = {"kind": headers[file_body.KIND]}
        if head["kind"] == "file":
            head |= {"name": os.path.basename(os.path.normpath(path)), "mode": int(headers[file_body.MODE], 8)}
        async with contextlib.aclosing(file_body.prepended(json.dumps(head).encode() + b"\n", pieces)) as body:
            async for piece in body:
                sender.write(piece)
                if progress is not None:
                    progress(len(piece))
                await sender.room()


async def receive(receiver: Receiver, target: str, progress: Progress | None = None, name: str | None = None) -> None:
    """Receive a file or tree from a stream, and save it as `target`.

    All of it is saved or nothing, by the rules of uploads.

    Args:
        name: name for a received file if `target` is a directory; None means the name that the sender gives.

    Raises:
        OSError, UploadError: as for `swerex_c.files.local.copy`.
        ProtocolError: if the stream does not have the format that `send` writes.
    """
    try:
        async with contextlib.aclosing(_received(receiver, progress)) as pieces:
            line, rest = await _first_line(pieces)
            kind, sent_name, mode = _parsed(line)
            unpack = tar.unpack if kind == "tree" else None
            own = sent_name if name is None else name
            content = file_body.prepended(rest, pieces)
            await file_body.store(content, target, unpack, f"{mode:o}", own or "", follow=name is None)
    except SwerexException:
        raise
    except ValueError as error:  # an invalid file name
        raise UploadError(f"Cannot create the received file: {error}") from None
    finally:
        receiver.close()


async def _received(receiver: Receiver, progress: Progress | None) -> AsyncGenerator[bytes | memoryview, None]:
    """Yield the pieces of a stream; the sender gets credit for a piece when the next one is asked for."""
    while True:
        await receiver.news()
        pieces = receiver.take()
        if not pieces:
            return
        for piece in pieces:
            yield piece
            receiver.done_with(len(piece))
            if progress is not None:
                progress(len(piece))


async def _first_line(pieces: AsyncGenerator[bytes | memoryview, None]) -> tuple[bytes, bytes]:
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


def _parsed(line: bytes) -> tuple[str, str | None, int]:
    """Return the kind, the name and the mode that a first line says."""
    try:
        head = json.loads(line)
        kind, name, mode = head["kind"], head.get("name"), head.get("mode", 0o644)
        if kind not in ("file", "tree") or not isinstance(mode, int) or not isinstance(name, str | None):
            raise ValueError
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise ProtocolError("The header of a transferred file is invalid") from None
    return kind, name, mode


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
    gone, turns = threading.Event(), OrderedCalls()
    stack = contextlib.ExitStack()
    try:
        found = await turns.call(_open_text, stack, path, encoding, errors, limit, gone)
        if isinstance(found, bool | str):
            return found
        begun = False
        while (piece := await turns.call(next, found, None)) is not None:
            if not begun:
                begins()
                begun = True
            sender.write(piece)
            await sender.room()
        return True
    finally:
        gone.set()
        await turns.end(stack.close)


def _open_text(
    stack: contextlib.ExitStack,
    path: str,
    encoding: str | None,
    errors: str | None,
    limit: int,
    gone: threading.Event,
) -> bool | str | Iterator[bytes]:
    """Return what `send_text` returns, or the pieces of the text; `stack` closes the file. Stop when `gone` is set."""
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
    file = stack.enter_context(local.open_regular(path))
    newlines = io.IncrementalNewlineDecoder(None, True)

    def pieces(same: bool, done: int = 0) -> Iterator[bytes]:
        while True:
            data = file.read(BLOCK)
            done += len(data)
            if done > limit:  # the file grew while it was read
                raise local.too_long(path, limit)
            whole = not decoder.getstate()[0]
            text = decoder.decode(data, not data)
            whole = whole and not decoder.getstate()[0]  # the block has whole characters only
            same = same and b"\r" not in data
            if not same:
                text = newlines.decode(text, not data)
            yield data if same and whole else text.encode("utf-8", "surrogatepass")
            if not data:
                return

    return pieces(same=name == "utf-8" and errors == "strict")  # the file's bytes can be sent unchanged
