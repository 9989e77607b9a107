"""Collect a file in a private file, or a tree in a private directory, then move it to its target.

Everything that comes in is written this way: an aborted copy leaves the target unchanged, and a killed process leaves
one private file or directory, which the next copy there removes. A peer may choose names and change the target
meanwhile: below both directories, paths are opened one component at a time and no symbolic link is followed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import stat
import tempfile
import time
from collections.abc import Iterator
from typing import Self

from swerex_c.exceptions import UploadError
from swerex_c.files.writing import (
    check_path,
    copy_contents,
    end_of_links,
    is_replaceable,
    may_write,
    named,
    overwritten,
)
from swerex_c.utils.cancellation import check_cancelled

__all__ = ["RIGHTS", "Staging", "open_below"]

RIGHTS = 0o1777
"""Mode bits to copy. Set-user-ID and set-group-ID are left out, because they would grant the rights of this process's
user, who owns the copy."""

_DEEPEST = 256
"""Maximum depth of an entry in a tree from a peer, in directories. Deeper trees take disproportionate time, and the
author of a tree could choose any depth."""

_NAME = re.compile(r"\.swerex-locked-[0-9a-f]{16}\.tmp")
"""Names of private files and directories. Scripts in sandboxes use other names for what they cannot lock."""

_SWEEP_SECONDS = 10.0
"""Minimum number of seconds between searches of a directory for what killed processes left."""

_NOT_REPLACEABLE = {errno.EACCES, errno.EPERM, errno.EBUSY, errno.EXDEV, errno.EROFS, errno.ENOENT}
"""Errors of a file that may be writable although it cannot be replaced: its directory accepts no new entry, or the file
is a mount point."""

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
"""Errors that concern the target, even if the block of `Staging.file` uses other files, too."""

_CLOSED = os.O_CLOEXEC | os.O_NOFOLLOW
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _CLOSED


class Staging:
    """A private file or directory that will become `target`.

    It lies beside the target, else in the target, else in the directory for temporary files; missing directories above
    the target are created. Names of entries are paths below the tree's root, and "" is the root itself, which is
    created first, as a file or a directory. At exit, entries that were not moved to the target are removed.
    """

    def __init__(self, target: str, *, deepest: int | None = _DEEPEST):
        """Prepare a copy to `target`, in which entries lie in at most `deepest` directories."""
        check_path(target)
        self.target = target
        self._deepest = deepest
        self._directories: dict[str, tuple[int | None, int | None]] = {}  # mode and time, parents before children
        self._holder: tuple[str, int] | None = None  # the directory of the last entry, and its descriptor
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._forget_holder()
        self._stack.close()

    def _make_root(self, mode: int | None) -> int:
        """Create the root, as a file with this mode or as a directory; return its descriptor."""
        reason: OSError | None = None
        for place in (_above(self.target), self.target, None):
            try:
                where = place or tempfile.gettempdir()
                self._parent = os.open(where, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
                self._stack.callback(os.close, self._parent)
                self._root, self._fd = _make_private(self._parent, mode, self._stack)
                return self._fd
            except OSError as error:
                reason = reason or error
        assert reason is not None
        raise type(reason)(reason.errno, reason.strerror, self.target)

    # Filling it

    def directory(self, name: str, mode: int | None = None, mtime_ns: int | None = None) -> None:
        """Create a directory. Its mode and time are set last; a mode of None is that of a new directory."""
        if name not in self._directories:
            if name:
                with self._new_entry(name) as (holder, base):
                    os.mkdir(base, 0o777 if mode is None else 0o700, dir_fd=holder)
            else:
                self._make_root(None)
        self._directories[name] = (mode, mtime_ns)

    def has_directory(self, name: str) -> bool:
        """Return whether a directory of this name was created."""
        return name in self._directories

    def link(self, name: str, destination: str) -> None:
        """Create a symbolic link."""
        if not destination:
            raise UploadError(f"An entry of the upload is a link to nothing: {name!r:.200}")
        with self._new_entry(name) as (holder, base):
            os.symlink(destination, base, dir_fd=holder)

    @contextlib.contextmanager
    def file(self, name: str, mode: int | None = None, mtime_ns: int | None = None) -> Iterator[int]:
        """Create a file, and yield a descriptor for writing it in the block. A mode of None is that of a new file."""
        first = 0o666 if mode is None else 0o600
        if name:
            with self._new_entry(name) as (holder, base):
                fd = os.open(base, _NEW, first, dir_fd=holder)
        else:
            fd = os.dup(self._make_root(first))
        try:
            yield fd
            if mode is not None:
                os.fchmod(fd, mode & RIGHTS)
            if mtime_ns is not None:
                os.utime(fd, ns=(mtime_ns, mtime_ns))
        except OSError as error:
            if error.errno in _FULL and error.filename is None:
                raise type(error)(error.errno, error.strerror, os.path.join(self.target, name).rstrip("/")) from None
            raise
        finally:
            os.close(fd)

    def copy(self, name: str, other: str) -> None:
        """Create a file as a copy of another file in this directory."""
        holder, base = self._open_holder(other)
        status = _lstat(base, holder)
        if status is None or not stat.S_ISREG(status.st_mode):
            raise UploadError(f"An entry of the upload links to a file that it lacks: {name!r:.200}")
        fd = os.open(base, os.O_RDONLY | os.O_NONBLOCK | _CLOSED, dir_fd=holder)
        with open(fd, "rb", buffering=0) as source, self.file(name, status.st_mode, status.st_mtime_ns) as to:
            copy_contents(source, to)

    @contextlib.contextmanager
    def _new_entry(self, name: str) -> Iterator[tuple[int, str]]:
        """Yield the open directory in which the block creates an entry, and the entry's name in it."""
        try:
            yield self._open_holder(name)
        except FileExistsError:
            raise UploadError(f"An entry of the upload is in it twice: {name!r:.200}") from None

    def _open_holder(self, name: str) -> tuple[int, str]:
        """Return the open directory that holds an entry, and the entry's name in it."""
        parts = name.split("/")
        if "\0" in name or any(part in ("", ".", "..") for part in parts):
            raise UploadError(f"An entry of the upload has a path outside of it: {name!r:.200}")
        if self._deepest is not None and len(parts) > self._deepest:
            raise UploadError(f"Cannot copy {name!r:.200}: it is nested in {self._deepest} directories or more")
        above, base = "/".join(parts[:-1]), parts[-1]
        if above not in self._directories:
            raise UploadError(f"An entry of the upload has no parent directory in it: {name!r:.200}")
        if self._holder is None or self._holder[0] != above:
            self._forget_holder()
            self._holder = above, open_below(self._fd, above)
        return self._holder[1], base

    def _forget_holder(self) -> None:
        if self._holder is not None:
            os.close(self._holder[1])
            self._holder = None

    # Moving it to the target

    def commit(self, name: str | None = None, *, follow: bool = True) -> None:
        """Move the root to the target by the rules of `swerex_c.files.local.copy`.

        What does not fit is refused before anything is moved. Existing directories keep their modes.

        Args:
            name: name of the file if it goes into a directory.
            follow: whether a file follows a target that is a link, or replaces it. Use False for files from a sandbox:
                the link may come from an earlier tree of the sandbox.
        """
        self._forget_holder()
        check_cancelled()
        if self._directories:
            self._commit_tree()
        else:
            self._commit_file(name, follow)

    def _commit_file(self, name: str | None, follow: bool) -> None:
        _above(self.target)
        if os.path.isdir(self.target):
            path = os.path.join(self.target, os.path.basename(os.path.normpath(name or "")))
        elif self.target.endswith("/"):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), self.target)
        else:
            path = end_of_links(self.target) if follow else self.target
        above, base = os.path.split(path)
        with named(path), _opened(None, above or ".") as there:
            old = _lstat(base, there)
            if old is not None and stat.S_ISDIR(old.st_mode):
                raise UploadError(f"Cannot copy a file to {path!r}: a directory is there")
            if old is None or is_replaceable(old) or not may_write(base, there):
                self._move_file(self._root, self._parent, base, there, old)
            else:
                self._overwrite(self._root, self._parent, base, there)

    def _commit_tree(self) -> None:
        try:
            os.mkdir(self.target, 0o777 if self._directories[""][0] is None else 0o700)
            new = True
        except FileExistsError:
            new = False
            if not os.path.isdir(self.target):
                raise UploadError(f"Cannot copy a directory to {self.target!r}: a file is there") from None
        with _opened(None, self.target) as root:
            if not new:
                self._merge(root, move=False)
            kept = self._merge(root, move=True)
            if new:
                kept.remove("")
            for name in reversed(self._directories):  # children before parents
                if name not in kept:
                    self._finish(root, name)

    def _merge(self, root: int, *, move: bool) -> set[str]:
        """Check that the tree fits into an existing one, or move it there. Returns the directories that existed."""
        pending, kept = [""], {""}
        while pending:
            above = pending.pop()
            where = os.path.join(self.target, above)
            with _opened(self._fd, above, flags=os.O_RDONLY) as staged, _opened(root, above, where) as there:
                for entry in list(os.scandir(staged)):
                    check_cancelled()
                    name, to = os.path.join(above, entry.name), os.path.join(where, entry.name)
                    directory, old = entry.is_dir(follow_symlinks=False), _lstat(entry.name, there)
                    if directory and old is not None and stat.S_ISDIR(old.st_mode):
                        kept.add(name)
                        pending.append(name)
                    elif old is not None and (problem := _misfit(directory, old.st_mode)):
                        raise UploadError(f"Cannot copy a {'directory' if directory else 'file'} to {to!r}: {problem}")
                    elif move:
                        with named(to):
                            if not directory:
                                self._move_file(entry.name, staged, entry.name, there, old)
                            elif not _move_directory(entry.name, staged, there):
                                pending.append(name)
        return kept

    def _move_file(self, name: str, staged: int, base: str, there: int, old: os.stat_result | None) -> None:
        """Replace a file or link in an open directory by one in another."""
        try:
            _move(name, staged, base, there)
        except OSError as error:
            if old is None or not stat.S_ISREG(old.st_mode) or error.errno not in _NOT_REPLACEABLE:
                raise
            self._overwrite(name, staged, base, there)

    @staticmethod
    def _overwrite(name: str, staged: int, base: str, there: int) -> None:
        """Write a file's bytes and mode into another one, which stays the same file."""
        staged_fd = os.open(name, os.O_RDONLY | _CLOSED, dir_fd=staged)
        with open(staged_fd, "rb", buffering=0) as source:
            status = os.fstat(staged_fd)
            with overwritten(base, status.st_size, there) as fd:
                copy_contents(source, fd)
                now = os.fstat(fd).st_mode
                if stat.S_ISREG(now) and stat.S_IMODE(now) != stat.S_IMODE(status.st_mode):
                    os.fchmod(fd, stat.S_IMODE(status.st_mode))

    def _finish(self, root: int, name: str) -> None:
        mode, mtime_ns = self._directories[name]
        where = os.path.join(self.target, name)
        with named(where), _opened(root, name, where, os.O_RDONLY) as fd:
            if mode is not None:
                os.fchmod(fd, mode & RIGHTS)
            if mtime_ns is not None:
                os.utime(fd, ns=(mtime_ns, mtime_ns))


def _misfit(directory: bool, old: int) -> str | None:
    """Return why an entry of this mode cannot be replaced by a directory, or by a file or link."""
    if stat.S_ISDIR(old):
        return "a directory is there"
    if directory:
        return "a link is there" if stat.S_ISLNK(old) else "a file is there"
    return None if stat.S_ISREG(old) or stat.S_ISLNK(old) else "a special file is there"


def _move(name: str, staged: int, base: str, there: int) -> None:
    """Rename a file or link; copy it first if it is on another file system."""
    try:
        os.replace(name, base, src_dir_fd=staged, dst_dir_fd=there)
        return
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
    with contextlib.ExitStack() as stack:
        status = os.stat(name, dir_fd=staged, follow_symlinks=False)
        if stat.S_ISLNK(status.st_mode):
            _, nearer = _make_private(there, None, stack)
            os.symlink(os.readlink(name, dir_fd=staged), "it", dir_fd=nearer)
            os.replace("it", base, src_dir_fd=nearer, dst_dir_fd=there)
        else:
            copy, fd = _make_private(there, 0o600, stack)
            staged_fd = os.open(name, os.O_RDONLY | _CLOSED, dir_fd=staged)
            with open(staged_fd, "rb", buffering=0) as source:
                copy_contents(source, fd)
            os.fchmod(fd, stat.S_IMODE(status.st_mode))
            os.utime(fd, ns=(status.st_atime_ns, status.st_mtime_ns))
            os.replace(copy, base, src_dir_fd=there, dst_dir_fd=there)


def _move_directory(base: str, staged: int, there: int) -> bool:
    """Move a directory with all that it holds. Returns False if its entries have to be moved one by one."""
    try:
        os.rename(base, base, src_dir_fd=staged, dst_dir_fd=there)
        return True
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.ENOTEMPTY, errno.EEXIST):
            raise
        with contextlib.suppress(FileExistsError):  # another copy has made it meanwhile
            os.mkdir(base, 0o700, dir_fd=there)
        return False


def _above(target: str) -> str:
    """Return the directory above a target, which is created if it is missing."""
    above = os.path.dirname(target.rstrip("/")) or ("/" if target.startswith("/") else ".")
    if not os.path.isdir(above):
        os.makedirs(above, exist_ok=True)
    return above


def _make_private(parent: int, mode: int | None, stack: contextlib.ExitStack) -> tuple[str, int]:
    """Create a private file with this mode, or a directory, in an open one; return its name and descriptor.

    The stack removes and closes it. It is locked as long as this process lives: an unlocked one was left by a killed
    process.
    """
    _sweep(parent)
    while True:
        name = f".swerex-locked-{secrets.token_hex(8)}.tmp"
        if mode is None:
            os.mkdir(name, 0o700, dir_fd=parent)
        try:
            fd = open_below(parent, name) if mode is None else os.open(name, _NEW, mode, dir_fd=parent)
        except FileNotFoundError:
            if mode is not None:
                raise
            continue  # another process took it for one that was left
        if _lock(fd, name, parent):
            stack.callback(os.close, fd)
            stack.callback(_remove, parent, name)
            return name, fd
        os.close(fd)


def _lock(fd: int, name: str, parent: int) -> bool:
    """Lock a new file or directory. Returns False if another process has removed it or is about to."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(fd), os.stat(name, dir_fd=parent, follow_symlinks=False))
    except (BlockingIOError, FileNotFoundError):
        return False
    except OSError:
        return True  # this file system has no locks, so no process removes anything there


_swept: dict[tuple[int, int], float] = {}
"""Monotonic times of the last search of directories, by device and inode."""


def _sweep(parent: int) -> None:
    """Remove what killed processes left in an open directory."""
    with contextlib.suppress(OSError):
        status, now = os.fstat(parent), time.monotonic()
        identity = status.st_dev, status.st_ino
        if now - _swept.get(identity, -_SWEEP_SECONDS) < _SWEEP_SECONDS:
            return
        if len(_swept) >= 1000:
            _swept.clear()
        _swept[identity] = now
        with _opened(parent, "", flags=os.O_RDONLY) as fd:
            left = [name for name in os.listdir(fd) if _NAME.fullmatch(name)]
        for name in left:
            with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
                fd = os.open(name, os.O_RDONLY | os.O_NONBLOCK | _CLOSED, dir_fd=parent)
                stack.callback(os.close, fd)
                if os.fstat(fd).st_uid == os.geteuid():
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    _remove(parent, name)


def _remove(parent: int, name: str) -> None:
    """Remove a file, or a directory with all that it holds, as far as possible."""
    try:
        os.unlink(name, dir_fd=parent)
        return
    except IsADirectoryError:
        directories = [name]
    except OSError:
        return
    # Not with shutil.rmtree: it recurses, and needs a descriptor for each level of a tree from a peer.
    for directory in directories:  # which grows meanwhile
        with contextlib.suppress(OSError), _opened(parent, directory, flags=os.O_RDONLY) as fd:
            for base in os.listdir(fd):
                try:
                    os.unlink(base, dir_fd=fd)
                except IsADirectoryError:
                    directories.append(f"{directory}/{base}")
                except OSError:
                    continue
    for directory in reversed(directories):
        above, _, base = directory.rpartition("/")
        with contextlib.suppress(OSError), _opened(parent, above) as fd:
            os.rmdir(base, dir_fd=fd)


def open_below(root: int, path: str, flags: int = os.O_RDONLY) -> int:
    """Open a directory below an open one, one component at a time and never through a link. "" is the root itself."""
    fd = root
    for part in path.split("/") if path else (".",):
        try:
            deeper = os.open(part, flags | os.O_DIRECTORY | _CLOSED, dir_fd=fd)
        finally:
            if fd != root:
                os.close(fd)
        fd = deeper
    return fd


@contextlib.contextmanager
def _opened(root: int | None, path: str, where: str | None = None, flags: int = os.O_PATH) -> Iterator[int]:
    """Open a directory for the block, below an open one or at any path.

    Raises:
        UploadError: if a component of the path below `root` is a link or a file; `where` is its name in the message.
    """
    try:
        if root is None:
            fd = os.open(path, flags | os.O_DIRECTORY | os.O_CLOEXEC)
        else:
            fd = open_below(root, path, flags)
    except NotADirectoryError:
        if where is None:
            raise
        raise UploadError(f"Cannot copy to {where!r}: a file or a link is there, not a directory") from None
    try:
        yield fd
    finally:
        os.close(fd)


def _lstat(base: str, there: int | None) -> os.stat_result | None:
    try:
        return os.stat(base, dir_fd=there, follow_symlinks=False)
    except FileNotFoundError:
        return None
