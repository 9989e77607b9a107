"""Write to files: every byte, or an error. The functions block."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import select
import stat
import time
from collections.abc import Iterator, Sequence
from typing import IO

from swerex_c.exceptions import InvalidInputError
from swerex_c.utils.cancellation import check_cancelled

__all__ = [
    "BLOCK", "check_path", "copy_contents", "end_of_links", "is_replaceable", "may_write", "named", "overwritten",
    "silent", "wait_for", "write_all",
]  # fmt: skip

BLOCK = 1 << 20
"""Bytes to read or copy at once."""

_LONGEST_PATH = 4095
"""Maximum number of bytes of a path, set by the system."""

_MOST_LINKS = 40
"""Maximum number of symbolic links to follow in a row, as in Linux."""

STILL_SECONDS = 10.0
"""Seconds to wait for a named pipe or a terminal to give or take data."""

_LOOK_SECONDS = 0.1
"""Seconds between checks whether a waiting call is still wanted."""

_NO_FALLOCATE = {errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.ESPIPE, errno.EIO}
"""Errors of a file system that cannot reserve space."""


def check_path(path: str) -> None:
    """Raise for a path that no file can have. The path would fail later, but less clearly or after much work."""
    path = os.fspath(path)  # the field of a request may have been set to a `Path`
    if len(path) > _LONGEST_PATH:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), f"{path[:200]}...")
    if not path:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    if "\0" in path:
        raise InvalidInputError(f"A path cannot hold a NUL byte: {path!r}")
    try:
        os.fsencode(path)
    except UnicodeEncodeError as error:
        raise InvalidInputError(f"A path cannot hold this character: {error}") from None


def write_all(fd: int, pieces: Sequence[bytes | memoryview]) -> None:
    """Write all bytes of the pieces.

    One write is not enough: a nearly full file system first accepts a part of the bytes, and then refuses.

    Raises:
        OSError: if the bytes cannot be written.
        TimeoutError: if a named pipe or a terminal accepts no data for ten seconds.
    """
    for piece in pieces:
        rest = memoryview(piece)
        while rest:
            try:
                rest = rest[os.write(fd, rest) :]
            except BlockingIOError:
                wait_for(fd, select.POLLOUT)


def wait_for(fd: int, event: int, path: str | None = None) -> None:
    """Wait until a descriptor can be read or written.

    Raises:
        concurrent.futures.CancelledError: if the call is no longer wanted; see `swerex_c.utils.cancellation`.
        TimeoutError: if the descriptor is not ready within ten seconds.
    """
    poll = select.poll()
    poll.register(fd, event)
    deadline = time.monotonic() + STILL_SECONDS
    while not poll.poll(_LOOK_SECONDS * 1000):
        check_cancelled()
        if time.monotonic() > deadline:
            raise silent("sent" if event == select.POLLIN else "accepted", path)


def silent(how: str, path: str | None) -> TimeoutError:
    """Return the error for a named pipe or a terminal that has sent or accepted no data."""
    return TimeoutError(errno.ETIMEDOUT, f"It {how} no data for {STILL_SECONDS:g} seconds", path)


@contextlib.contextmanager
def named(path: str) -> Iterator[None]:
    """Name this path in errors of the block, which know the file only by a descriptor."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename == path:
            raise
        raise type(error)(error.errno, error.strerror, path) from error


def copy_contents(source: IO[bytes] | io.FileIO, fd: int) -> None:
    """Write the rest of one open file to another."""
    while data := source.read(BLOCK):
        write_all(fd, [data])


@contextlib.contextmanager
def overwritten(base: str, size: int, there: int | None = None) -> Iterator[int]:
    """Yield a descriptor for overwriting a file in place with `size` bytes.

    A link that has replaced the file meanwhile is not followed. If the bytes do not fit, the file stays unchanged.
    """
    flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        fd = os.open(base, flags, dir_fd=there)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        raise OSError(error.errno, "No process has it open for reading", base) from None
    try:
        status = os.fstat(fd)
        regular = stat.S_ISREG(status.st_mode)
        if regular and size > status.st_size:
            try:
                os.posix_fallocate(fd, 0, size)
            except OSError as error:
                if os.fstat(fd).st_size != status.st_size:
                    os.ftruncate(fd, status.st_size)
                if error.errno not in _NO_FALLOCATE:
                    raise type(error)(error.errno, error.strerror, base) from None
        yield fd
        if regular and (end := os.lseek(fd, 0, os.SEEK_CUR)) < os.fstat(fd).st_size:
            os.ftruncate(fd, end)
    finally:
        os.close(fd)


def is_replaceable(old: os.stat_result) -> bool:
    """Return whether replacing a file would change only its contents.

    A file that another process is just replacing can be seen with no name left.
    """
    return stat.S_ISLNK(old.st_mode) or (stat.S_ISREG(old.st_mode) and old.st_nlink <= 1 and old.st_uid == os.geteuid())


def may_write(base: str, there: int | None = None) -> bool:
    """Return whether this process may write to a file, which is in an open directory or at any path."""
    return os.access(base, os.W_OK, dir_fd=there, effective_ids=True)


def end_of_links(path: str) -> str:
    """Return the end of a chain of links in the last component of a path, whether or not it exists."""
    for _ in range(_MOST_LINKS):
        if not os.path.islink(path):
            return path
        path = os.path.join(os.path.dirname(path), os.readlink(path))
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
