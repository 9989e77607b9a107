"""Tar streams of directory trees of this machine, or from an untrusted peer."""

from __future__ import annotations

import io
import os
import tarfile
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol, Self

from swerex_c.exceptions import ProtocolError, SwerexException, UploadError
from swerex_c.files.local_files import entries_of, open_regular, write_all

if TYPE_CHECKING:
    from swerex_c.files.staging import StagingDirectory

__all__ = ["BLOCK", "LONGEST_HEAD", "Packer", "Readable", "pack", "unpack"]

BLOCK = 1 << 20
"""Bytes to read from a file at once."""

LONGEST_HEAD = 64 << 10
"""Maximum number of bytes of a header that describes one file."""

_MOST_GLOBAL = 1000
"""Maximum number of values that an archive may set for all its members, because they are kept in memory."""

_KINDS = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE)
"""Types of archive members that are files themselves; other types only describe a file, or are refused."""


class Readable(Protocol):
    """A source of an archive.

    `read` returns at most `size` bytes at a time, and b"" only at the end.
    """

    def read(self, size: int, /) -> bytes: ...


# Packing


class _Writer:
    """The output of tarfile: joins its many small pieces into few large ones."""

    def __init__(self, write: Callable[[bytes], object]):
        self._write = write
        self._pieces: list[bytes] = []
        self._held = 0
        self._at = 0

    def tell(self) -> int:
        return self._at

    def write(self, data: bytes) -> int:
        self._pieces.append(data)
        self._held += len(data)
        self._at += len(data)
        if self._held >= BLOCK:
            self.flush()
        return len(data)

    def flush(self) -> None:
        if self._pieces:
            data = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
            self._pieces, self._held = [], 0
            self._write(data)


class Packer:
    """An archive that is written while files are added.

    Exit writes its end, unless something failed.
    """

    def __init__(
        self,
        write: Callable[[bytes], object],
        *,
        format: int = tarfile.PAX_FORMAT,
        change: Callable[[tarfile.TarInfo], None] | None = None,
    ):
        """Open an archive without members.

        Args:
            write: called with the archive, in pieces of at most two megabytes.
            change: called with the description of each member before it is written.
        """
        self._sink = _Writer(write)
        sink: Any = self._sink
        self._tar = tarfile.open(fileobj=sink, mode="w", format=format)
        self._tar.copybufsize = BLOCK  # type: ignore[attr-defined]
        self._change = change

    def __enter__(self) -> Self:
        self._tar.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._tar.__exit__(*error)
        if error[0] is None:
            self._sink.flush()

    def add(self, path: str, name: str) -> None:
        """Add a file, a directory without its entries, or a symbolic link.

        Raises:
            OSError: if the path cannot be read.
            UploadError: if the path is of any other type.
        """
        self._tar.inodes.clear()  # type: ignore[attr-defined]  # send a file with two names twice, not as a hard link
        member = self._tar.gettarinfo(path, arcname=name)
        if member is None:
            raise UploadError(f"Cannot copy {path!r}: it is a socket")
        if not (member.isreg() or member.isdir() or member.issym()):
            raise UploadError(f"Cannot copy {path!r}: it is not a file, a directory or a link")
        self._put(member, path)

    def make(self, name: str, mode: int, data: bytes | None = None) -> None:
        """Add a file with these bytes, or a directory if `data` is None.

        The file or directory does not exist on this machine.
        """
        member = tarfile.TarInfo(name)
        member.mode, member.mtime = mode, int(time.time())
        if data is None:
            member.type = tarfile.DIRTYPE
        else:
            member.size = len(data)
        self._put(member, io.BytesIO(data or b""))

    def _put(self, member: tarfile.TarInfo, source: str | BinaryIO) -> None:
        if self._change is not None:
            self._change(member)
        if not member.isreg():
            self._tar.addfile(member)
        elif isinstance(source, str):
            with open_regular(source) as file:
                self._tar.addfile(member, file)
        else:
            self._tar.addfile(member, source)
        self._tar.members = []  # type: ignore[attr-defined]  # tarfile would keep all of them


def pack(path: str, write: Callable[[bytes], object]) -> None:
    """Write a directory's contents as an archive (POSIX.1-2001 pax).

    The first member, "./", is the directory itself.

    Raises:
        OSError: if something cannot be read.
        UploadError: if the tree contains something that is neither a file nor a directory nor a symbolic link.
    """
    with Packer(write) as packer:
        packer.add(os.path.join(path, ""), "./")  # the trailing slash follows a link
        for entry, relative in entries_of(path):
            packer.add(entry.path, f"./{relative}")


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
        member: Self = super()._proc_member(tar)  # type: ignore[misc]
        return member


def unpack(
    source: Readable, staging: StagingDirectory, *, root: str = ".", hard_links: bool = False, file: bool = False
) -> None:
    """Unpack a directory's archive as the root of a staging directory.

    Nothing is written outside of it. The stream is not read beyond the archive.

    Args:
        root: name of the first member, which is the directory; the names of the others begin with it.
        file: whether the archive contains a file named `root` instead of a directory.
        hard_links: whether to copy a file for each further name that it has; otherwise these are refused.

    Raises:
        OSError: if something cannot be written.
        UploadError: if a member is neither a file nor a directory nor a link, or would lie elsewhere.
        ProtocolError: if the stream is not an archive of a directory.
    """
    try:
        with tarfile.open(fileobj=source, mode="r|", bufsize=BLOCK, tarinfo=_Member) as tar:  # type: ignore[call-overload]
            first = tar.next()
            if first is None or first.name.rstrip("/") != root or not (first.isreg() if file else first.isdir()):
                raise ProtocolError("The tar archive does not begin with its root")
            if file:
                _unpack_file(tar, first, staging, "")
            else:
                staging.directory("", first.mode, _time(first))
            for member in iter(tar.next, None):
                _unpack_member(tar, member, staging, root, hard_links)
                tar.members = []
                if len(tar.pax_headers) > _MOST_GLOBAL:
                    raise ProtocolError("The tar archive has too many global headers")
    except (tarfile.TarError, ValueError, OverflowError, RecursionError) as error:
        if isinstance(error, SwerexException):
            raise
        raise ProtocolError(f"The received data is not a tar archive: {error}") from None


def _unpack_member(
    tar: tarfile.TarFile, member: tarfile.TarInfo, staging: StagingDirectory, root: str, hard_links: bool
) -> None:
    name = _below(root, member.name)
    if not name:
        raise ProtocolError("The tar archive contains its root twice")
    if member.isdir():
        staging.directory(name, member.mode, _time(member))
    elif member.issym():
        staging.link(name, member.linkname)
    elif member.islnk() and hard_links:
        staging.copy(name, _below(root, member.linkname))
    elif member.isreg() and not member.issparse():
        _unpack_file(tar, member, staging, name)
    else:
        raise UploadError(f"{member.name!r:.200} is not a file, a directory or a link")


def _unpack_file(tar: tarfile.TarFile, member: tarfile.TarInfo, staging: StagingDirectory, name: str) -> None:
    source = tar.extractfile(member)
    assert source is not None
    with staging.file(name, member.mode, _time(member)) as file:
        while data := source.read(BLOCK):
            write_all(file.fileno(), [data])


def _below(root: str, name: str) -> str:
    """Return a member's path below the root. If the root is ".", a name that does not begin with it is kept."""
    if root != "." and name != root and not name.startswith(f"{root}/"):
        raise ProtocolError(f"The tar archive has an entry outside of its root: {name!r:.200}")
    return name.removeprefix(root).removeprefix("/") if root != "." else name.removeprefix("./")


def _time(member: tarfile.TarInfo) -> float | None:
    return member.mtime if -1e11 < member.mtime < 1e11 else None
