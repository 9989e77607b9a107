"""Create temporary directories, or raise a ResourceError if there is no writable place for them."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator

from swerex_c.exceptions import ResourceError

__all__ = ["make_temporary", "temporary_directory", "temporary_place"]


def temporary_place() -> str:
    """Return the directory in which temporary files are created."""
    with _explained():
        return tempfile.gettempdir()


def make_temporary(prefix: str) -> str:
    """Create a directory that only this user may enter, and return its path. The caller removes it."""
    with _explained():
        return tempfile.mkdtemp(prefix=prefix)


@contextlib.contextmanager
def temporary_directory(prefix: str) -> Iterator[str]:
    """Create a directory as `make_temporary` does, and remove it with its contents after the block."""
    path = make_temporary(prefix)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        msg = f"Cannot create temporary files ({error.strerror}): set TMPDIR to a writable directory"
        raise ResourceError(msg, errno=error.errno) from None
