"""Trees as tar archives in streams: made from what is on this machine, and unpacked from a peer that nobody trusts."""

from __future__ import annotations

import io
import os
import tarfile
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol, Self

from swerex_c.exceptions import ProtocolError, SwerexException, UploadError

if TYPE_CHECKING:
    from swerex_c.runtime._spool import Spool

__all__ = ["BLOCK", "LONGEST_HEAD", "Packer", "Readable", "pack", "unpack", "write_all"]

BLOCK = 1 << 20
"""Bytes that are read from a file at once."""

LONGEST_HEAD = 64 << 10
"""Bytes of what describes one file."""

_MOST_GLOBAL = 1000
"""Values that an archive can set for all its members; they are kept."""

_KINDS = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE)
"""The members of an archive that are files themselves; others only describe one, or are refused."""


class Readable(Protocol):
    """What an archive can be read from: at most `size` bytes at a time, and b"" only at the end."""

    def read(self, size: int, /) -> bytes: ...


# Out


class _Writer:
    """What tarfile writes to: many small pieces, which go on as few large ones."""

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
    """An archive that is written while files are added to it; leaving it writes its end, unless something failed."""

    def __init__(
        self,
        write: Callable[[bytes], object],
        *,
        format: int = tarfile.PAX_FORMAT,
        change: Callable[[tarfile.TarInfo], None] | None = None,
    ):
        """
        Args:
            write: takes the archive, in pieces of two megabytes at most.
            change: is given each member's description before it is written.
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
        """A file, a directory without what it holds, or a symbolic link.

        Raises:
            OSError: if it cannot be read.
            UploadError: if it is anything else.
        """
        self._tar.inodes.clear()  # type: ignore[attr-defined]  # a file with two names is sent twice: two files there
        member = self._tar.gettarinfo(path, arcname=name)
        if member is None:
            raise UploadError(f"Cannot copy {path!r}: it is a socket")
        if not (member.isreg() or member.isdir() or member.issym()):
            raise UploadError(f"Cannot copy {path!r}: it is not a file, a directory or a link")
        self._put(member, path)

    def make(self, name: str, mode: int, data: bytes | None = None) -> None:
        """A file with these bytes, or a directory, that is nowhere here."""
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
            with open(source, "rb") as file:
                self._tar.addfile(member, file)
        else:
            self._tar.addfile(member, source)
        self._tar.members = []  # type: ignore[attr-defined]  # it would keep them all


def pack(path: str, write: Callable[[bytes], object]) -> None:
    """Write what is in a directory as an archive (POSIX.1-2001 pax) whose first member is "./", the directory itself.

    Raises:
        OSError: if something cannot be read.
        UploadError: if it holds something that is neither a file nor a directory nor a symbolic link.
    """
    with Packer(write) as packer:
        pending = [("", os.path.join(path, ""))]  # so that a link is what it leads to
        while pending:
            above, directory = pending.pop()
            packer.add(directory, f"./{above}")
            with os.scandir(directory) as entries:
                for entry in entries:
                    name = f"{above}/{entry.name}" if above else entry.name
                    if entry.is_dir(follow_symlinks=False):
                        pending.append((name, entry.path))
                    else:
                        packer.add(entry.path, f"./{name}")


# In


class _Member(tarfile.TarInfo):
    """A header that is refused where tarfile would take it for the end, or collect its value whatever its size."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        try:
            member = super().frombuf(buf, encoding, errors)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
            raise
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(str(error)) from None
        if member.type not in _KINDS and member.size > LONGEST_HEAD:
            raise tarfile.ReadError(f"a header of {member.size} bytes")
        return member


def unpack(source: Readable, spool: Spool, *, root: str = ".", hard_links: bool = False, file: bool = False) -> None:
    """Make a directory's archive the root of a spool, and nothing outside of it, whatever the archive holds.

    What follows the archive in the stream is not read.

    Args:
        root: the name of the first member, which is the directory; those of the others begin with it.
        file: the archive holds a file of the name `root`, and not a directory.
        hard_links: make a copy of a file for each further name that it has; they are refused otherwise.

    Raises:
        OSError: if something cannot be written.
        UploadError: if a member is neither a file nor a directory nor a link, or would lie elsewhere.
        ProtocolError: if this is no archive of a directory.
    """
    try:
        with tarfile.open(fileobj=source, mode="r|", bufsize=BLOCK, tarinfo=_Member) as tar:  # type: ignore[call-overload]
            first = tar.next()
            if first is None or first.name.rstrip("/") != root or not (first.isreg() if file else first.isdir()):
                raise ProtocolError("A tree does not begin with its root")
            if file:
                _unpack_file(tar, first, spool, "")
            else:
                spool.directory("", first.mode, _time(first))
            for member in iter(tar.next, None):
                _unpack_member(tar, member, spool, root, hard_links)
                tar.members = []
                if len(tar.pax_headers) > _MOST_GLOBAL:
                    raise ProtocolError("A tree says too much about all that is in it")
    except (tarfile.TarError, ValueError, OverflowError, RecursionError) as error:
        if isinstance(error, SwerexException):
            raise
        raise ProtocolError(f"What came is not a tree of files: {error}") from None


def _unpack_member(tar: tarfile.TarFile, member: tarfile.TarInfo, spool: Spool, root: str, hard_links: bool) -> None:
    name = _below(root, member.name)
    if not name:
        raise ProtocolError("A tree has its root in it")
    if member.isdir():
        spool.directory(name, member.mode, _time(member))
    elif member.issym():
        spool.link(name, member.linkname)
    elif member.islnk() and hard_links:
        spool.copy(name, _below(root, member.linkname))
    elif member.isreg() and not member.issparse():
        _unpack_file(tar, member, spool, name)
    else:
        raise UploadError(f"{member.name!r:.200} is not a file, a directory or a link")


def _unpack_file(tar: tarfile.TarFile, member: tarfile.TarInfo, spool: Spool, name: str) -> None:
    source = tar.extractfile(member)
    assert source is not None
    with spool.file(name, member.mode, _time(member)) as file:
        while data := source.read(BLOCK):
            write_all(file.fileno(), [data])


def _below(root: str, name: str) -> str:
    """A member's path below the root; one that does not begin with the root is left as it is where that is "."."""
    if root != "." and name != root and not name.startswith(f"{root}/"):
        raise ProtocolError(f"A tree has something in it that is not below its root: {name!r:.200}")
    return name.removeprefix(root).removeprefix("/") if root != "." else name.removeprefix("./")


def _time(member: tarfile.TarInfo) -> float | None:
    return member.mtime if -1e11 < member.mtime < 1e11 else None


def write_all(fd: int, pieces: Sequence[bytes | memoryview]) -> None:
    """Write all of these bytes."""
    for start in range(0, len(pieces), 64):
        some = pieces[start : start + 64]
        written = os.writev(fd, some)
        for piece in some:
            if written >= len(piece):
                written -= len(piece)
                continue
            rest = memoryview(piece)[written:]
            written = 0
            while rest:
                rest = rest[os.write(fd, rest) :]
