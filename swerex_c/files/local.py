"""Read, write and copy files on this machine, for runtimes.

The functions block: runtimes call them in a thread. Calls may run at the same time; of two that write the same file,
the later one wins as a whole. A refusal by the system is raised as its `OSError` with `errno` and `filename`, a refusal
by this package as `UploadError`.
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import io
import locale
import logging
import os
import select
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from swerex_c.exceptions import ResourceError, UploadError
from swerex_c.files.staging import Staging, open_below
from swerex_c.files.writing import (
    BLOCK,
    check_path,
    copy_contents,
    end_of_links,
    is_replaceable,
    may_write,
    named,
    overwritten,
    wait_for,
    write_all,
)
from swerex_c.utils.cancellation import check_cancelled

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

__all__ = ["Entry", "copy", "open_regular", "read_text", "sized", "too_long", "walk", "write_text"]

_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
}

_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
"""Flags to open a file without waiting for the other end of a pipe, and without getting a controlling terminal."""

_logger = logging.getLogger("swerex_c.files")


# Text


def read_text(path: str, encoding: str | None = None, errors: str | None = None, *, limit: int | None = None) -> str:
    """Read a file's text as `Path(path).read_text(encoding, errors)` does.

    Every line ending becomes a bare newline. A named pipe is read until its writers have closed it, a device until its
    end.

    Args:
        encoding: None is the locale's encoding.
        errors: how to handle bytes that cannot be decoded; None raises UnicodeDecodeError.
        limit: maximum number of bytes to read; None is no limit.

    Raises:
        ResourceError: if the file has more than `limit` bytes, or has no end.
        TimeoutError: if a named pipe or a terminal gives no data for ten seconds.
    """
    check_path(path)
    data = b"".join(_read(str(Path(path)), limit))
    with io.TextIOWrapper(io.BytesIO(data), encoding, errors) as file:
        del data
        return file.read()


def _read(path: str, limit: int | None) -> Iterator[bytes]:
    fd = os.open(path, _READ)
    try:
        status = os.fstat(fd)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        waits = not stat.S_ISREG(status.st_mode)
        block = min(max(status.st_size + 1, 1 << 16), BLOCK)
        done = 0
        if limit is not None and status.st_size > limit:
            raise too_long(path, limit)
        while True:
            check_cancelled()
            if waits:  # a named pipe reads as ended until its first writer opens it
                wait_for(fd, select.POLLIN, path)
            try:
                with named(path):
                    data = os.read(fd, block)
            except BlockingIOError:  # some files in /proc claim to be regular
                waits = True
                continue
            if not data:
                return
            done += len(data)
            if limit is not None and done > limit:
                raise too_long(path, limit)
            yield data
    finally:
        os.close(fd)


def too_long(path: str, limit: int) -> ResourceError:
    """Return the error for a file with more than `limit` bytes."""
    msg = f"{path!r} is larger than {limit} bytes (read_limit): read a part of it with a command, or download it"
    return ResourceError(msg, errno=errno.EFBIG)


def write_text(path: str, content: str) -> None:
    """Make `content` the whole text of a file.

    The text is written in the locale's encoding and with unchanged newlines. Missing directories above the file are
    created. A reader sees either the old or the new text; on failure the old text stays. An existing file keeps its
    mode, owner and extended attributes, and a link is followed to the file that it leads to. Only files that cannot be
    replaced are overwritten in place: a file with several names, with another owner, with a group that this user cannot
    give to a file or on a mount point, a device, a named pipe.
    """
    check_path(path)
    data = content.encode(codecs.lookup(locale.getpreferredencoding(False)).name)
    path = end_of_links(str(Path(path)))
    old = None
    with contextlib.suppress(FileNotFoundError):
        old = os.lstat(path)
    replace = old is None or (is_replaceable(old) and may_write(path))
    if replace:
        with Staging(path) as staging:
            with staging.file("", None if old is None else stat.S_IMODE(old.st_mode)) as fd:
                write_all(fd, [data])
                replace = old is None or _take_over(path, fd, old)
            if replace:
                staging.commit(follow=False)
    if not replace:
        with named(path), overwritten(path, len(data)) as fd:
            write_all(fd, [data])


def _take_over(path: str, fd: int, old: os.stat_result) -> bool:
    """Copy the group and extended attributes of the old file to the new one.

    Returns False if this user cannot give the group to a file.
    """
    if os.fstat(fd).st_gid != old.st_gid:
        try:
            os.fchown(fd, -1, old.st_gid)
        except PermissionError:
            return False
    with contextlib.suppress(OSError):
        for name in os.listxattr(path):
            os.setxattr(fd, name, os.getxattr(path, name))
    return True


# Copies


def copy(source: str, target: str, *, follow: bool = True) -> None:
    """Copy a file or a tree.

    Files keep their mode and are replaced whole or not at all. Within a tree, symbolic links stay links; existing
    directories are merged into, and their other entries stay. A file copied onto a directory goes into it. The source
    may be a link to a file or a tree. Missing directories above the target are created. Named pipes, sockets and
    devices in a tree are left out and named in the log; set-user-ID and set-group-ID bits are not copied.

    Args:
        follow: whether a target that is a link is followed to its file, or replaced.

    Raises:
        FileNotFoundError: if the source does not exist.
        UploadError: if a file would have to replace a directory or the other way round, if the source is a named pipe,
            a socket or a device, or if source and target are the same or the target lies in the source.
    """
    check_path(source)
    check_path(target)
    name = os.path.basename(os.path.normpath(source))
    _refuse_onto_itself(source, os.path.join(target, name), target)
    with Staging(target, deepest=None) as staging:
        for entry in walk(source):
            mode, mtime_ns = stat.S_IMODE(entry.status.st_mode), entry.status.st_mtime_ns
            if stat.S_ISDIR(entry.status.st_mode):
                staging.directory(entry.name, mode, mtime_ns)
            elif stat.S_ISLNK(entry.status.st_mode):
                staging.link(entry.name, entry.link())
            else:
                with entry.open() as file, staging.file(entry.name, mode, mtime_ns if entry.name else None) as fd:
                    copy_contents(file, fd)
        staging.commit(name, follow=follow)


def _refuse_onto_itself(source: str, inside: str, target: str) -> None:
    """Raise UploadError if the copy would read what it writes. `inside` is where a file goes in a directory."""
    if os.path.isdir(source):
        root, there = os.path.realpath(source), os.path.realpath(target)
        if there == root:
            raise UploadError(f"Cannot copy {source!r} to {target!r}: they are the same directory")
        if os.path.commonpath([there, root]) == root:
            raise UploadError(f"Cannot copy {source!r} to {target!r}: the target lies in the source")
    elif os.path.exists(to := inside if os.path.isdir(target) else target) and os.path.samefile(source, to):
        raise UploadError(f"Cannot copy {source!r} to {to!r}: they are the same file")


class Entry(NamedTuple):
    """A file, directory or symbolic link of a tree, usable until the next one is taken from `walk`."""

    name: str
    """Path below the root; "" is the root itself."""
    path: str
    """Path for messages."""
    status: os.stat_result
    directory: int | None
    """Descriptor of the directory that holds it; None for the root."""

    def open(self) -> BinaryIO:
        """Open a regular file for reading."""
        return open_regular(self.path, self.directory)

    def link(self) -> str:
        """Return where a symbolic link leads."""
        return os.readlink(os.path.basename(self.path), dir_fd=self.directory)


def walk(source: str, *, report: bool = True) -> Iterator[Entry]:
    """Yield the root of a tree, then all that it holds, directories before their entries. A file is only a root.

    Links below the root are never followed, even if they replace a directory meanwhile. Named pipes, sockets and
    devices are left out and, with `report`, named in the log; as a root they raise `UploadError`.
    """
    status = os.stat(source)
    if kind := _KINDS.get(stat.S_IFMT(status.st_mode)):
        raise UploadError(f"Cannot copy {source!r}: it is {kind}")
    yield Entry("", source, status, None)
    if not stat.S_ISDIR(status.st_mode):
        return
    root = os.open(source, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    pending = [""]
    try:
        while pending:
            above = pending.pop()
            fd = _open_for_walk(root, above, os.path.join(source, above))
            try:
                with os.scandir(fd) as found:
                    for entry in found:
                        name, path = os.path.join(above, entry.name), os.path.join(source, above, entry.name)
                        status = entry.stat(follow_symlinks=False)
                        if kind := _KINDS.get(stat.S_IFMT(status.st_mode)):
                            if report:
                                _logger.warning("%r is not copied: it is %s", path, kind)
                            continue
                        yield Entry(name, path, status, fd)
                        if stat.S_ISDIR(status.st_mode):
                            pending.append(name)
            finally:
                os.close(fd)
    finally:
        os.close(root)


def sized(file: BinaryIO, size: int) -> tuple[bytes, int]:
    """Return the beginning of an open file, and the number of its bytes to copy.

    Args:
        size: the size that the system reports. It is wrong for files of /proc (0) and /sys (4096), so that of a file
            that ends early is counted.
    """
    first = file.read(BLOCK)
    if len(first) < BLOCK:
        return first, len(first)
    if not size:
        first += file.read()
    return first, size or len(first)


def _open_for_walk(root: int, name: str, path: str) -> int:
    try:
        with named(path):
            return open_below(root, name)
    except NotADirectoryError:
        raise UploadError(f"Cannot copy {path!r}: it was replaced meanwhile") from None


def open_regular(path: str, directory: int | None = None) -> BinaryIO:
    """Open a regular file to copy it, by its path, or by the last component in an open directory and never a link.

    A special file that has replaced the file meanwhile is refused with `UploadError`, without waiting.
    """
    with named(path):
        if directory is None:
            fd = os.open(path, _READ)
        else:
            fd = os.open(os.path.basename(path), _READ | os.O_NOFOLLOW, dir_fd=directory)
    try:
        kind = stat.S_IFMT(os.fstat(fd).st_mode)
        if kind != stat.S_IFREG:
            raise UploadError(f"Cannot copy {path!r}: it is {_KINDS.get(kind, 'a directory')}")
        return io.BufferedReader(_Source(fd, path))
    except BaseException:
        os.close(fd)
        raise


class _Source(io.FileIO):
    """An open file to copy. Errors name it, and reading ends when the call is cancelled."""

    def __init__(self, fd: int, path: str):
        super().__init__(fd)
        self._path = path

    def readinto(self, buffer: WriteableBuffer) -> int:
        check_cancelled()
        with named(self._path):
            if (size := super().readinto(buffer)) is None:  # some files in /proc claim to be regular
                raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
            return size
