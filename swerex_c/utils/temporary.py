"""Create temporary directories."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator

from swerex_c.exceptions import ResourceError

__all__ = ["make_temporary", "temporary_directory", "temporary_place"]


def temporary_place() -> str:
    """Return the directory in which temporary files are created.

    Raises:
        ResourceError: if there is no writable one.
    """
    try:
        return tempfile.gettempdir()
    except OSError as error:
        raise _unusable(error) from None


def make_temporary(prefix: str) -> str:
    """Create a directory that only this user may enter, and return its path.

    The caller removes it.

    Raises:
        ResourceError: if the directory cannot be created.
    """
    try:
        return tempfile.mkdtemp(prefix=prefix)
    except OSError as error:
        raise _unusable(error) from None


@contextlib.contextmanager
def temporary_directory(prefix: str) -> Iterator[str]:
    """Create a directory as `make_temporary` does, and remove it after the block.

    Its contents are removed too.

    Raises:
        ResourceError: if the directory cannot be created.
    """
    path = make_temporary(prefix)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _unusable(error: OSError) -> ResourceError:
    msg = f"Cannot create temporary files ({error.strerror}): set TMPDIR to a writable directory"
    return ResourceError(msg, errno=error.errno)
