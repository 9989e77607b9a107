"""File scripts in a sandbox: their programs, their input and their failures.

The scripts read, write and copy files, with optional programs where the sandbox has them. This module finds those
programs, frames the input, and turns failures into exceptions. Every path in a script begins with "/." or "./", so that
it is never taken for an option, nor for a name that is special to bash, such as /dev/tcp/HOST/PORT. A script reports
its own refusal as a record on standard error, `NUL reason NUL text NUL`, with exit code 90. Any other failure leaves
the message of bash or of the program there, in English, ending with the system's error text.
"""

from __future__ import annotations

import errno
import os
import re
import shlex
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from swerex_c.exceptions import NotSupportedError, ResourceError, SwerexException, UploadError
from swerex_c.utils.shell_script import read_script

if TYPE_CHECKING:
    from swerex_c.sandbox.sandbox import RunningScript, Sandbox

__all__ = ["Refused", "FileScripts", "failure", "frames", "in_place"]

_SCRIPTS = "sandbox/scripts/"

_PROGRAMS = ("cat", "chgrp", "chmod", "cp", "ln", "mkdir", "mv", "readlink", "rm", "stat", "tar")
"""Programs that the scripts use if the sandbox has them."""

_REFUSED = 90
"""Exit code of a script that reports its refusal as a record."""

_PIECE = 32 << 10
"""Maximum number of bytes in one frame."""

_PROBE_SECONDS = 60.0

_WORDS = {
    "Permission denied": errno.EACCES,
    "Operation not permitted": errno.EPERM,
    "No such file or directory": errno.ENOENT,
    "Not a directory": errno.ENOTDIR,
    "Is a directory": errno.EISDIR,
    "File exists": errno.EEXIST,
    "Directory not empty": errno.ENOTEMPTY,
    "Too many levels of symbolic links": errno.ELOOP,
    "Symbolic link loop": errno.ELOOP,
    "File name too long": errno.ENAMETOOLONG,
    "Filename too long": errno.ENAMETOOLONG,
    "No space left on device": errno.ENOSPC,
    "Disk quota exceeded": errno.EDQUOT,
    "Quota exceeded": errno.EDQUOT,
    "Read-only file system": errno.EROFS,
    "Input/output error": errno.EIO,
    "I/O error": errno.EIO,
    "Device or resource busy": errno.EBUSY,
    "Resource busy": errno.EBUSY,
    "Invalid cross-device link": errno.EXDEV,
    "Cross-device link": errno.EXDEV,
    "Text file busy": errno.ETXTBSY,
    "File too large": errno.EFBIG,
    "Too many open files": errno.EMFILE,
    "No file descriptors available": errno.EMFILE,
    "Too many open files in system": errno.ENFILE,
    "Cannot allocate memory": errno.ENOMEM,
    "Out of memory": errno.ENOMEM,
    "Invalid argument": errno.EINVAL,
    "No such device or address": errno.ENXIO,
    "No such device": errno.ENODEV,
    "Operation not supported": errno.EOPNOTSUPP,
    "Not supported": errno.EOPNOTSUPP,
    "Too many links": errno.EMLINK,
    "Stale file handle": errno.ESTALE,
}
"""Error messages of the common C libraries (glibc, musl) in the locale C, with their error numbers."""

_ENDS = re.compile(
    "(?:^|: )(" + "|".join(sorted(map(re.escape, _WORDS), key=len, reverse=True)) + r")\)?$", re.MULTILINE
)

_TAR_NAMES = re.compile(r"^tar: (?:\./)?(?P<name>.+): Cannot [a-z]+: ", re.MULTILINE)


class Refused(Exception):
    """Refusal of a script to continue.

    It has the name of the reason, and the text that the reason concerns.
    """

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(reason, text)
        self.reason = reason
        self.text = text


class FileScripts:
    """Runner of file scripts in a sandbox.

    The list of the sandbox's programs is read once per sandbox.
    """

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        if sandbox.programs is None:
            sandbox.programs = _find_programs(sandbox)
        self.programs = sandbox.programs
        self._prelude = "".join(f"{name}=({shlex.join(self.programs.get(name, ()))})\n" for name in _PROGRAMS)

    def has(self, *names: str) -> bool:
        """Return whether the sandbox has all of these programs."""
        return all(name in self.programs for name in names)

    def need(self, what: str, *names: str) -> None:
        """Raise NotSupportedError if one of these programs is missing.

        Args:
            what: the operation that needs them.
        """
        lacks = [name for name in names if name not in self.programs]
        if lacks:
            raise self.lacking(what, *lacks)

    def lacking(self, what: str, *names: str) -> NotSupportedError:
        """Return the NotSupportedError for missing programs."""
        return NotSupportedError(
            f"{what} needs programs that {self.sandbox.backend.name} lacks: {', '.join(names)}. Install them there "
            "(busybox has them), or use a deployment with a server inside"
        )

    def start(self, script: str, *words: str) -> RunningScript:
        """Start the script with this name."""
        return self.sandbox.start(self._prelude + read_script(f"{_SCRIPTS}{script}.bash"), *words)

    def ask(self, script: str, *words: str, input: bytes = b"") -> tuple[int, bytes, bytes]:
        """Run the script with this name to its end.

        Returns:
            its exit code, standard output and standard error.
        """
        script = self._prelude + read_script(f"{_SCRIPTS}{script}.bash")
        answer = self.sandbox.run(script, *words, input=input, limit=1 << 62)
        return answer.code, answer.stdout, answer.stderr


def _find_programs(sandbox: Sandbox) -> dict[str, tuple[str, ...]]:
    """Return the command lines of the programs that the sandbox has, by name."""
    answer = sandbox.run(read_script(_SCRIPTS + "probe_programs.bash"), *_PROGRAMS, timeout=_PROBE_SECONDS)
    words = answer.stdout.split(b"\0")[:-1]
    found: dict[str, tuple[str, ...]] = {}
    for what, path in zip(words[::2], words[1::2], strict=False):
        name = os.fsdecode(what)
        applet = name.removeprefix("busybox ")
        found[applet] = (os.fsdecode(path),) if applet == name else (os.fsdecode(path), applet)
    return found


def in_place(path: str) -> str:
    """Return a path as scripts name it.

    It is then never an option, nor a path for which bash opens a socket.
    """
    return f"/.{path}" if path.startswith("/") else f"./{path}"


def frames(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield bytes as frames for the function `take` of the scripts."""
    for piece in pieces:
        for start in range(0, len(piece), _PIECE):
            part = piece[start : start + _PIECE].replace(b"\\", b"\\\\").replace(b"\0", b"\\0000")
            yield b"%d\n%s" % (len(part), part)
    yield b"0\n"


def failure(scripts: FileScripts, code: int, stderr: bytes, path: str, what: str) -> Exception:
    """Return the exception for a script that did not end with 0.

    Args:
        path: the file of the request.
        what: the failed operation, such as "Writing a file".

    Returns:
        `Refused` for reasons that only the caller can describe.
    """
    parts = stderr.split(b"\0")
    if code == _REFUSED and len(parts) >= 4:
        reason, text = (os.fsdecode(part) for part in parts[-3:-1])
        if reason == "lack":
            return scripts.lacking(what, text)
        if reason == "above":
            return _system(text, os.path.dirname(path.rstrip("/")) or ".") or _unknown(scripts, code, text, what)
        if reason == "short":
            return UploadError(f"{what} has failed: {path!r} changed during the copy, or its data was cut off")
        if reason.startswith("E"):
            number = getattr(errno, reason)
            return OSError(number, os.strerror(number), path)
        return Refused(reason, text)
    said = os.fsdecode(stderr)
    if named := _TAR_NAMES.search(said):
        path = os.path.join(path, named["name"])
    return _system(said, path) or _unknown(scripts, code, said, what)


def _system(said: str, path: str) -> OSError | None:
    """Return the OSError for the system error that a message ends with. The last one counts: warnings come before."""
    found = _ENDS.findall(said)
    if not found:
        return None
    number = _WORDS[found[-1]]
    return OSError(number, os.strerror(number), path)


def _unknown(scripts: FileScripts, code: int, said: str, what: str) -> SwerexException:
    words = " ".join(said.split())[-2000:] or f"exit code {code}"
    return ResourceError(f"{what} failed in {scripts.sandbox.backend.name}: {words}")
