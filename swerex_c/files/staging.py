"""Private directory for incoming files before they are moved to their target.

Arriving files are first written to a directory beside the target, so that an aborted transfer leaves the target
unchanged. Names come from a peer: nothing is written outside the staging directory, whatever they are.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Iterator
from typing import BinaryIO, Self

from swerex_c.exceptions import UploadError
from swerex_c.files import local_files

__all__ = ["StagingDirectory"]


class StagingDirectory:
    """A staging directory for one file or tree that will become `target`.

    At exit, unplaced files are removed.
    """

    def __init__(self, target: str):
        self.target = target
        self._directories: dict[str, tuple[int, float | None]] = {}

    def __enter__(self) -> Self:
        self._stack = contextlib.ExitStack()
        self.root = os.path.join(self._stack.enter_context(local_files.staging_directory(self.target)), "it")
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def path(self, name: str) -> str:
        """Return the staging path of the entry with this name; "" is the root.

        Raises:
            UploadError: if the name leads out of the staging directory, or its parent directory does not exist there.
        """
        if not name:
            return self.root
        parts = name.rstrip("/").split("/")
        if name.startswith("/") or "\0" in name or any(part in ("", ".", "..") for part in parts):
            raise UploadError(f"An entry of the upload has a path outside of it: {name!r:.200}")
        local_files.refuse_deep(name, parts)
        if "/".join(parts[:-1]) not in self._directories:
            raise UploadError(f"An entry of the upload has no parent directory in it: {name!r:.200}")
        return os.path.join(self.root, *parts)

    def directory(self, name: str, mode: int, mtime: float | None = None) -> None:
        """Create a directory.

        Its mode and time are set last, because the mode may forbid writing its entries.
        """
        path = self.path(name)
        if os.path.islink(path) or not os.path.isdir(path):
            os.mkdir(path, 0o700)
        self._directories[name.rstrip("/")] = (mode & local_files.RIGHTS, mtime)

    def link(self, name: str, destination: str) -> None:
        """Create a symbolic link."""
        os.symlink(destination, self.path(name))

    def copy(self, name: str, other: str) -> None:
        """Create a file as a copy of another file in the staging directory."""
        source = self.path(other)
        try:
            kind = os.lstat(source).st_mode
        except FileNotFoundError:
            kind = 0
        if not stat.S_ISREG(kind):
            raise UploadError(f"An entry of the upload links to a file that it lacks: {name!r:.200}")
        path = self.path(name)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        shutil.copy2(source, path, follow_symlinks=False)

    @contextlib.contextmanager
    def file(self, name: str, mode: int, mtime: float | None = None) -> Iterator[BinaryIO]:
        """Create a file and yield it for writing in the block."""
        path = self.path(name)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(fd, "wb", buffering=0) as file:
            yield file
            os.fchmod(fd, mode & local_files.RIGHTS)
        if mtime is not None:
            os.utime(path, (mtime, mtime))

    def commit(self, name: str | None = None, *, follow: bool = True) -> None:
        """Move the root to the target; see `local_files.move`.

        `name` is the file's own name.
        """
        base = None if name is None else os.path.basename(os.path.normpath(name))
        local_files.move(self.root, self.target, base, finish=self._finish, follow=follow)

    def _finish(self, made: str, path: str) -> None:
        mode, mtime = self._directories.get(made, (0o755, None))
        os.chmod(path, mode)
        if mtime is not None:
            os.utime(path, (mtime, mtime))
