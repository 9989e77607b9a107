"""Zip archives, in which SWE-ReX's HTTP API moves trees."""

from __future__ import annotations

import errno
import io
import os
import shutil
import stat
import zipfile
from collections.abc import Callable
from typing import IO, Any

from swerex_c.exceptions import InvalidInputError, SwerexException, UploadError
from swerex_c.files.local import Entry, open_regular, walk
from swerex_c.files.staging import RIGHTS, Staging
from swerex_c.files.writing import BLOCK, copy_contents

__all__ = ["pack", "unpack"]

_UNIX = 3
"""The "version made by" of archives whose external attributes contain a mode."""

_LONGEST_LINK = 4095
"""Maximum number of bytes of a link's destination, as in Linux."""


class _Output(io.RawIOBase):
    """An output file in which zipfile cannot seek."""

    def __init__(self, write: Callable[[bytes], object]):
        self._write = write

    def write(self, data: Any) -> int:
        self._write(bytes(data))
        return len(data)


def pack(path: str, write: Callable[[bytes], object]) -> None:
    """Write a directory's contents as an archive, in the way of SWE-ReX's client.

    Links to files become files, links to directories become empty directories, and other links are left out.
    """
    archive = zipfile.ZipFile(_Output(write), "w")
    try:
        for entry in walk(path):
            if entry.name:
                _add(archive, entry)
        archive.close()
    finally:
        archive.fp = None  # otherwise its finalizer would complete an archive that lacks files


def _add(archive: zipfile.ZipFile, entry: Entry) -> None:
    is_link = stat.S_ISLNK(entry.status.st_mode)
    if is_link and not (os.path.isfile(entry.path) or os.path.isdir(entry.path)):
        return
    name = os.fsencode(entry.name).decode("utf-8", "backslashreplace")
    info = zipfile.ZipInfo.from_file(entry.path, name, strict_timestamps=False)
    if info.is_dir():
        archive.writestr(info, b"", zipfile.ZIP_STORED)
        return
    info.compress_type = zipfile.ZIP_DEFLATED
    with open_regular(entry.path) if is_link else entry.open() as data, archive.open(info, "w") as out:
        shutil.copyfileobj(data, out, BLOCK)


def unpack(archive: IO[bytes], staging: Staging) -> None:
    """Unpack an archive as the root of a staging directory, with its modes and symbolic links.

    Raises:
        InvalidInputError: if the file is no zip archive, is damaged, or contains a name that leads out of the target.
        UploadError: if an entry is neither a file nor a directory nor a link.
    """
    try:
        with zipfile.ZipFile(archive) as opened:
            staging.directory("")
            # Directories first: an archive may name them after their entries, or not at all.
            for info in sorted(opened.infolist(), key=lambda info: not info.is_dir()):
                _unpack_member(opened, info, staging)
    except (SwerexException, MemoryError):
        raise
    except Exception as error:
        # zipfile raises various errors for damaged bytes; an impossible position in the file is an OSError.
        if isinstance(error, OSError) and error.errno != errno.EINVAL:
            raise
        raise InvalidInputError(f"Cannot unpack the archive: {error or type(error).__name__}") from error


def _unpack_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, staging: Staging) -> None:
    parts = [part for part in info.filename.split("/") if part not in ("", ".")]
    if info.filename.startswith("/") or ".." in parts:
        raise InvalidInputError(f"The archive has an entry with a path outside of it: {info.filename!r:.200}")
    name = "/".join(parts)
    mode = info.external_attr >> 16 if info.create_system == _UNIX else 0
    kind = stat.S_IFMT(mode) or (stat.S_IFDIR if info.is_dir() else stat.S_IFREG)
    rights = mode & RIGHTS if mode else None
    if kind not in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK):
        raise UploadError(f"Cannot unpack {name!r:.200}: it is neither a file nor a directory nor a link")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        # zipfile does not limit the memory for a block of other methods: some hundred bytes can become a gigabyte.
        raise InvalidInputError(f"The entry {name!r:.200} is neither stored nor deflated: create it with deflate")
    for count in range(1, len(parts)):
        if not staging.has_directory(above := "/".join(parts[:count])):
            staging.directory(above)
    if kind == stat.S_IFDIR:
        staging.directory(name, rights)
        return
    with archive.open(info) as data:
        if kind == stat.S_IFLNK:
            link = data.read(_LONGEST_LINK + 1)
            if not 0 < len(link) <= _LONGEST_LINK or b"\0" in link:
                raise InvalidInputError(f"The link {name!r:.200} in the archive has an invalid destination")
            staging.link(name, os.fsdecode(link))
            return
        with staging.file(name, rights) as fd:
            copy_contents(data, fd)
