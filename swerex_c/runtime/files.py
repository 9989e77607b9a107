"""Reading, writing and copying files for the runtimes that have them on this machine.

Nothing here knows a session or an event loop: runtimes call it in a thread. Calls may run at the same time; of two that
write the same file the later one wins, whole. Relative paths are relative to the process. What the system refuses comes
as its `OSError` with `errno` and `filename`; what we refuse, as `UploadError`.
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import locale
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from swerex_c.exceptions import InvalidInputError, UploadError

__all__ = ["check_path", "entries_of", "move", "read_text", "refuse_special", "spool", "upload", "write_text"]

_MOST_LINKS = 40
"""How many symbolic links in a row are followed, as in Linux."""

_BLOCK = 1 << 20
"""Characters that are encoded at once."""

_NOT_REPLACEABLE = {errno.EACCES, errno.EPERM, errno.EBUSY, errno.EXDEV, errno.EROFS}
"""What the system answers when a file may be written but not replaced: nothing can be added to its directory, or
something is mounted on it."""

_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
}


def read_text(path: str, encoding: str | None = None, errors: str | None = None) -> str:
    """A file's text, as `Path(path).read_text(encoding, errors)` gives it: every line ending becomes a bare newline.

    Args:
        encoding: None is the locale's.
        errors: what to do with bytes that do not decode; None is to raise UnicodeDecodeError.
    """
    check_path(path)
    with open(path, encoding=encoding, errors=errors) as file:
        return file.read()


def write_text(path: str, content: str) -> None:
    """Make `content` the whole text of a file, in the locale's encoding and with newlines as they are.

    Directories above it that are missing are made. A reader sees the old text or the new one and nothing between; if
    anything fails, the old one stays. An existing file keeps its mode, owner and extended attributes, and where it is a
    link it stays one: the file that it leads to is written. Only what cannot be replaced is overwritten in place: a
    file with several names, one that somebody else owns or that is mounted, a device, a named pipe.
    """
    check_path(path)
    path = str(Path(path))
    encoding = codecs.lookup(locale.getpreferredencoding(False)).name
    # What cannot fail is encoded while it is written: a long text then takes no second place in memory.
    late = content.isascii() and encoding in ("utf-8", "ascii")
    data = b"" if late else content.encode(encoding)

    def write(to: str) -> None:
        with open(to, "wb", buffering=0) as file:
            for start in range(0, len(content), _BLOCK) if late else ():
                _write_all(file, content[start : start + _BLOCK].encode())
            _write_all(file, data)

    if parent := os.path.dirname(path):
        os.makedirs(parent, exist_ok=True)
    path = _end_of_links(path)
    old = _lstat(path)
    if old is not None and not _replaceable(path, old):
        return write(path)
    try:
        with _replacement(path) as temporary:
            if old is not None:
                _create_private(temporary)
            write(temporary)
            if old is not None:
                _take_over(path, temporary, old)
    except OSError as error:
        if old is None or error.errno not in _NOT_REPLACEABLE:
            raise
        write(path)


def _write_all(file: BinaryIO, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]


def upload(source: str, target: str) -> None:
    """Copy a file or a tree.

    Files keep their mode and are replaced whole or not at all. Within a tree, symbolic links stay links; directories
    that exist are merged into, and what they hold besides stays. A file copied onto a directory goes into it. The
    source may be a link to a file or a tree. Directories above the target are made where they are missing.

    Raises:
        FileNotFoundError: if there is no source.
        UploadError: if a file would have to take a directory's place or the other way round, if the source holds a
            named pipe, a socket or a device, or if source and target are the same or the target lies in the source.
            Such a tree is refused before anything of it is copied.
    """
    check_path(source)
    check_path(target)
    if stat.S_ISDIR(os.stat(source).st_mode):
        _upload_tree(source, target)
    else:
        _upload_file(source, target)


def move(source: str, target: str, name: str | None = None) -> list[str]:
    """Put a file or a tree that nobody else knows of where `upload` would put a copy of it, by the same rules.

    Nothing is written twice where `source` is on the target's file system. What is left of a tree when it is moved, or
    when it cannot be, is the caller's to remove.

    Args:
        name: what a file is called when it goes into a directory; None is its own name.

    Returns:
        The directories of a tree that were made, as paths below its root ("" is the root itself), those that hold
        others first. They have this process's default mode; the source's modes are not looked at.
    """
    check_path(target)
    if not stat.S_ISDIR(os.lstat(source).st_mode):
        _upload_file(source, target, name=name, copy=_rename)
        return []
    return _merge_tree(source, target, copy=_rename)


@contextlib.contextmanager
def spool(target: str, *, suffix: str = ".tmp") -> Iterator[str]:
    """An empty directory, for nobody but this user, to build in what `move` then moves to the target.

    It lies beside the target, or else in it, or else where temporary files are. Directories above the target are made.
    It is removed at the end with all that is left in it.
    """
    check_path(target)
    parent = os.path.dirname(os.path.abspath(target))
    os.makedirs(parent, exist_ok=True)
    path = _make_spool([parent, target, tempfile.gettempdir()], suffix)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _make_spool(places: list[str], suffix: str) -> str:
    for place in places[:-1]:
        if os.path.isdir(place):
            with contextlib.suppress(OSError):
                return tempfile.mkdtemp(suffix, ".swerex-", place)
    return tempfile.mkdtemp(suffix, ".swerex-", places[-1])


def _upload_file(
    source: str, target: str, *, name: str | None = None, copy: Callable[[str, str], object] = shutil.copy
) -> None:
    refuse_special(source, os.stat(source))
    if os.path.isdir(target):
        target = os.path.join(target, name or os.path.basename(os.path.normpath(source)))
        if os.path.isdir(target):
            raise UploadError(f"Cannot copy the file {source!r} to {target!r}: a directory is there")
    elif target.endswith("/"):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), target)
    if os.path.exists(target) and os.path.samefile(source, target):
        raise UploadError(f"Cannot copy {source!r} to {target!r}: they are the same file")
    if parent := os.path.dirname(target):
        os.makedirs(parent, exist_ok=True)
    _copy_file(source, _end_of_links(target), copy)


def _upload_tree(source: str, target: str) -> None:
    inside = os.path.realpath(target)
    root = os.path.realpath(source)
    if inside == root:
        raise UploadError(f"Cannot copy {source!r} to {target!r}: they are the same directory")
    if os.path.commonpath([inside, root]) == root:
        raise UploadError(f"Cannot copy {source!r} to {target!r}: the target lies in the source")
    # Last and from the bottom up, because a directory may forbid what has to be written into it.
    for relative in reversed(_merge_tree(source, target, copy=shutil.copy2)):
        shutil.copystat(os.path.join(source, relative), os.path.join(target, relative))


def _merge_tree(source: str, target: str, *, copy: Callable[[str, str], object]) -> list[str]:
    """Bring what is in a tree into another one; the directories that were made for it, below the tree's root."""
    entries = list(entries_of(source))
    _refuse_tree(entries, source, target)
    made = []
    if parent := os.path.dirname(os.path.normpath(target)):
        os.makedirs(parent, exist_ok=True)
    if _make_directory(target):
        made.append("")
    for entry, relative in entries:
        to = os.path.join(target, relative)
        if entry.is_symlink():
            _copy_link(entry.path, to)
        elif not entry.is_dir():
            _copy_file(entry.path, to, copy)
        elif _make_directory(to):
            made.append(relative)
    return made


def _make_directory(path: str) -> bool:
    """Make a directory unless there is one; whether it was made here and not by another upload."""
    try:
        os.mkdir(path)
    except FileExistsError:
        if not os.path.isdir(path):
            raise
        return False
    return True


def entries_of(source: str) -> Iterator[tuple[os.DirEntry[str], str]]:
    """Everything in a tree with its path below the tree's root, directories before what they hold."""
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
    """Raise if anything in the tree cannot be copied, while nothing has been copied yet."""
    if os.path.lexists(target) and not os.path.isdir(target):
        raise UploadError(f"Cannot copy the directory {source!r} to {target!r}: a file is there")
    for entry, relative in entries:
        to = os.path.join(target, relative)
        if entry.is_symlink() or not entry.is_dir():
            if not entry.is_symlink():
                refuse_special(entry.path, entry.stat(follow_symlinks=False))
            if os.path.isdir(to) and not os.path.islink(to):
                raise UploadError(f"Cannot copy the file {entry.path!r} to {to!r}: a directory is there")
        elif os.path.lexists(to) and not os.path.isdir(to):
            raise UploadError(f"Cannot copy the directory {entry.path!r} to {to!r}: a file is there")


def refuse_special(path: str, status: os.stat_result) -> None:
    """Raise UploadError for a named pipe, a socket or a device."""
    kind = _KINDS.get(stat.S_IFMT(status.st_mode))
    if kind:
        raise UploadError(f"Cannot copy {path!r}: it is {kind}")


def _copy_file(source: str, target: str, copy: Callable[[str, str], object]) -> None:
    """Put a copy of a regular file in the place of whatever file or link is at the target."""
    old = _lstat(target)
    if old is not None and not stat.S_ISLNK(old.st_mode) and not _replaceable(target, old):
        _overwrite(source, target, copy)
        return
    try:
        with _replacement(target) as temporary:
            _create_private(temporary)
            copy(source, temporary)
    except OSError as error:
        if old is None or error.errno not in _NOT_REPLACEABLE:
            raise
        _overwrite(source, target, copy)


def _overwrite(source: str, target: str, copy: Callable[[str, str], object]) -> None:
    (shutil.copy2 if copy is _rename else copy)(source, target)


def _rename(source: str, target: str) -> None:
    """Stands in for a copy of what is not needed any more."""
    try:
        os.replace(source, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        shutil.copy2(source, target)


def _copy_link(source: str, target: str) -> None:
    with _replacement(target) as temporary:
        os.symlink(os.readlink(source), temporary)


@contextlib.contextmanager
def _replacement(path: str) -> Iterator[str]:
    """A name beside `path` for a file that takes its place when the block ends, and vanishes if the block fails."""
    temporary = os.path.join(os.path.dirname(path), f".swerex-{secrets.token_hex(8)}.tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        if isinstance(error, OSError) and error.filename == temporary:
            # The caller knows nothing of our temporary file: name the one that was asked for.
            raise type(error)(error.errno, error.strerror, path) from error
        raise


def _create_private(path: str) -> None:
    """Make an empty file that nobody else can open before it has the mode that it is to have."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def _replaceable(path: str, old: os.stat_result) -> bool:
    """Whether another file could take this one's place so that nobody sees a difference but in its contents.

    A file that is just being replaced by somebody else can be seen with no name left.
    """
    return (
        stat.S_ISREG(old.st_mode)
        and old.st_nlink <= 1
        and old.st_uid == os.geteuid()
        and os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids)
    )


def _take_over(path: str, temporary: str, old: os.stat_result) -> None:
    """Give the new file the group, the extended attributes and the mode of the old one."""
    if os.stat(temporary).st_gid != old.st_gid:
        os.chown(temporary, -1, old.st_gid)
    with contextlib.suppress(OSError, AttributeError):
        for name in os.listxattr(path):
            os.setxattr(temporary, name, os.getxattr(path, name))
    os.chmod(temporary, stat.S_IMODE(old.st_mode))


def _end_of_links(path: str) -> str:
    """Where a chain of links in the last place of a path leads, whether or not anything is there."""
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
    """An empty path and one with a NUL would fail anyway, but less clearly."""
    if not path:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    if "\0" in path:
        raise InvalidInputError(f"A path cannot hold a NUL byte: {path!r}")
