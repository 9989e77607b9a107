"""Pack a directory tree as a zip file, and unpack it.

Modes, symbolic links, empty directories, modification times and names of any bytes are kept. Any program that unpacks
zip files can read the archives, including SWE-ReX's server, without the attributes that it does not support. Extended
attributes, owners and hard links are not transferred.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import shutil
import stat
import struct
import time
import zipfile
from collections.abc import AsyncGenerator, Iterator
from pathlib import PurePosixPath
from typing import IO, NamedTuple, Protocol, cast

from swerex_c.exceptions import InvalidInputError, ResourceError, SwerexException, UploadError
from swerex_c.files.local_files import RIGHTS, move, open_regular, refuse_deep, staging_directory
from swerex_c.utils.threads import start_thread

__all__ = ["pack", "stream", "unpack"]

_TIME = 0x5455
"""Extra field: Info-ZIP's "extended timestamp" (APPNOTE.TXT 4.5.2 and Info-ZIP's file extrafld.txt)."""

_NAME = 0x5842
"""Extra field of this package: the name's bytes, if they are not UTF-8."""

_UNIX = 3
"""The "version made by" of archives whose external attributes contain a mode."""

_MOST_LINK = 4096
"""Maximum number of bytes of a link's target, as in Linux."""

_COPY = 256 << 10
_PIPE = 1 << 20


class Writable(Protocol):
    """A file that an archive can be written to."""

    def write(self, data: bytes, /) -> int: ...
    def flush(self) -> None: ...


# Packing


def pack(source: str, file: Writable, *, follow_links: bool = False, compress: bool = True) -> None:
    """Write the tree below a directory into a file, which need not be seekable.

    If a file grows meanwhile, it is packed up to its end at the time of reading.

    Args:
        follow_links: pack the targets of symbolic links, for a reader that does not support links; links to nothing or
            to a parent directory are left out.
        compress: whether to spend processor time (about 10 ns a byte) to reduce the size.

    Raises:
        UploadError: if the tree contains a named pipe, a socket or a device.
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
        large = status.st_size > 1 << 30
        with open_regular(os.fsdecode(path)) as data, archive.open(info, "w", force_zip64=large) as out:
            shutil.copyfileobj(data, out, _COPY)


class _Out:
    """An output file in which zipfile cannot seek, and which drops the archive's end after a failure: an incomplete
    archive must not look like a complete one."""

    def __init__(self, file: Writable):
        self._file = file
        self.failed = False

    def write(self, data: bytes) -> int:
        return len(data) if self.failed else self._file.write(data)

    def flush(self) -> None:
        self._file.flush()


def _walk(root: bytes, follow_links: bool) -> Iterator[tuple[bytes, bytes, os.stat_result]]:
    """Yield a tree's root and all entries, with their paths below the root; directories before their entries."""
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


# Unpacking


class _Member(NamedTuple):
    path: str  # below the root, without a slash at either end; "" is the root
    kind: int  # S_IFREG, S_IFDIR or S_IFLNK
    mode: int | None
    mtime: int | None
    info: zipfile.ZipInfo


def unpack(archive: str | IO[bytes], target: str) -> None:
    """Unpack a zip file as a directory, or into one.

    The rules are those of `local_files.upload`. The archive is first unpacked beside the target, so that a damaged or
    refused archive changes nothing.

    Raises:
        InvalidInputError: if the file is no zip file, is damaged, or contains a name that leads out of the target.
        UploadError: if the archive does not fit the existing target.
    """
    try:
        with zipfile.ZipFile(archive) as opened, staging_directory(target) as staging:
            members = _members(opened)
            root = os.path.join(staging, "root")
            os.mkdir(root, 0o700)
            for member in members:
                _extract(opened, member, os.path.join(root, member.path))
            stamps = {member.path: member for member in members if member.kind == stat.S_IFDIR}

            def finish(relative: str, path: str) -> None:
                if relative in stamps:
                    _stamp(path, stamps[relative])

            move(root, target, finish=finish)
    except (SwerexException, MemoryError):
        raise
    except Exception as error:
        # zipfile raises various errors for damaged bytes; an impossible position in the file is an OSError.
        if isinstance(error, OSError) and error.errno != errno.EINVAL:
            raise
        raise InvalidInputError(f"Cannot unpack the archive: {error or type(error).__name__}") from error


def _members(archive: zipfile.ZipFile) -> list[_Member]:
    """Return the checked members, without directories that appear only in the names of their entries."""
    found: dict[str, _Member] = {}
    for info in archive.infolist():
        member = _member(info)
        old = found.get(member.path)
        if old is not None and not old.kind == member.kind == stat.S_IFDIR:
            raise InvalidInputError(f"The archive contains {member.path!r} twice")
        found[member.path] = member
    for path in found:
        for above in PurePosixPath(path).parents:
            holder = found.get(str(above))
            if holder is not None and holder.kind != stat.S_IFDIR:
                raise InvalidInputError(f"The archive contains {path!r} below {str(above)!r}, which is not a directory")
    return list(found.values())


def _member(info: zipfile.ZipInfo) -> _Member:
    extra = dict(_extra(info.extra))
    name = os.fsdecode(extra[_NAME]) if _NAME in extra else info.filename
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts or "\0" in name:
        raise InvalidInputError(f"The archive has an entry with a path outside of it: {name!r}")
    refuse_deep(name, parts)
    mode = info.external_attr >> 16 if info.create_system == _UNIX else 0
    kind = stat.S_IFMT(mode) or (stat.S_IFDIR if name.endswith("/") else stat.S_IFREG)
    if kind not in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK):
        raise UploadError(f"Cannot unpack {name!r}: it is neither a file nor a directory nor a link")
    if not parts and kind != stat.S_IFDIR:
        raise InvalidInputError(f"The archive has an entry with an empty path: {name!r}")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        # zipfile does not limit the memory for a block of other methods: some hundred bytes can become a gigabyte.
        raise InvalidInputError(f"The entry {name!r} is neither stored nor deflated: create the archive with deflate")
    stamp = extra.get(_TIME, b"")
    mtime = struct.unpack_from("<i", stamp, 1)[0] if len(stamp) >= 5 and stamp[0] & 1 else None
    return _Member("/".join(parts), kind, mode & RIGHTS if mode else None, mtime, info)


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
                raise InvalidInputError(f"The link {member.path!r} in the archive has an invalid target")
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


# Streaming


async def stream(source: str, *, follow_links: bool = False, compress: bool = True) -> AsyncGenerator[bytes, None]:
    """Yield the output of `pack` in pieces.

    A thread packs them, only a little ahead of the reader. Raises the errors of `pack`; those that can be known
    beforehand come before the first piece.
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
        with contextlib.suppress(RuntimeError):  # the loop is closed, and no reader waits
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
    try:
        start_thread(run, "swerex-pack")
    except ResourceError:
        os.close(read_end)
        os.close(write_end)
        raise
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), open(read_end, "rb", 0))
    try:
        while data := await reader.read(_COPY):
            yield data
        await packed
    finally:
        transport.close()  # the thread gets EPIPE
        packed.cancel()
