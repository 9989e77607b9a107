"""Files that come in one after the other, before they take their place.

What arrives goes into a directory beside its target first, so that a transfer that breaks off leaves the target as it
was. Names come from a peer: nothing is written outside of the spool, whatever they are.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Iterator
from typing import BinaryIO, Self

from swerex_c.exceptions import UploadError
from swerex_c.runtime import files

__all__ = ["Spool"]


class Spool:
    """A place for one file or one tree that is to become `target`; leaving it removes what was not placed."""

    def __init__(self, target: str):
        self.target = target
        self._directories: dict[str, tuple[int, float | None]] = {}

    def __enter__(self) -> Self:
        self._stack = contextlib.ExitStack()
        self.root = os.path.join(self._stack.enter_context(files.spool(self.target)), "it")
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def path(self, name: str) -> str:
        """Where the entry of this name goes; "" is the root.

        Raises:
            UploadError: if that is not inside of the spool, or its directory is not there.
        """
        if not name:
            return self.root
        parts = name.rstrip("/").split("/")
        if name.startswith("/") or "\0" in name or any(part in ("", ".", "..") for part in parts):
            raise UploadError(f"An entry of the upload has a name that leads elsewhere: {name!r:.200}")
        at = self.root
        for part in parts:
            if os.path.islink(at) or not os.path.isdir(at):
                raise UploadError(f"An entry of the upload is not in a directory of it: {name!r:.200}")
            at = os.path.join(at, part)
        return at

    def directory(self, name: str, mode: int, mtime: float | None = None) -> None:
        """A directory. Its mode and time come last, since it may forbid what has to go into it."""
        path = self.path(name)
        if os.path.islink(path) or not os.path.isdir(path):
            os.mkdir(path, 0o700)
        self._directories[name.rstrip("/")] = (mode & 0o7777, mtime)

    def link(self, name: str, destination: str) -> None:
        """A symbolic link."""
        os.symlink(destination, self.path(name))

    def copy(self, name: str, other: str) -> None:
        """A new file that is like another one of the spool."""
        source = self.path(other)
        try:
            kind = os.lstat(source).st_mode
        except FileNotFoundError:
            kind = 0
        if not stat.S_ISREG(kind):
            raise UploadError(f"An entry of the upload names a file that is not there: {name!r:.200}")
        path = self.path(name)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        shutil.copy2(source, path, follow_symlinks=False)

    @contextlib.contextmanager
    def file(self, name: str, mode: int, mtime: float | None = None) -> Iterator[BinaryIO]:
        """A new file, to be written in the block."""
        path = self.path(name)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(fd, "wb", buffering=0) as file:
            yield file
            os.fchmod(fd, mode & 0o7777)
        if mtime is not None:
            os.utime(path, (mtime, mtime))

    def place(self, name: str | None = None) -> None:
        """Put what is at the root where it belongs, by the rules of `files.upload`. `name`: the file's own."""
        base = None if name is None else os.path.basename(os.path.normpath(name))
        for made in reversed(files.move(self.root, self.target, base)):
            mode, mtime = self._directories.get(made, (0o755, None))
            path = os.path.join(self.target, made)
            os.chmod(path, mode)
            if mtime is not None:
                os.utime(path, (mtime, mtime))
