"""Files of a sandbox, by the rules of `swerex_c.files.local`.

The functions read, write and copy. Relative paths are relative to the directory in which the sandbox starts programs. A
refusal by the sandbox's system raises `OSError` with `errno` and `filename`; a refusal by this package raises
`UploadError`; an operation that needs a missing program raises `NotSupportedError`. All functions block, and may be
called from any thread.
"""

from __future__ import annotations

import codecs
import io
import locale
import secrets
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from swerex_c.files.local import too_long
from swerex_c.files.writing import check_path
from swerex_c.sandbox.file_ops import FileScripts, failure, frames, in_place
from swerex_c.sandbox.tree_copy import download, upload, write_by_archive

if TYPE_CHECKING:
    from collections.abc import Callable

    from swerex_c.sandbox.sandbox import RunningScript, Sandbox

__all__ = ["download", "read_text", "upload", "write_text"]


def read_text(
    sandbox: Sandbox,
    path: str,
    encoding: str | None = None,
    errors: str | None = None,
    limit: int | None = None,
    began: Callable[[RunningScript], object] = lambda running: None,
) -> str:
    """Return a file's text; every line ending becomes a newline.

    This is what `Path(path).read_text(encoding, errors)` does.

    Args:
        encoding: None means the encoding of this process's locale.
        errors: handling of bytes that do not decode; None raises UnicodeDecodeError.
        limit: maximum number of bytes to read; None means no limit.
        began: called with the script that reads, before it can read anything.

    Raises:
        OSError: if the file cannot be read.
        ResourceError: if the file has more than `limit` bytes, or has no end.
        SandboxLostError: if the sandbox is gone.
    """
    check_path(path)
    io.TextIOWrapper(io.BytesIO(), encoding, errors)  # raises LookupError before the script starts
    scripts = FileScripts(sandbox)
    with scripts.start("read_file", in_place(path)) as running:
        running.close_input()
        began(running)
        pieces, size = [], 0
        while piece := running.read(1 << 20):
            pieces.append(piece)
            size += len(piece)
            if limit is not None and size > limit:
                raise too_long(path, limit)
        data = b"".join(pieces)
        del pieces
        code = running.wait()
        said = running.read(stderr=True)
    if code or b"read error" in said:
        raise failure(scripts, code, said, path, f"Reading {path!r}")
    with io.TextIOWrapper(io.BytesIO(data), encoding, errors) as file:
        del data
        return file.read()


def write_text(sandbox: Sandbox, path: str, content: str) -> None:
    """Replace the text of a file with `content`.

    The text is written in the locale's encoding and with newlines unchanged. Missing parent directories are created. If
    the sandbox has mv, chmod and stat, readers see either the old text or the new one, and the old text stays if
    anything fails. Otherwise, and if the file cannot be replaced (it has several names, is a mount point, or has
    another owner), it is overwritten in place. An existing file keeps its mode and group; a link stays a link, and its
    target is written.

    Raises:
        OSError: if the file cannot be written.
        UnicodeEncodeError: if the locale's encoding cannot express the text.
        NotSupportedError: if directories are missing and the sandbox has no mkdir.
        SandboxLostError: if the sandbox is gone.
    """
    check_path(path)
    path = str(PurePosixPath(path))
    data = content.encode(codecs.lookup(locale.getpreferredencoding(False)).name)
    scripts = FileScripts(sandbox)
    if not scripts.has("mkdir") and write_by_archive(scripts, path, data):
        return
    raw = scripts.has("cat", "stat")
    words = (in_place(path), str(len(data)) if raw else "", "", "", secrets.token_hex(8))
    code, _, said = scripts.ask("put_file", *words, input=data if raw else b"".join(frames([data])))
    if code:
        raise failure(scripts, code, said, path, f"Writing {path!r}")
