"""Reading, writing and copying files of a place, by the rules of `swerex_c.runtime.files`.

Relative paths are relative to the directory in which the place starts programs. What the place's system refuses comes
as an `OSError` with `errno` and `filename`; what we refuse, as `UploadError`; what cannot be done there because a
program is missing, as `NotSupportedError`. All block, and may be called from any thread.
"""

from __future__ import annotations

import codecs
import io
import locale
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from swerex_c.exec import file_scripts
from swerex_c.exec.file_talk import Talk, failure, frames, in_place, random
from swerex_c.exec.trees import download, upload, write_by_archive
from swerex_c.runtime.files import check_path

if TYPE_CHECKING:
    from swerex_c.exec.place import Place

__all__ = ["download", "read_text", "upload", "write_text"]


def read_text(place: Place, path: str, encoding: str | None = None, errors: str | None = None) -> str:
    """A file's text, as `Path(path).read_text(encoding, errors)` gives it: every line ending becomes a bare newline.

    Args:
        encoding: None is the locale's of this process.
        errors: what to do with bytes that do not decode; None is to raise UnicodeDecodeError.

    Raises:
        OSError: if the file cannot be read.
        PlaceLostError: if the place is gone.
    """
    check_path(path)
    io.TextIOWrapper(io.BytesIO(), encoding, errors)  # raises LookupError before anything is done
    talk = Talk(place)
    with talk.start(file_scripts.READ, in_place(path)) as running:
        running.close_input()
        data = b"".join(iter(lambda: running.stdout.read(1 << 20), b""))
        code = running.wait()
        said = running.stderr.read()
    if code or b"read error" in said:
        raise failure(talk, code, said, path, f"Reading {path!r}")
    with io.TextIOWrapper(io.BytesIO(data), encoding, errors) as file:
        del data
        return file.read()


def write_text(place: Place, path: str, content: str) -> None:
    """Make `content` the whole text of a file, in the locale's encoding and with newlines as they are.

    Directories above it that are missing are made. Where the place has mv, chmod and stat, a reader sees the old text
    or the new one and nothing between, and if anything fails, the old one stays; otherwise, and where the file cannot
    be replaced (it has several names, or it is mounted, or somebody else's), it is overwritten in place. An existing
    file keeps its mode and group; where it is a link it stays one, and the file that it leads to is written.

    Raises:
        OSError: if the file cannot be written.
        UnicodeEncodeError: if the locale's encoding cannot express the text.
        NotSupportedError: if directories are missing and the place has no mkdir.
        PlaceLostError: if the place is gone.
    """
    check_path(path)
    path = str(PurePosixPath(path))
    data = content.encode(codecs.lookup(locale.getpreferredencoding(False)).name)
    talk = Talk(place)
    if not talk.has("mkdir") and write_by_archive(talk, path, data):
        return
    raw = talk.has("cat", "stat")
    words = (in_place(path), str(len(data)) if raw else "", "", "", random())
    code, _, said = talk.ask(file_scripts.PUT, *words, input=data if raw else b"".join(frames([data])))
    if code:
        raise failure(talk, code, said, path, f"Writing {path!r}")
