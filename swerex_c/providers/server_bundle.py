"""Server archive for a container: this installation with its dependencies.

It is unpacked before the container starts and adds only one new directory; nothing is downloaded. The server needs the
Python version and the architecture of this process, because compiled modules fit no other.
"""

from __future__ import annotations

import functools
import importlib.metadata
import io
import os
import platform
import re
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import swerex_c

__all__ = ["DIRECTORY", "DOES_NOT_FIT", "archive", "command"]

DIRECTORY = "/.swerex_c"
"""The directory of the server in the container."""

DOES_NOT_FIT = 97
"""Exit code of the bundled server where it cannot run."""

_ROOTS = ("pydantic", "python-multipart", "starlette", "uvicorn")
"""Distributions that the server imports, without those that only clients need; requirements are added."""

_RUN = """\
import os, platform, sys
want, here = {want!r}, (sys.implementation.cache_tag, platform.machine())
def unfit(why):
    sys.stderr.write("swerex-c: the copied server needs %s on %s: %s\\n" % (*want, why))
    sys.exit({code})
if here != want:
    unfit("this is %s on %s" % here)
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
try:
    import swerex_c._core, pydantic_core, multipart, starlette, uvicorn
except (ImportError, OSError) as error:
    unfit(error)
from swerex_c.cli.serve import main
main(program="swerex-remote")
"""


def command(arguments: str) -> str:
    """Return a command for `sh` that runs the bundled server.

    The exit code of the command is the server's, or DOES_NOT_FIT.

    Args:
        arguments: arguments of the server, as `sh` reads them.
    """
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    return (
        f"(swx={DOES_NOT_FIT}; for python in {version} python3 python; do "
        f'if [ -e {DIRECTORY}/run.py ] && command -v "$python" >/dev/null; then '
        f'"$python" {DIRECTORY}/run.py {arguments}; swx=$?; fi; '
        f'[ "$swx" = {DOES_NOT_FIT} ] || break; done; exit "$swx")'
    )


@functools.lru_cache(maxsize=1)
def archive() -> bytes:
    """Return a tar archive to unpack in the container's root directory.

    The archive has about 15 MB, and is cached.

    Raises:
        LookupError: if something that the server needs is not found on this machine; the message names it.
    """
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as tar:
        top = DIRECTORY.strip("/")
        want = (sys.implementation.cache_tag, platform.machine())
        _add_bytes(tar, f"{top}/run.py", _RUN.format(want=want, code=DOES_NOT_FIT).encode())
        for name, path in sorted(_files()):
            _add_bytes(tar, f"{top}/lib/{name}", path.read_bytes(), 0o755 if os.access(path, os.X_OK) else 0o644)
    return whole.getvalue()


def _add_bytes(tar: tarfile.TarFile, name: str, data: bytes, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(data), mode
    tar.addfile(entry, io.BytesIO(data))


def _files() -> Iterator[tuple[str, Path]]:
    """Yield each file's name below the import directory, and its path here."""
    package = Path(swerex_c.__file__).parent
    for path in package.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            yield f"{package.name}/{path.relative_to(package)}", path
    for distribution in _distributions():
        if distribution.files is None:
            raise LookupError(f"{distribution.metadata['Name']} does not list its files")
        for file in distribution.files:
            # Paths that lead out of the directory belong to command-line scripts.
            if file.parts[0] != ".." and "__pycache__" not in file.parts and file.suffix not in (".pth", ".pyi"):
                path = Path(str(distribution.locate_file(file)))
                if path.is_file():
                    yield str(file), path


def _distributions() -> Iterator[importlib.metadata.Distribution]:
    waiting, seen = list(_ROOTS), set[str]()
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name in seen:
            continue
        seen.add(name)
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            if name in _ROOTS:
                raise LookupError(f"the distribution {name} is not installed") from None
            continue  # required only on other systems or by other Python versions
        yield distribution
        for requirement in distribution.requires or ():
            if "extra ==" not in requirement and (match := re.match(r"[A-Za-z0-9._-]+", requirement)):
                waiting.append(match[0])
