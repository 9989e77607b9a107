"""Scripts on files: what they need of a place, and what becomes of their failures."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from swerex_c.exceptions import NotSupportedError, ResourceError, SwerexException, UploadError
from swerex_c.exec import file_scripts

if TYPE_CHECKING:
    from swerex_c.exec.place import Place, Running

__all__ = ["Refused", "Talk", "above", "failure", "frames", "in_place", "random"]

_PIECE = 32 << 10
"""Bytes in one frame."""

_PROBE_SECONDS = 60.0

_END_SECONDS = 10.0
"""How long a script that gets no more may take to clean up."""

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
"""How the C libraries that are in use (glibc, musl) call what a system refuses, in the locale C."""

_ENDS = re.compile(
    "(?:^|: )(" + "|".join(sorted(map(re.escape, _WORDS), key=len, reverse=True)) + r")\)?$", re.MULTILINE
)

_TAR_NAMES = re.compile(r"^tar: (?:\./)?(?P<name>.+): Cannot [a-z]+: ", re.MULTILINE)


class Refused(Exception):
    """A script found a reason not to go on: its name, and what it concerns."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(reason, text)
        self.reason = reason
        self.text = text


_known: weakref.WeakKeyDictionary[Place, dict[str, tuple[str, ...]]] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


class Talk:
    """A place, and which programs it has. That is asked once in the life of a place."""

    def __init__(self, place: Place) -> None:
        self.place = place
        with _lock:
            known = _known.get(place)
        if known is None:
            known = _ask(place)
            with _lock:
                _known[place] = known
        self.programs = known
        self._prelude = file_scripts.prelude(known)

    def has(self, *names: str) -> bool:
        """Whether the place has all of these programs."""
        return all(name in self.programs for name in names)

    def need(self, what: str, *names: str) -> None:
        """Raises NotSupportedError if one of these programs is not there. `what`: needs them."""
        lacks = [name for name in names if name not in self.programs]
        if lacks:
            raise self.lacking(what, *lacks)

    def lacking(self, what: str, *names: str) -> NotSupportedError:
        """The error that says so."""
        return NotSupportedError(
            f"{what} needs what {self.place.backend.name} lacks: {', '.join(names)}. Install that there (busybox has "
            f"it), or use a deployment whose server runs inside"
        )

    def start(self, script: str, *words: str) -> Running:
        """Start a script of `file_scripts`."""
        return self.place.start(self._prelude + script, *words)

    def ask(self, script: str, *words: str, input: bytes = b"") -> tuple[int, bytes, bytes]:
        """Run one; its exit code and what it printed."""
        answer = self.place.run(self._prelude + script, *words, input=input, limit=1 << 62)
        return answer.code, answer.stdout, answer.stderr

    def give(self, running: Running, produce: Callable[[Callable[[bytes], object]], None]) -> None:
        """Write a script's input; what it does not want is left."""
        try:
            with contextlib.suppress(BrokenPipeError):
                produce(running.stdin.write)
        except BaseException:
            # It sees that what came is not whole, and takes away what it has made of it.
            running.close_input()
            with contextlib.suppress(SwerexException, TimeoutError):
                running.wait(_END_SECONDS)
            raise
        running.close_input()


def _ask(place: Place) -> dict[str, tuple[str, ...]]:
    answer = place.run(file_scripts.PROBE, *file_scripts.PROGRAMS, timeout=_PROBE_SECONDS)
    words = answer.stdout.split(b"\0")[:-1]
    found: dict[str, tuple[str, ...]] = {}
    for what, path in zip(words[::2], words[1::2], strict=False):
        name = os.fsdecode(what)
        applet = name.removeprefix(file_scripts.BUSYBOX + " ")
        found[applet] = (os.fsdecode(path),) if applet == name else (os.fsdecode(path), applet)
    return found


def in_place(path: str) -> str:
    """How scripts call a path: nothing of it is an option, and bash opens no sockets for it."""
    return f"/.{path}" if path.startswith("/") else f"./{path}"


def above(path: str) -> str:
    """The directory above, for messages."""
    return os.path.dirname(path.rstrip("/")) or "."


def random() -> str:
    """What makes the name of a temporary file one that nobody else has."""
    return secrets.token_hex(8)


def frames(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Bytes as the scripts' `take` reads them."""
    for piece in pieces:
        for start in range(0, len(piece), _PIECE):
            part = piece[start : start + _PIECE].replace(b"\\", b"\\\\").replace(b"\0", b"\\0000")
            yield b"%d\n%s" % (len(part), part)
    yield b"0\n"


def failure(talk: Talk, code: int, stderr: bytes, path: str, what: str) -> Exception:
    """What to raise for a script that did not end with 0.

    Args:
        path: the file that was asked for.
        what: was to be done, such as "Writing a file".

    Returns:
        `Refused` for the reasons that only the caller can put in words.
    """
    parts = stderr.split(b"\0")
    if code == file_scripts.REFUSED and len(parts) >= 4:
        reason, text = (os.fsdecode(part) for part in parts[-3:-1])
        if reason == "lack":
            return talk.lacking(what, text)
        if reason == "above":
            return _system(text, above(path)) or _unknown(talk, code, text, what)
        if reason == "short":
            return UploadError(f"{what} was given up: {path!r} changed while it was copied, or its bytes were cut off")
        if reason.startswith("E"):
            number = getattr(errno, reason)
            return OSError(number, os.strerror(number), path)
        return Refused(reason, text)
    said = os.fsdecode(stderr)
    if named := _TAR_NAMES.search(said):
        path = os.path.join(path, named["name"])
    return _system(said, path) or _unknown(talk, code, said, what)


def _system(said: str, path: str) -> OSError | None:
    """The system's refusal that a message ends with. The last one: warnings come before."""
    found = _ENDS.findall(said)
    if not found:
        return None
    number = _WORDS[found[-1]]
    return OSError(number, os.strerror(number), path)


def _unknown(talk: Talk, code: int, said: str, what: str) -> SwerexException:
    words = " ".join(said.split())[-2000:] or f"exit code {code}"
    return ResourceError(f"{what} failed in {talk.place.backend.name}: {words}")
