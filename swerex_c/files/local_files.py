"""Read, write and copy files on this machine, for runtimes.

The functions block and know no session or event loop: runtimes call them in a thread. Calls may run at the same time;
of two that write the same file, the later one wins as a whole. Relative paths are relative to the process. A refusal by
the system is raised as its `OSError` with `errno` and `filename`, a refusal by this module as `UploadError`.
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import fcntl
import io
import itertools
import locale
import os
import re
import secrets
import select
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from swerex_c.exceptions import InvalidInputError, ResourceError, UploadError

__all__ = [
    "check_path", "download", "entries_of", "move", "open_regular", "read_text", "refuse_deep", "refuse_special",
    "staging_directory", "too_long", "upload", "write_all", "write_text",
]  # fmt: skip

_MOST_LINKS = 40
"""Maximum number of symbolic links to follow in a row, as in Linux."""

_BLOCK = 1 << 20
"""Characters to encode at once, and bytes to read or copy at once."""

_STILL_SECONDS = 10.0
"""Seconds to wait for a named pipe or a terminal to give or take data."""

_LOOK_SECONDS = 0.1
"""Seconds between checks whether a waiting call is still wanted."""

RIGHTS = 0o1777
"""Mode bits to copy from another source. Set-user-ID and set-group-ID are left out, because they would grant the rights
of the user of this process."""

_DEEPEST = 256
"""Maximum depth of an entry in a tree, in directories. Walking and removing deeper trees takes disproportionate time,
descriptors and stack, and the author of a tree could choose any depth."""

_LONGEST_PATH = 4095
"""Maximum number of bytes of a path, set by the system."""

_TEMPORARY = re.compile(r"\.swerex-locked-[0-9a-f]{16}\.tmp")
"""Names of files that are written before replacing their target. Scripts in sandboxes use other, unlocked names."""

_SWEEP_SECONDS = 10.0
"""Minimum number of seconds between searches of a directory for such files of killed processes."""

_LINK_SECONDS = 60.0
"""Seconds after which a temporary link counts as abandoned: it cannot be locked, and normally exists for an instant."""

_NOT_REPLACEABLE = {errno.EACCES, errno.EPERM, errno.EBUSY, errno.EXDEV, errno.EROFS}
"""Errors of a file that may be writable although it cannot be replaced: its directory accepts no new entry, or the file
is a mount point."""

_NO_FALLOCATE = {errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}
"""Errors of a file system that cannot reserve space."""

_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
}


def read_text(
    path: str,
    encoding: str | None = None,
    errors: str | None = None,
    *,
    limit: int | None = None,
    gone: threading.Event | None = None,
) -> str:
    """Read a file's text as `Path(path).read_text(encoding, errors)` does.

    Every line ending becomes a bare newline. A named pipe is read until its writers have closed it, a device until its
    end.

    Args:
        encoding: None is the locale's encoding.
        errors: how to handle bytes that cannot be decoded; None raises UnicodeDecodeError.
        limit: maximum number of bytes to read; None is no limit.
        gone: set by the caller when it no longer wants the text.

    Raises:
        ResourceError: if the file has more than `limit` bytes, or has no end.
        TimeoutError: if a named pipe or a terminal gives no data for ten seconds.
    """
    check_path(path)
    data = b"".join(_read(path, limit, gone))
    with io.TextIOWrapper(io.BytesIO(data), encoding, errors) as file:
        del data
        return file.read()


def _read(path: str, limit: int | None, gone: threading.Event | None) -> Iterator[bytes]:
    fd = _open(path, os.O_RDONLY)
    try:
        status = os.fstat(fd)
        waits = not stat.S_ISREG(status.st_mode)
        block = min(max(status.st_size + 1, 1 << 16), _BLOCK)
        done = 0
        if limit is not None and status.st_size > limit:
            raise too_long(path, limit)
        while gone is None or not gone.is_set():
            # A named pipe reads as ended until its first writer opens it, so wait.
            if waits and not _wait_for(fd, select.POLLIN, path, gone):
                return
            try:
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


def _open(path: str, flags: int) -> int:
    """Open a file without waiting for the other end of a pipe, and without getting a controlling terminal."""
    fd = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    if stat.S_ISDIR(os.fstat(fd).st_mode):
        os.close(fd)
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    return fd


def _wait_for(fd: int, event: int, path: str | None = None, gone: threading.Event | None = None) -> bool:
    """Wait until a descriptor can be read or written. Returns False if `gone` was set meanwhile.

    Raises:
        TimeoutError: if the descriptor is not ready within ten seconds.
    """
    poll = select.poll()
    poll.register(fd, event)
    deadline = time.monotonic() + _STILL_SECONDS
    while not poll.poll(_LOOK_SECONDS * 1000):
        if gone is not None and gone.is_set():
            return False
        if time.monotonic() > deadline:
            how = "It sent no data" if event == select.POLLIN else "It accepted no data"
            raise TimeoutError(errno.ETIMEDOUT, f"{how} for {_STILL_SECONDS:g} seconds", path)
    return True


def open_regular(path: str) -> BinaryIO:
    """Open a regular file to copy it.

    A special file that has replaced it meanwhile is refused without waiting.

    Raises:
        OSError: if the file cannot be read.
        UploadError: if the path is a named pipe, a socket or a device.
    """
    fd = _open(path, os.O_RDONLY)
    try:
        refuse_special(path, os.fstat(fd))
        return open(fd, "rb")
    except BaseException:
        os.close(fd)
        raise


def write_text(path: str, content: str) -> None:
    """Make `content` the whole text of a file.

    The text is written in the locale's encoding and with unchanged newlines. Missing directories above the file are
    created. A reader sees either the old or the new text; on failure the old text stays. An existing file keeps its
    mode, owner and extended attributes, and a link is followed to the file that it leads to. Only files that cannot be
    replaced are overwritten in place: a file with several names, with another owner or on a mount point, a device, a
    named pipe.
    """
    check_path(path)
    path = str(Path(path))
    encoding = codecs.lookup(locale.getpreferredencoding(False)).name
    # Text that always can be encoded is encoded while it is written, so that a long text is not in memory twice.
    late = content.isascii() and encoding in ("utf-8", "ascii")
    data = b"" if late else content.encode(encoding)

    def write(fd: int) -> None:
        for start in range(0, len(content), _BLOCK) if late else ():
            write_all(fd, [content[start : start + _BLOCK].encode()])
        write_all(fd, [data])

    if parent := os.path.dirname(path):
        os.makedirs(parent, exist_ok=True)
    path = _end_of_links(path)
    old = _lstat(path)
    if old is None or _replaceable(path, old):
        try:
            with _replacement(path, 0o666 if old is None else 0o600) as (temporary, fd):
                write(fd)
                if old is not None:
                    _take_over(path, temporary, old)
            return
        except OSError as error:
            if old is None or error.errno not in _NOT_REPLACEABLE:
                raise
    with _in_place(path, len(content) if late else len(data)) as fd:
        write(fd)


def write_all(fd: int, pieces: Sequence[bytes | memoryview]) -> None:
    """Write all bytes of the pieces.

    One write is not enough: a nearly full file system first accepts a part of the bytes, and then refuses.

    Raises:
        OSError: if the bytes cannot be written.
        TimeoutError: if a named pipe or a terminal accepts no data for ten seconds.
    """
    for start in range(0, len(pieces), 64):
        some = pieces[start : start + 64]
        written = _waiting(fd, lambda some=some: os.writev(fd, some))  # type: ignore[misc]
        for piece in some:
            if written >= len(piece):
                written -= len(piece)
                continue
            rest = memoryview(piece)[written:]
            written = 0
            while rest:
                rest = rest[_waiting(fd, lambda rest=rest: os.write(fd, rest)) :]  # type: ignore[misc]


def _waiting(fd: int, write: Callable[[], int]) -> int:
    while True:
        try:
            return write()
        except BlockingIOError:
            _wait_for(fd, select.POLLOUT)


def upload(source: str, target: str) -> None:
    """Copy a file or a tree.

    Files keep their mode and are replaced whole or not at all. Within a tree, symbolic links stay links; existing
    directories are merged into, and their other entries stay. A file copied onto a directory goes into it. The source
    may be a link to a file or a tree. Missing directories above the target are created.

    Raises:
        FileNotFoundError: if the source does not exist.
        UploadError: if a file would have to replace a directory or the other way round, if the source contains a named
            pipe, a socket or a device, or if source and target are the same or the target lies in the source. Such a
            tree is refused before any part of it is copied.
    """
    _copy(source, target, shutil.copymode, shutil.copystat, follow=True)


def download(source: str, target: str) -> None:
    """Copy a file or a tree as if it came from another machine.

    The rules are those of `upload`, with two exceptions: a target that is a link is replaced and not followed, and
    set-user-ID and set-group-ID bits are not copied.

    Raises:
        FileNotFoundError, UploadError: as for `upload`.
    """
    _copy(source, target, _plain_attributes, _plain_attributes, follow=False)


def _plain_attributes(source: str, target: str) -> None:
    status = os.stat(source)
    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))
    os.chmod(target, status.st_mode & RIGHTS)


_Attributes = Callable[[str, str], object]
"""Function that copies the attributes of a file or directory, apart from its contents, from source to target."""


def _copy(source: str, target: str, of_file: _Attributes, of_tree: _Attributes, *, follow: bool) -> None:
    check_path(source)
    check_path(target)
    if stat.S_ISDIR(os.stat(source).st_mode):
        _copy_tree(source, target, of_tree)
    else:
        _put_file(source, target, of_file, follow=follow)


def move(
    source: str,
    target: str,
    name: str | None = None,
    *,
    finish: Callable[[str, str], object] = lambda relative, path: None,
    follow: bool = True,
) -> None:
    """Move a private file or tree to the path where `upload` would copy it.

    The rules are those of `upload`. No data is copied if `source` is on the target's file system. The caller removes
    the remains of a tree, after success and failure.

    Args:
        name: name of the file if it goes into a directory; None is its own name.
        finish: called for each directory that was created, parents after their children, with its path below the
            tree's root ("" is the root itself) and a path that leads to it. It has this process's default mode before.
        follow: whether a target that is a link is followed to its file, or replaced. Use False for files from a
            sandbox: the link may come from an earlier tree of the sandbox.
    """
    check_path(target)
    if not stat.S_ISDIR(os.lstat(source).st_mode):
        _put_file(source, target, shutil.copystat, name=name, rename=True, follow=follow)
    else:
        _merge_tree(source, target, shutil.copystat, rename=True, finish=finish)


@contextlib.contextmanager
def staging_directory(target: str) -> Iterator[str]:
    """Yield an empty directory in which to build a file or tree for `move`.

    The directory is private to this user. It is created beside the target, else in the target, else in the directory
    for temporary files. Missing directories above the target are created. The directory is removed at the end with
    everything left in it.
    """
    check_path(target)
    parent = os.path.dirname(os.path.abspath(target))
    os.makedirs(parent, exist_ok=True)
    path, fd = _make_staging(parent, target)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(fd)


def _make_staging(parent: str, target: str) -> tuple[str, int]:
    try:
        return _make_temporary(parent, None)
    except OSError as error:
        reason = error
    if os.path.isdir(target):
        with contextlib.suppress(OSError):
            return _make_temporary(target, None)
    try:
        return _make_temporary(tempfile.gettempdir(), None)
    except OSError:  # the directory for temporary files is not writable either
        raise type(reason)(reason.errno, reason.strerror, target) from None


def _put_file(
    source: str,
    target: str,
    attributes: _Attributes,
    *,
    name: str | None = None,
    rename: bool = False,
    follow: bool = True,
) -> None:
    refuse_special(source, os.stat(source))
    if os.path.isdir(target):
        follow = False  # the caller has not named this link
        target = os.path.join(target, name or os.path.basename(os.path.normpath(source)))
        if os.path.isdir(target) and not os.path.islink(target):
            raise UploadError(f"Cannot copy the file {source!r} to {target!r}: a directory is there")
    elif target.endswith("/"):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), target)
    if os.path.exists(target) and os.path.samefile(source, target):
        raise UploadError(f"Cannot copy {source!r} to {target!r}: they are the same file")
    if parent := os.path.dirname(target):
        os.makedirs(parent, exist_ok=True)
    _place_file(source, _end_of_links(target) if follow else target, attributes, rename)


def _copy_tree(source: str, target: str, attributes: _Attributes) -> None:
    inside = os.path.realpath(target)
    root = os.path.realpath(source)
    if inside == root:
        raise UploadError(f"Cannot copy {source!r} to {target!r}: they are the same directory")
    if os.path.commonpath([inside, root]) == root:
        raise UploadError(f"Cannot copy {source!r} to {target!r}: the target lies in the source")

    def finish(relative: str, path: str) -> None:
        attributes(os.path.join(source, relative), path)

    _merge_tree(source, target, attributes, finish=finish)


def _merge_tree(
    source: str,
    target: str,
    attributes: _Attributes,
    *,
    rename: bool = False,
    finish: Callable[[str, str], object],
) -> None:
    """Merge a tree into another one. Links below the target are never followed, even if they appear meanwhile."""
    entries = list(entries_of(source))
    _refuse_tree(entries, source, target)
    made = []
    if parent := os.path.dirname(os.path.normpath(target)):
        os.makedirs(parent, exist_ok=True)
    if _make_directory(target):
        made.append("")
    root = os.open(target, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for above, group in itertools.groupby(entries, lambda entry: os.path.dirname(entry[1])):
            with _directory(root, target, above) as directory:
                for entry, relative in group:
                    to = f"{directory}/{entry.name}"
                    if entry.is_symlink():
                        _copy_link(entry.path, to)
                    elif not entry.is_dir():
                        _place_file(entry.path, to, attributes, rename)
                    elif _make_directory(to):
                        made.append(relative)
        # Last and from the bottom up, because a directory's mode may forbid writing its entries.
        for relative in reversed(made):
            with _directory(root, target, relative) as directory:
                finish(relative, directory)
    finally:
        os.close(root)


@contextlib.contextmanager
def _directory(root: int, target: str, relative: str) -> Iterator[str]:
    """Yield a path to a directory below an open one, without links, valid even if it is moved or replaced meanwhile.

    Raises:
        OSError: from the block, with the path below `target` instead of the returned path.
        UploadError: if a component of the path is a link or a file.
    """
    where = os.path.join(target, relative)
    fd = os.dup(root)
    try:
        for part in relative.split("/") if relative else ():
            try:
                deeper = os.open(part, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
            except NotADirectoryError:
                raise UploadError(f"Cannot copy to {where!r}: {part!r} is a file or a link, not a directory") from None
            except OSError as error:
                raise type(error)(error.errno, error.strerror, where) from error
            os.close(fd)
            fd = deeper
        path = f"/proc/self/fd/{fd}"
        try:
            yield path
        except OSError as error:
            if isinstance(error.filename, str) and error.filename.startswith(path):
                raise type(error)(error.errno, error.strerror, where + error.filename.removeprefix(path)) from error
            raise
    finally:
        os.close(fd)


def _make_directory(path: str) -> bool:
    """Create a directory unless it exists. Returns whether this call created it, and not another upload."""
    try:
        os.mkdir(path)
    except FileExistsError:
        if not os.path.isdir(path):
            raise
        return False
    return True


def entries_of(source: str) -> Iterator[tuple[os.DirEntry[str], str]]:
    """Yield every entry of a tree with its path below the tree's root.

    Directories come before their entries.
    """
    pending = [(source, "")]
    while pending:
        directory, above = pending.pop()
        with os.scandir(directory) as found:
            for entry in found:
                relative = os.path.join(above, entry.name)
                yield entry, relative
                if entry.is_dir(follow_symlinks=False):
                    pending.append((entry.path, relative))


def _refuse_tree(entries: list[tuple[os.DirEntry[str], str]], source: str, target: str) -> None:
    """Raise UploadError if an entry cannot be copied, before any is copied."""
    if os.path.lexists(target) and not os.path.isdir(target):
        raise UploadError(f"Cannot copy the directory {source!r} to {target!r}: a file is there")
    for entry, relative in entries:
        to = os.path.join(target, relative)
        if entry.is_symlink() or not entry.is_dir():
            if not entry.is_symlink():
                refuse_special(entry.path, entry.stat(follow_symlinks=False))
            if os.path.isdir(to) and not os.path.islink(to):
                raise UploadError(f"Cannot copy the file {entry.path!r} to {to!r}: a directory is there")
        elif os.path.islink(to):
            raise UploadError(f"Cannot copy the directory {entry.path!r} to {to!r}: a link is there")
        elif os.path.lexists(to) and not os.path.isdir(to):
            raise UploadError(f"Cannot copy the directory {entry.path!r} to {to!r}: a file is there")


def refuse_special(path: str, status: os.stat_result) -> None:
    """Raise UploadError for a named pipe, a socket or a device."""
    kind = _KINDS.get(stat.S_IFMT(status.st_mode))
    if kind:
        raise UploadError(f"Cannot copy {path!r}: it is {kind}")


def refuse_deep(name: str, parts: list[str]) -> None:
    """Raise UploadError for an entry that lies too deep in a tree from another source."""
    if len(parts) > _DEEPEST:
        raise UploadError(f"Cannot copy {name!r:.200}: it is nested in {_DEEPEST} directories or more")


def _place_file(source: str, target: str, attributes: _Attributes, rename: bool) -> None:
    """Copy a regular file to the target, and replace any file or link there.

    Args:
        rename: whether to move the file itself instead of a copy.
    """
    old = _lstat(target)
    if old is None or stat.S_ISLNK(old.st_mode) or _replaceable(target, old):
        try:
            if rename and _rename(source, target):
                return
            with open_regular(source) as file, _replacement(target, 0o600) as (temporary, fd):
                _copy_contents(file, fd)
                attributes(source, temporary)
            return
        except OSError as error:
            if old is None or error.errno not in _NOT_REPLACEABLE:
                raise
    with open_regular(source) as file, _in_place(target, os.fstat(file.fileno()).st_size) as fd:
        _copy_contents(file, fd)
        attributes(source, f"/proc/self/fd/{fd}")


def _rename(source: str, target: str) -> bool:
    """Rename a file that need not be copied. Returns False if the target is on another file system."""
    try:
        os.replace(source, target)
        return True
    except OSError as error:
        if error.errno == errno.EXDEV:
            return False
        raise type(error)(error.errno, error.strerror, target) from error


def _copy_contents(file: BinaryIO, fd: int) -> None:
    block = memoryview(bytearray(_BLOCK))
    while size := file.readinto(block):  # type: ignore[attr-defined]
        write_all(fd, [block[:size]])


def _copy_link(source: str, target: str) -> None:
    temporary = _temporary_name(os.path.dirname(target))
    with _taking_place(temporary, target):
        os.symlink(os.readlink(source), temporary)


@contextlib.contextmanager
def _in_place(path: str, size: int) -> Iterator[int]:
    """Yield a descriptor for overwriting a file in place with `size` bytes.

    A link that has replaced the file meanwhile is not followed. If the bytes do not fit, the file stays unchanged.
    """
    try:
        fd = _open(path, os.O_WRONLY | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        raise OSError(error.errno, "No process has it open for reading", path) from None
    try:
        status = os.fstat(fd)
        regular = stat.S_ISREG(status.st_mode)
        if regular and size > status.st_size:
            try:
                os.posix_fallocate(fd, 0, size)
            except OSError as error:
                os.ftruncate(fd, status.st_size)
                if error.errno not in _NO_FALLOCATE:
                    raise type(error)(error.errno, error.strerror, path) from None
        yield fd
        if regular:
            os.ftruncate(fd, os.lseek(fd, 0, os.SEEK_CUR))
    finally:
        os.close(fd)


@contextlib.contextmanager
def _replacement(path: str, mode: int) -> Iterator[tuple[str, int]]:
    """Yield the path and descriptor of a new file beside `path`, which replaces it at the end of the block.

    The new file is removed if the block fails. If the process is killed, a later write in the directory removes it.
    """
    try:
        temporary, fd = _make_temporary(os.path.dirname(path), mode)
    except OSError as error:
        # The caller does not know the temporary file, so name the requested one.
        raise type(error)(error.errno, error.strerror, path) from error
    try:
        with _taking_place(temporary, path):
            yield temporary, fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def _taking_place(temporary: str, path: str) -> Iterator[None]:
    """Rename `temporary` to `path` at the end of the block, or remove it on failure."""
    try:
        yield
        os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        if isinstance(error, OSError) and error.errno and error.filename in (None, temporary):
            raise type(error)(error.errno, error.strerror, path) from error
        raise


def _temporary_name(directory: str) -> str:
    return os.path.join(directory, f".swerex-locked-{secrets.token_hex(8)}.tmp")


def _make_temporary(directory: str, mode: int | None) -> tuple[str, int]:
    """Create an empty file, or a private directory if `mode` is None. Returns its path and a descriptor that locks it.

    The lock ends with the process: an unlocked file was left by a killed process, and is removed.
    """
    _sweep(directory or ".")
    while True:
        path = _temporary_name(directory)
        flags = os.O_NOFOLLOW | os.O_CLOEXEC
        if mode is None:
            os.mkdir(path, 0o700)
            flags |= os.O_RDONLY | os.O_DIRECTORY
        else:
            flags |= os.O_WRONLY | os.O_CREAT | os.O_EXCL
        try:
            fd = os.open(path, flags, mode or 0)
        except FileNotFoundError:
            if mode is not None:
                raise
            continue  # another process removed the directory before it was opened
        except OSError:
            with contextlib.suppress(OSError):
                os.rmdir(path)
            raise
        if _lock(fd, path):
            return path, fd
        os.close(fd)  # another process removed the file before it was locked


def _lock(fd: int, path: str) -> bool:
    """Lock a new file. Returns False if another process has removed it or is about to."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(fd), os.lstat(path))
    except (BlockingIOError, FileNotFoundError):
        return False
    except OSError:
        return True  # this file system has no locks, so no process removes files there


_swept: dict[tuple[int, int], float] = {}
"""Monotonic times of the last search of directories, by device and inode."""


def _sweep(directory: str) -> None:
    """Remove the temporary files of killed processes from a directory."""
    with contextlib.suppress(OSError):
        status = os.stat(directory)
        identity, now = (status.st_dev, status.st_ino), time.monotonic()
        if now - _swept.get(identity, -_SWEEP_SECONDS) < _SWEEP_SECONDS:
            return
        if len(_swept) >= 1000:
            _swept.clear()
        _swept[identity] = now
        for name in os.listdir(directory):
            if name.startswith(".swerex-locked-") and _TEMPORARY.fullmatch(name):
                with contextlib.suppress(OSError):
                    _remove_left(os.path.join(directory, name))


def _remove_left(path: str) -> None:
    status = os.lstat(path)
    if status.st_uid != os.geteuid():
        return
    if stat.S_ISLNK(status.st_mode):
        if time.time() - status.st_mtime > _LINK_SECONDS:
            os.unlink(path)
        return
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if stat.S_ISDIR(status.st_mode):
            shutil.rmtree(path, ignore_errors=True)
        else:
            os.unlink(path)
    finally:
        os.close(fd)


def _replaceable(path: str, old: os.stat_result) -> bool:
    """Check whether replacing a file would change only its contents.

    A file that another process is just replacing can be seen with no name left.
    """
    return (
        stat.S_ISREG(old.st_mode)
        and old.st_nlink <= 1
        and old.st_uid == os.geteuid()
        and os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids)
    )


def _take_over(path: str, temporary: str, old: os.stat_result) -> None:
    """Copy the group, extended attributes and mode of the old file to the new one."""
    if os.stat(temporary).st_gid != old.st_gid:
        os.chown(temporary, -1, old.st_gid)
    with contextlib.suppress(OSError, AttributeError):
        for name in os.listxattr(path):
            os.setxattr(temporary, name, os.getxattr(path, name))
    os.chmod(temporary, stat.S_IMODE(old.st_mode))


def _end_of_links(path: str) -> str:
    """Return the end of a chain of links in the last component of a path, whether or not it exists."""
    for _ in range(_MOST_LINKS):
        if not os.path.islink(path):
            return path
        path = os.path.join(os.path.dirname(path), os.readlink(path))
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)


def _lstat(path: str) -> os.stat_result | None:
    try:
        return os.lstat(path)
    except FileNotFoundError:
        return None


def check_path(path: str) -> None:
    """Raise for a path that no file can have.

    The path would fail later, but less clearly or after much work.
    """
    if len(path) > _LONGEST_PATH:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), f"{path[:200]}...")
    if not path:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    if "\0" in path:
        raise InvalidInputError(f"A path cannot hold a NUL byte: {path!r}")
