"""Transfer of files and directory trees through streams, with bounded memory.

A stream begins with a line of JSON: `{"kind": "file", "name": ..., "mode": ...}`, followed by the file's bytes; or
`{"kind": "tree"}`, followed by a tar archive (POSIX.1-2001 pax) of the directory's contents.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import AsyncGenerator, Callable

from swerex_c.exceptions import ProtocolError, SwerexException, UploadError
from swerex_c.files import tar
from swerex_c.remote.wire import file_body
from swerex_c.remote.wire.streams import Receiver, Sender

__all__ = ["Progress", "receive", "send"]

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
