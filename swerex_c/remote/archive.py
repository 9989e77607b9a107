"""A directory tree as a zip file and back.

Modes, symbolic links, empty directories, times of modification and names of any bytes are kept. Any program that
unpacks zip files can read the archives, the original's server among them; what it cannot express is left out there.
Extended attributes, owners and hard links do not cross.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
import stat
import struct
import threading
import time
import zipfile
import zlib
from collections.abc import AsyncGenerator, Iterator
from pathlib import PurePosixPath
from typing import IO, NamedTuple, Protocol, cast

from swerex_c.exceptions import InvalidInputError, UploadError
from swerex_c.runtime.files import move, spool

__all__ = ["pack", "stream", "unpack"]

_TIME = 0x5455
"""Info-ZIP's "extended timestamp" (APPNOTE.TXT 4.5.2 and the file extrafld.txt of Info-ZIP)."""

_NAME = 0x5842
"""Ours: the name's bytes, where they are no UTF-8."""

_UNIX = 3
"""The "version made by" of archives whose external attributes hold a mode."""

_MOST_LINK = 4096
"""Bytes that a link's target can have, as in Linux."""

_COPY = 256 << 10
_PIPE = 1 << 20


class Writable(Protocol):
    """What an archive can be written into."""

    def write(self, data: bytes, /) -> int: ...
    def flush(self) -> None: ...


# Out


def pack(source: str, file: Writable, *, follow_links: bool = False, compress: bool = True) -> None:
    """Write the tree below a directory into a file, which need not be seekable.

    A file that grows meanwhile is packed up to where it then ends.

    Args:
        follow_links: pack what symbolic links lead to, for a reader that does not know them; links that lead nowhere
            or to a directory above are left out.
        compress: whether to spend processor time (about 10 ns a byte) on size.

    Raises:
        UploadError: if the tree holds a named pipe, a socket or a device.
    """
    method = zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED
    entries = list(_walk(os.fsencode(source), follow_links))
    out = _Out(file)
    with zipfile.ZipFile(cast(IO[bytes], out), "w", method, compresslevel=1, strict_timestamps=False) as archive:
        try:
            for path, relative, status in entries:
                _add(archive, path, _entry(relative, status), status)
        except BaseException:
            out.failed = True
            raise


def _add(archive: zipfile.ZipFile, path: bytes, info: zipfile.ZipInfo, status: os.stat_result) -> None:
    if stat.S_ISLNK(status.st_mode):
        archive.writestr(info, os.readlink(path), zipfile.ZIP_STORED)
    elif stat.S_ISDIR(status.st_mode):
        archive.writestr(info, b"", zipfile.ZIP_STORED)
    else:
        info.compress_type = archive.compression
        info.file_size = status.st_size
        with open(path, "rb") as data, archive.open(info, "w", force_zip64=status.st_size > 1 << 30) as out:
            shutil.copyfileobj(data, out, _COPY)


class _Out:
    """A file that zipfile cannot go back in, and whose end it cannot write after a failure: what is left of the archive
    must not look like a whole one."""

    def __init__(self, file: Writable):
        self._file = file
        self.failed = False

    def write(self, data: bytes) -> int:
        return len(data) if self.failed else self._file.write(data)

    def flush(self) -> None:
        self._file.flush()


def _walk(root: bytes, follow_links: bool) -> Iterator[tuple[bytes, bytes, os.stat_result]]:
    """A tree's root and everything in it, with its path below the root; directories before what they hold."""
    begin = os.stat(root)
    yield root, b".", begin
    parents: tuple[tuple[int, int], ...] = ((begin.st_dev, begin.st_ino),)
    pending = [(root, b"", parents)]
    while pending:
        directory, above, parents = pending.pop()
        for name in sorted(os.listdir(directory)):
            path, relative = os.path.join(directory, name), os.path.join(above, name)
            status = os.lstat(path)
            if follow_links and stat.S_ISLNK(status.st_mode):
                try:
                    status = os.stat(path)
                except OSError:
                    continue
            if stat.S_ISDIR(status.st_mode):
                identity = (status.st_dev, status.st_ino)
                if identity in parents:
                    continue
                pending.append((path, relative, (*parents, identity)))
            elif not stat.S_ISREG(status.st_mode) and not stat.S_ISLNK(status.st_mode):
                raise UploadError(f"Cannot copy {os.fsdecode(path)!r}: it is neither a file nor a directory nor a link")
            yield path, relative, status


def _entry(relative: bytes, status: os.stat_result) -> zipfile.ZipInfo:
    try:
        name, extra = relative.decode(), b""
    except UnicodeDecodeError:
        name = relative.decode("utf-8", "backslashreplace")
        extra = struct.pack("<HH", _NAME, len(relative)) + relative
    directory = stat.S_ISDIR(status.st_mode)
    local = time.localtime(status.st_mtime)[:6]
    date = max((1980, 1, 1, 0, 0, 0), min(local, (2107, 12, 31, 23, 59, 59)))
    info = zipfile.ZipInfo(name + "/" * directory, date)
    info.create_system = _UNIX
    info.external_attr = (status.st_mode & 0xFFFF) << 16 | 0x10 * directory
    seconds = int(status.st_mtime)
    if -(1 << 31) <= seconds < 1 << 31:
        extra += struct.pack("<HHBi", _TIME, 5, 1, seconds)
    info.extra = extra
    return info


# In


class _Member(NamedTuple):
    path: str  # below the root, without a slash at either end; "" is the root
    kind: int  # S_IFREG, S_IFDIR or S_IFLNK
    mode: int | None
    mtime: int | None
    info: zipfile.ZipInfo


def unpack(archive: str | IO[bytes], target: str) -> None:
    """Unpack a zip file as a directory, or into one, by the rules of `files.upload`.

    The archive is unpacked beside the target first, so that one that is damaged or refused changes nothing.

    Raises:
        InvalidInputError: if it is no zip file, or a damaged one, or holds a name that leads out of the target.
        UploadError: if it does not fit to what is at the target.
    """
    try:
        with zipfile.ZipFile(archive) as opened, spool(target) as place:
            members = _members(opened)
            root = os.path.join(place, "root")
            os.mkdir(root, 0o700)
            for member in members:
                _extract(opened, member, os.path.join(root, member.path))
            made = set(move(root, target))
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, struct.error) as error:
        raise InvalidInputError(f"The archive cannot be unpacked: {error}") from None
    except RuntimeError as error:  # what zipfile raises for an encrypted member
        if isinstance(error, InvalidInputError) or type(error) is not RuntimeError:
            raise
        raise InvalidInputError(f"The archive cannot be unpacked: {error}") from None
    # Last and from the bottom up, because a directory may forbid what has to be written into it.
    for member in sorted(members, key=lambda m: m.path, reverse=True):
        if member.kind == stat.S_IFDIR and member.path in made:
            _stamp(os.path.join(target, member.path), member)


def _members(archive: zipfile.ZipFile) -> list[_Member]:
    """What is in the archive, checked; a directory that only shows in the names of what it holds is not among it."""
    found: dict[str, _Member] = {}
    for info in archive.infolist():
        member = _member(info)
        old = found.get(member.path)
        if old is not None and not old.kind == member.kind == stat.S_IFDIR:
            raise InvalidInputError(f"The archive holds {member.path!r} twice")
        found[member.path] = member
    for path in found:
        for above in PurePosixPath(path).parents:
            holder = found.get(str(above))
            if holder is not None and holder.kind != stat.S_IFDIR:
                raise InvalidInputError(f"The archive holds {path!r} below {str(above)!r}, which is no directory there")
    return list(found.values())


def _member(info: zipfile.ZipInfo) -> _Member:
    extra = dict(_extra(info.extra))
    name = os.fsdecode(extra[_NAME]) if _NAME in extra else info.filename
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts or "\0" in name:
        raise InvalidInputError(f"The archive holds a name that leads out of it: {name!r}")
    mode = info.external_attr >> 16 if info.create_system == _UNIX else 0
    kind = stat.S_IFMT(mode) or (stat.S_IFDIR if name.endswith("/") else stat.S_IFREG)
    if kind not in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK):
        raise UploadError(f"Cannot unpack {name!r}: it is neither a file nor a directory nor a link")
    if not parts and kind != stat.S_IFDIR:
        raise InvalidInputError(f"The archive holds a name that is none: {name!r}")
    stamp = extra.get(_TIME, b"")
    mtime = struct.unpack_from("<i", stamp, 1)[0] if len(stamp) >= 5 and stamp[0] & 1 else None
    return _Member("/".join(parts), kind, stat.S_IMODE(mode) if mode else None, mtime, info)


def _extra(data: bytes) -> Iterator[tuple[int, bytes]]:
    while len(data) >= 4:
        kind, size = struct.unpack_from("<HH", data)
        yield kind, data[4 : 4 + size]
        data = data[4 + size :]


def _extract(archive: zipfile.ZipFile, member: _Member, path: str) -> None:
    if member.kind == stat.S_IFDIR:
        os.makedirs(path, 0o700, exist_ok=True)
        return
    os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
    with archive.open(member.info) as data:
        if member.kind == stat.S_IFLNK:
            link = data.read(_MOST_LINK + 1)
            if not 0 < len(link) <= _MOST_LINK or b"\0" in link:
                raise InvalidInputError(f"The archive's link {member.path!r} leads to no path")
            os.symlink(link, os.fsencode(path))
            return
        with open(path, "xb") as file:
            shutil.copyfileobj(data, file, _COPY)
    _stamp(path, member)


def _stamp(path: str, member: _Member) -> None:
    if member.mtime is not None:
        os.utime(path, (time.time(), member.mtime))
    if member.mode is not None:
        os.chmod(path, member.mode)


# Through a pipe


async def stream(source: str, *, follow_links: bool = False, compress: bool = True) -> AsyncGenerator[bytes, None]:
    """What `pack` writes, in pieces, packed by a thread that is never far ahead of the reader.

    Raises what `pack` raises: what can be known beforehand before the first piece.
    """
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=_PIPE // 2)
    read_end, write_end = os.pipe()
    packed: asyncio.Future[None] = loop.create_future()

    def run() -> None:
        error: BaseException | None = None
        try:
            with open(write_end, "wb", _COPY) as file:
                pack(source, file, follow_links=follow_links, compress=compress)
        except BaseException as caught:
            error = caught
        with contextlib.suppress(RuntimeError):  # nobody waits, and the loop is closed
            loop.call_soon_threadsafe(done, error)

    def done(error: BaseException | None) -> None:
        if packed.done():
            return
        if error is None:
            packed.set_result(None)
        else:
            packed.set_exception(error)

    with contextlib.suppress(OSError):
        fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, _PIPE)
    threading.Thread(target=run, name="swerex-pack", daemon=True).start()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), open(read_end, "rb", 0))
    try:
        while data := await reader.read(_COPY):
            yield data
        await packed
    finally:
        transport.close()  # which the thread notices by EPIPE
        packed.cancel()
