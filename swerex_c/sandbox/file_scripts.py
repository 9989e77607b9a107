"""Run the scripts that read, write and copy files in a sandbox, and convert their failures to exceptions.

Every path in a script begins with "/." or "./", so that it is never taken for an option, nor for a name that is special
to bash, such as /dev/tcp/HOST/PORT. A script reports its own refusal as a record on standard error,
`NUL reason NUL text NUL`, with exit code 90. Any other failure leaves the message of bash or of the program there, in
English, ending with the system's error text.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Iterator

from swerex_c.exceptions import NotSupportedError, ResourceError, UploadError
from swerex_c.sandbox.sandbox import Sandbox
from swerex_c.utils.shell_script import read_script

__all__ = ["escape", "failure", "frames", "in_place", "text"]

_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin:/busybox"
"""Directories of the programs that the scripts use. They come before those of the sandbox's PATH, which may lack them,
and may have the current directory, in which a script finds what the caller has uploaded."""

_FRAME = 32 << 10
"""Maximum number of bytes in one frame, before they are escaped."""

_REFUSED = 90
"""Exit code of a script that reports its refusal as a record."""

_IN_THE_WAY = ("directory", "file", "link", "special file")
"""Refusals of a script because this is in the place of something else; the text is its path below the target."""

_NUMBERS = {name: number for number, name in errno.errorcode.items()}

_WORDS = {os.strerror(number): number for number in errno.errorcode} | {
    "Cross-device link": errno.EXDEV,
    "Filename too long": errno.ENAMETOOLONG,
    "I/O error": errno.EIO,
    "No file descriptors available": errno.EMFILE,
    "Not supported": errno.EOPNOTSUPP,
    "Out of memory": errno.ENOMEM,
    "Quota exceeded": errno.EDQUOT,
    "Resource busy": errno.EBUSY,
    "Symbolic link loop": errno.ELOOP,
}
"""Error messages in the locale C with their numbers: this machine's, and those of musl that differ from glibc's."""

_ENDS = re.compile(
    "(?:^|: )(" + "|".join(sorted(map(re.escape, _WORDS), key=len, reverse=True)) + r")\)?$", re.MULTILINE
)

_TAR_NAMES = re.compile(r"^tar: (?:\./|it/)?(?P<name>.+): Cannot [a-z]+: ", re.MULTILINE)


def text(script: str) -> str:
    """Return the script with this name."""
    return f"PATH={_PATH}${{PATH:+:$PATH}}\n" + read_script(f"sandbox/scripts/{script}.bash")


def in_place(path: str) -> str:
    """Return a path as scripts name it: never an option, nor a path for which bash opens a socket."""
    return f"/.{path}" if path.startswith("/") else f"./{path}"


def escape(data: bytes) -> bytes:
    """Escape bytes for %b of bash's printf, so that they have no NUL."""
    return data.replace(b"\\", b"\\\\").replace(b"\0", b"\\0000")


def frames(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield bytes as frames for `read_frames` of the scripts."""
    for piece in pieces:
        for start in range(0, len(piece), _FRAME):
            part = escape(piece[start : start + _FRAME])
            yield b"%d\n%s" % (len(part), part)
    yield b"0\n"


# Failures


def failure(sandbox: Sandbox, code: int, stderr: bytes, path: str, what: str) -> Exception:
    """Return the exception for a script that did not end with 0.

    Args:
        path: the file of the request.
        what: the failed operation, such as "Writing 'a'".
    """
    parts = stderr.split(b"\0")
    if code == _REFUSED and len(parts) >= 4:
        reason, told = (os.fsdecode(part) for part in parts[-3:-1])
        return _refusal(sandbox, reason, told, path, what)
    said = os.fsdecode(stderr)
    if named := _TAR_NAMES.search(said):
        path = os.path.join(path, named["name"])
    return _system(said, path) or _unknown(sandbox, said or f"exit code {code}", what)


def _refusal(sandbox: Sandbox, reason: str, told: str, path: str, what: str) -> Exception:
    there = os.path.join(path, told) if told else path
    if reason in _IN_THE_WAY:
        return UploadError(f"{what} has failed at {there!r}: a {reason} is there")
    if reason == "kind":
        return UploadError(f"Cannot copy {path!r}: it is {told}")
    if reason == "short":
        return UploadError(f"{what} has failed: its source changed during the copy, or its data was cut off")
    if reason == "lack":
        return NotSupportedError(
            f"{what} needs programs that {sandbox.backend.name} lacks: {told}. Install them there "
            "(busybox has them), or use a deployment with a server inside"
        )
    if reason == "above":
        return _system(told, os.path.dirname(path.rstrip("/")) or ".") or _unknown(sandbox, told, what)
    if (number := _NUMBERS.get(reason)) is not None:
        return _os_error(number, path)
    return _unknown(sandbox, reason, what)


def _system(said: str, path: str) -> OSError | None:
    """Return the OSError for the system error that a message ends with. The last one counts: warnings come before."""
    found = _ENDS.findall(said)
    return _os_error(_WORDS[found[-1]], path) if found else None


def _os_error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)


def _unknown(sandbox: Sandbox, said: str, what: str) -> ResourceError:
    return ResourceError(f"{what} failed in {sandbox.backend.name}: {' '.join(said.split())[-2000:]}")
