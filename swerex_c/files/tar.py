"""Tar streams of directory trees of this machine, or from an untrusted peer."""

from __future__ import annotations

import logging
import os
import re
import stat
import tarfile
import time
from collections.abc import Callable
from typing import Any, ClassVar, Literal, Protocol, Self

from swerex_c.exceptions import ProtocolError, SwerexException, UploadError
from swerex_c.files.local import Entry, sized, walk
from swerex_c.files.staging import RIGHTS, Staging
from swerex_c.files.writing import BLOCK, copy_contents

__all__ = ["LONGEST_HEAD", "Packer", "pack", "unpack"]

LONGEST_HEAD = 64 << 10
"""Maximum number of bytes of a header that describes one file."""

_MOST_GLOBAL = 1000
"""Maximum number of values that an archive may set for all its members, because they are kept in memory."""

_KINDS = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE)
"""Types of archive members that are files themselves; other types only describe a file, or are refused."""

_PAX_RECORD = re.compile(rb"(\d{1,6}) [^=\n]{1,1000}=")
"""Beginning of a record of a pax header: its length in bytes, and its keyword."""

_MANY_DIGITS = re.compile(rb"\d{300}")
"""More digits than the name of a file can have."""

_SPECIAL = (tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE)

_logger = logging.getLogger("swerex_c.files")


class Readable(Protocol):
    """A source of an archive. `read` returns at most `size` bytes at a time, and b"" only at the end."""

    def read(self, size: int, /) -> bytes: ...


# Packing


class Packer:
    """An archive that is written while files are added. Exit writes its end, unless something failed."""

    format: ClassVar[Literal[1, 2]] = tarfile.PAX_FORMAT
    end: ClassVar[bytes] = bytes(2 * tarfile.BLOCKSIZE)

    def __init__(self, write: Callable[[bytes], object]):
        """Begin an archive without members, which is passed to `write` in pieces of at most two megabytes."""
        self._write = write
        self._pieces: list[bytes] = []
        self._held = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._put(self.end)
            self._flush()

    def add(self, entry: Entry, name: str) -> None:
        """Add a file, a directory without its entries, or a symbolic link."""
        mode = entry.status.st_mode
        member = tarfile.TarInfo(name)
        member.mode, member.mtime = mode & RIGHTS, entry.status.st_mtime
        if stat.S_ISDIR(mode):
            member.type = tarfile.DIRTYPE
        elif stat.S_ISLNK(mode):
            member.type, member.linkname = tarfile.SYMTYPE, entry.link()
        else:
            with entry.open() as file:
                data, member.size = sized(file, entry.status.st_size)
                self._begin(member)
                left = member.size
                while left:
                    if not data:
                        raise UploadError(f"Cannot copy {entry.path!r}: it became shorter meanwhile")
                    self._put(data[:left])
                    left -= min(left, len(data))
                    data = file.read(min(left, BLOCK))
            self._put(bytes(-member.size % tarfile.BLOCKSIZE))
            return
        self._begin(member)

    def make(self, name: str, mode: int, data: bytes) -> None:
        """Add a file with these bytes, which does not exist on this machine."""
        member = tarfile.TarInfo(name)
        member.mode, member.mtime, member.size = mode, int(time.time()), len(data)
        self._begin(member)
        self._put(data + bytes(-member.size % tarfile.BLOCKSIZE))

    def _begin(self, member: tarfile.TarInfo) -> None:
        self._put(member.tobuf(self.format, "utf-8", "surrogateescape"))

    def _put(self, data: bytes) -> None:
        """Write bytes, small pieces together."""
        self._pieces.append(data)
        self._held += len(data)
        if self._held >= BLOCK:
            self._flush()

    def _flush(self) -> None:
        data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces, self._held = [], 0
        self._write(data)


def pack(path: str, write: Callable[[bytes], object]) -> None:
    """Write a directory's contents as an archive (POSIX.1-2001 pax), whose first member is the directory, "./"."""
    with Packer(write) as packer:
        for entry in walk(path):
            packer.add(entry, f"./{entry.name}")


# Unpacking


class _Member(tarfile.TarInfo):
    """A header that raises where tarfile would take an error for the end, or read a value of any size."""

    @classmethod
    def fromtarfile(cls, tar: tarfile.TarFile) -> Self:
        try:
            return super().fromtarfile(tar)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
            raise
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(str(error)) from None

    def _proc_member(self, tar: tarfile.TarFile) -> Self:
        """Read the data that belongs to the header: tarfile's hook for subclasses."""
        if self.type not in _KINDS and self.size > LONGEST_HEAD:
            raise tarfile.ReadError(f"a header of {self.size} bytes")
        if self.type == tarfile.GNUTYPE_SPARSE:  # the list of its parts may have no end
            raise tarfile.ReadError("a sparse file")
        member: Self = super()._proc_member(tar)  # type: ignore[misc]
        return member

    def _proc_gnusparse_10(self, *_: object) -> None:
        """Refuse a sparse file, as `_proc_member` does: tarfile's hook."""
        raise tarfile.ReadError("a sparse file")

    def _proc_pax(self, tar: Any) -> Self:
        """Read a pax header: tarfile's hook.

        Check it first, because tarfile does not: records that overlap would take a gigabyte of memory, and a row of
        digits seconds, for which all threads wait (CVE-2024-6232).
        """
        head: bytes = tar.fileobj.read(self._block(self.size))  # type: ignore[attr-defined]
        at = 0
        while at < self.size:
            record = _PAX_RECORD.match(head, at)
            end = at + int(record[1]) if record else 0
            if record is None or not record.end() < end <= self.size or head[end - 1] != ord("\n"):
                raise tarfile.ReadError("a header with a damaged record")
            at = end
        if _MANY_DIGITS.search(head):
            raise tarfile.ReadError("a header with more digits than a name can have")
        tar.fileobj = _Unread(tar, head)
        member: Self = super()._proc_pax(tar)  # type: ignore[misc]
        return member


class _Unread:
    """The stream of a `tarfile.TarFile`, with bytes that were read from it and that its next read returns again."""

    def __init__(self, tar: Any, data: bytes):
        self._tar, self._stream, self._data = tar, tar.fileobj, data

    def read(self, _: int) -> bytes:
        self._tar.fileobj = self._stream
        return self._data


def unpack(source: Readable, staging: Staging, *, hard_links: bool = False) -> None:
    """Unpack a directory's archive, whose first member is "./", as the root of a staging directory.

    The stream is not read beyond the archive. Named pipes and devices are left out and named in the log.

    Args:
        hard_links: whether to copy a file for each further name that it has; otherwise these are refused.

    Raises:
        UploadError: if a member is of another kind, or would lie elsewhere.
        ProtocolError: if the stream is not an archive of a directory.
    """
    try:
        with tarfile.open(fileobj=source, mode="r|", bufsize=BLOCK, tarinfo=_Member) as tar:  # type: ignore[call-overload]
            first = tar.next()
            if first is None or first.name.rstrip("/") != "." or not first.isdir():
                raise ProtocolError("The tar archive does not begin with its root")
            staging.directory("", first.mode, _time(first))
            for member in iter(tar.next, None):
                _unpack_member(tar, member, staging, hard_links)
                tar.members = []
                if len(tar.pax_headers) > _MOST_GLOBAL:
                    raise ProtocolError("The tar archive has too many global headers")
    except (tarfile.TarError, ValueError, OverflowError, RecursionError) as error:
        if isinstance(error, SwerexException):
            raise
        raise ProtocolError(f"The received data is not a tar archive: {error}") from None


def _unpack_member(tar: tarfile.TarFile, member: tarfile.TarInfo, staging: Staging, hard_links: bool) -> None:
    name = member.name.removeprefix("./")
    if not name:
        raise ProtocolError("The tar archive contains its root twice")
    if member.isdir():
        staging.directory(name, member.mode, _time(member))
    elif member.issym():
        staging.link(name, member.linkname)
    elif member.islnk() and hard_links:
        staging.copy(name, member.linkname.removeprefix("./"))
    elif member.isreg() and not member.issparse():
        source = tar.extractfile(member)
        assert source is not None
        with staging.file(name, member.mode, _time(member)) as fd:
            copy_contents(source, fd)
    elif member.type in _SPECIAL:
        where = os.path.join(staging.target, name)
        _logger.warning("%.200r is not copied: it is a named pipe or a device", where)
    else:
        raise UploadError(f"{member.name!r:.200} is not a file, a directory or a link")


def _time(member: tarfile.TarInfo) -> int | None:
    """Return the time of the last change in nanoseconds; None if no file can have it."""
    return int(member.mtime * 1e9) if -1e9 < member.mtime < 9e9 else None
