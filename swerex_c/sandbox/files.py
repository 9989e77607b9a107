"""Read, write and copy files of a sandbox, by the rules of `swerex_c.files.local`.

Relative paths are relative to the directory in which the sandbox starts programs. A refusal by the sandbox's system
raises `OSError` with `errno` and `filename`; a refusal by this package raises `UploadError`; an operation that needs a
missing program raises `NotSupportedError`. The functions run in the private event loop; what they do with files of this
machine, they do in threads.

Copies are streams, which are not held in memory: archives if the sandbox has tar, else records of names and framed
bytes, which bash alone reads and writes (put_tree.bash and get.bash). Uploads are unpacked beside the target first, and
moved there when they are complete; downloads use `Staging`, as uploads to the server do.

Every path in a script begins with "/." or "./", so that it is never taken for an option, nor for a name that is special
to bash, such as /dev/tcp/HOST/PORT. A script reports its own refusal as a record on standard error,
`NUL reason NUL text NUL`, with exit code 90. Any other failure leaves the message of bash or of the program there, in
English, ending with the system's error text.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import errno
import io
import locale
import logging
import os
import re
import secrets
import shlex
import stat
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, BinaryIO

from swerex_c.exceptions import NotSupportedError, ProtocolError, ResourceError, SwerexException, UploadError
from swerex_c.files import tar
from swerex_c.files.local import Entry, open_regular, too_long, walk
from swerex_c.files.staging import RIGHTS, Staging
from swerex_c.files.writing import check_path, write_all
from swerex_c.sandbox.loader import NO_INPUT, REUSABLE
from swerex_c.utils import background
from swerex_c.utils.shell_script import read_script
from swerex_c.utils.threads import in_thread

if TYPE_CHECKING:
    from swerex_c.sandbox.sandbox import RunningScript, Sandbox
    from swerex_c.utils.progress import Progress

__all__ = ["download", "failure", "find_programs", "read_text", "upload", "write_text"]

Write = Callable[[bytes], object]

_SCRIPTS = "sandbox/scripts/"

_PROGRAMS = ("cat", "chgrp", "chmod", "cp", "ln", "mkdir", "mv", "readlink", "rm", "stat", "tar")
"""Programs that the scripts use if the sandbox has them."""

_REFUSED = 90
"""Exit code of a script that reports its refusal as a record."""

_PIECE = 32 << 10
"""Maximum number of bytes in one frame."""

_WORD = 64 << 10
"""Number of bytes up to which a text travels with its script, which leaves the loader usable."""

_LARGE = 1 << 20
"""Number of bytes from which a text is decoded in a thread."""

_PROBE_SECONDS = 60.0

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

_TAR_NAMES = re.compile(r"^tar: (?:\./)?(?P<name>.+): Cannot [a-z]+: ", re.MULTILINE)

_BLOCK = 1 << 18

_END_SECONDS = 5.0
"""Seconds for a script to end after it has sent what it cannot have sent."""

_CLEAN_UP_SECONDS = 10.0
"""Seconds for a script to clean up after its input was cut off."""

_LONGEST_WORD = 64 << 10
_MOST_AFTER = 1 << 20
"""Maximum bytes after an archive's end: programs pad their last block."""

_TOLERATED = ("file changed as we read it", "file is unchanged", "Removing leading", "socket ignored")

_MOST_REPORTED = 100
"""Maximum number of lines to take from what a sandbox has left out."""

_logger = logging.getLogger("swerex_c.files")


# Text


async def read_text(
    sandbox: Sandbox, path: str, encoding: str | None = None, errors: str | None = None, limit: int | None = None
) -> str:
    """Return a file's text; every line ending becomes a newline.

    This is what `Path(path).read_text(encoding, errors)` does.

    Args:
        encoding: None means the encoding of this process's locale.
        errors: handling of bytes that do not decode; None raises UnicodeDecodeError.
        limit: maximum number of bytes to read; None means no limit.

    Raises:
        OSError: if the file cannot be read.
        ResourceError: if the file has more than `limit` bytes, or has no end.
        SandboxLostError: if the sandbox is gone.
    """
    check_path(path)
    io.TextIOWrapper(io.BytesIO(), encoding, errors)  # raises LookupError before the script starts
    pieces, size = [], 0
    async with await _start(sandbox, "read_file", in_place(path), kind=REUSABLE | NO_INPUT) as running:
        while piece := await running.read(1 << 20):
            pieces.append(piece)
            size += len(piece)
            if limit is not None and size > limit:
                raise too_long(path, limit)
        code = await running.wait()
        said = await running.read(stderr=True)
    if code or b"read error" in said:
        raise failure(sandbox, code, said, path, f"Reading {path!r}")

    def decode() -> str:
        with io.TextIOWrapper(io.BytesIO(b"".join(pieces)), encoding, errors) as file:
            return file.read()

    return decode() if size < _LARGE else await in_thread(decode)


async def write_text(sandbox: Sandbox, path: str, content: str) -> None:
    """Replace the text of a file with `content`.

    The text is written in the locale's encoding and with newlines unchanged. Missing parent directories are created. If
    the sandbox has mv, chmod and stat, readers see either the old text or the new one, and the old text stays if
    anything fails. Otherwise, and if the file cannot be replaced (it has several names, is a mount point, or has
    another owner), it is overwritten in place. An existing file keeps its mode and group; a link stays a link, and its
    target is written.

    Raises:
        OSError: if the file cannot be written.
        UnicodeEncodeError: if the locale's encoding cannot express the text.
        NotSupportedError: if directories are missing and the sandbox has no mkdir.
        SandboxLostError: if the sandbox is gone.
    """
    check_path(path)
    path = str(PurePosixPath(path))
    data = content.encode(codecs.lookup(locale.getpreferredencoding(False)).name)
    programs = await find_programs(sandbox)
    raw = "cat" in programs and "stat" in programs
    words = [in_place(path), str(len(data)) if raw else "", "", "", secrets.token_hex(8)]
    script = _text(programs, "put_file")
    if len(data) <= _WORD:
        answer = await sandbox.run(script, *words, os.fsdecode(_escaped(data)))
    else:
        answer = await sandbox.run(script, *words, input=data if raw else b"".join(_frames([data])))
    if answer.code:
        raise failure(sandbox, answer.code, answer.stderr, path, f"Writing {path!r}")


# Scripts


async def find_programs(sandbox: Sandbox) -> Mapping[str, tuple[str, ...]]:
    """Return the command lines of the programs that the scripts can use, by name. The sandbox is asked once."""
    if sandbox.programs is None:
        probe = read_script(_SCRIPTS + "probe_programs.bash")
        answer = await sandbox.run(probe, *_PROGRAMS, timeout=_PROBE_SECONDS)
        words = answer.stdout.split(b"\0")[:-1]
        found: dict[str, tuple[str, ...]] = {}
        for what, path in zip(words[::2], words[1::2], strict=False):
            name = os.fsdecode(what)
            applet = name.removeprefix("busybox ")
            found[applet] = (os.fsdecode(path),) if applet == name else (os.fsdecode(path), applet)
        sandbox.programs = found
    return sandbox.programs


def _text(programs: Mapping[str, tuple[str, ...]], script: str) -> str:
    prelude = "".join(f"{name}=({shlex.join(programs.get(name, ()))})\n" for name in _PROGRAMS)
    return prelude + read_script(f"{_SCRIPTS}{script}.bash")


async def _start(sandbox: Sandbox, script: str, *words: str, kind: int = 0) -> RunningScript:
    """Start the script with this name."""
    return await sandbox.start(_text(await find_programs(sandbox), script), *words, kind=kind)


async def _need(sandbox: Sandbox, what: str, *names: str) -> None:
    """Raise NotSupportedError if one of these programs is missing; `what` is the operation that needs them."""
    programs = await find_programs(sandbox)
    lacks = [name for name in names if name not in programs]
    if lacks:
        raise _lacking(sandbox, what, *lacks)


def _lacking(sandbox: Sandbox, what: str, *names: str) -> NotSupportedError:
    return NotSupportedError(
        f"{what} needs programs that {sandbox.backend.name} lacks: {', '.join(names)}. Install them there "
        "(busybox has them), or use a deployment with a server inside"
    )


def in_place(path: str) -> str:
    """Return a path as scripts name it.

    It is then never an option, nor a path for which bash opens a socket.
    """
    return f"/.{path}" if path.startswith("/") else f"./{path}"


def _escaped(data: bytes) -> bytes:
    """Escape bytes for %b of bash's printf, so that they have no NUL."""
    return data.replace(b"\\", b"\\\\").replace(b"\0", b"\\0000")


def _frames(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield bytes as frames for the function `take` of the scripts."""
    for piece in pieces:
        for start in range(0, len(piece), _PIECE):
            part = _escaped(piece[start : start + _PIECE])
            yield b"%d\n%s" % (len(part), part)
    yield b"0\n"


class Refused(Exception):
    """Refusal of a script to continue: the name of the reason, and the text that the reason concerns."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(reason, text)
        self.reason, self.text = reason, text


def failure(sandbox: Sandbox, code: int, stderr: bytes, path: str, what: str) -> Exception:
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
            return _lacking(sandbox, what, text)
        if reason == "above":
            return _system(text, os.path.dirname(path.rstrip("/")) or ".") or _unknown(sandbox, code, text, what)
        if reason == "short":
            return UploadError(f"{what} has failed: {path!r} changed during the copy, or its data was cut off")
        if reason.startswith("E"):
            number = getattr(errno, reason)
            return OSError(number, os.strerror(number), path)
        return Refused(reason, text)
    said = os.fsdecode(stderr)
    if named := _TAR_NAMES.search(said):
        path = os.path.join(path, named["name"])
    return _system(said, path) or _unknown(sandbox, code, said, what)


def _system(said: str, path: str) -> OSError | None:
    """Return the OSError for the system error that a message ends with. The last one counts: warnings come before."""
    found = _ENDS.findall(said)
    if not found:
        return None
    number = _WORDS[found[-1]]
    return OSError(number, os.strerror(number), path)


def _unknown(sandbox: Sandbox, code: int, said: str, what: str) -> SwerexException:
    words = " ".join(said.split())[-2000:] or f"exit code {code}"
    return ResourceError(f"{what} failed in {sandbox.backend.name}: {words}")


class _Counter:
    """Reporter of copied bytes to a progress callback."""

    def __init__(self, progress: Progress | None, size: int | None) -> None:
        self._progress, self._size, self._done = progress, size, 0

    def add(self, count: int) -> None:
        self._done += count
        if self._progress is not None:
            self._progress(self._done if self._size is None else min(self._done, self._size), self._size)


# Into the sandbox


async def upload(sandbox: Sandbox, source: str, target: str, progress: Progress | None = None) -> None:
    """Copy a local file or tree into the sandbox.

    The rules are those of `swerex_c.files.local.copy`.

    Args:
        progress: called in a thread with the number of bytes sent and the total.

    Raises:
        OSError: if the source cannot be read or the target cannot be written.
        UploadError: as `swerex_c.files.local.copy`.
        NotSupportedError: if the sandbox lacks programs that this needs.
        SandboxLostError: if the sandbox is gone.
    """
    check_path(source)
    check_path(target)
    status = (await in_thread(lambda: next(walk(source)))).status  # refuses a special file
    if stat.S_ISDIR(status.st_mode):
        await _upload_tree(sandbox, source, str(PurePosixPath(target)), progress)
        return
    programs = await find_programs(sandbox)
    raw = bool(status.st_size) and "cat" in programs and "stat" in programs  # the kernel's files have a size of 0
    size = status.st_size if raw else None
    counter = _Counter(progress, status.st_size or None)

    def produce(write: Write) -> None:
        with open_regular(source) as file:
            pieces = _pieces(file, size, counter)
            for piece in pieces if raw else _frames(pieces):
                write(piece)

    name = os.path.basename(os.path.normpath(source))
    words = ("" if size is None else str(size), f"{status.st_mode & RIGHTS:o}", name, secrets.token_hex(8))
    await _feed(sandbox, "put_file", (in_place(target), *words), produce, source, target)


def _pieces(file: BinaryIO, size: int | None, counter: _Counter) -> Iterator[bytes]:
    """Yield a file's contents, up to `size` bytes."""
    while data := file.read(_BLOCK if size is None else min(_BLOCK, size)):
        if size is not None:
            size -= len(data)
        yield data
        counter.add(len(data))


async def _feed(
    sandbox: Sandbox, script: str, words: Iterable[str], produce: Callable[[Write], None], source: str, target: str
) -> None:
    """Run a script with the input that `produce` writes in a thread, and raise the error that it reports.

    Input that the script does not read is dropped.
    """
    async with await _start(sandbox, script, *words) as running:

        def fill() -> None:
            with contextlib.suppress(BrokenPipeError):
                produce(lambda data: background.run_blocking(running.write(data)))

        try:
            await in_thread(fill)
        except Exception:
            # The script sees that its input is incomplete, and removes its partial results.
            await running.close_input()
            with contextlib.suppress(SwerexException, TimeoutError):
                async with asyncio.timeout(_CLEAN_UP_SECONDS):
                    await running.wait()
            raise
        await running.close_input()
        code = await running.wait()
        said = await running.read(stderr=True)
    if code:
        raise _refusal(failure(sandbox, code, said, target, f"Copying {source!r} to {target!r}"), source, target)


def _refusal(error: Exception, source: str, target: str) -> Exception:
    """Return the exception for a refusal that only copying can get."""
    if not isinstance(error, Refused):
        return error
    reason, text = error.reason, error.text
    kind, other = ("file", "directory") if reason == "directory" else ("directory", "file")
    if reason == "special":
        kind, other = "file", "special file"
    elif reason == "link":
        other = "link"
    if text.startswith(("./", "/./")):  # the target as a script names it
        target = text.removeprefix("./" if text.startswith("./") else "/.")
    elif text:
        source, target = os.path.join(source, text), os.path.join(target, text)
    return UploadError(f"Cannot copy the {kind} {source!r} to {target!r}: a {other} is there")


class _Tree:
    """Modes of the entries of a local tree, which its upload must know before it begins."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.modes: list[tuple[str, int]] = []  # path below the root, mode
        self.size = 0
        for entry in walk(path):
            if not entry.name:
                self.mode = entry.status.st_mode & RIGHTS
                continue
            self.modes.append((entry.name, entry.status.st_mode))
            if stat.S_ISREG(entry.status.st_mode):
                self.size += entry.status.st_size

    def entries(self) -> Iterator[Entry]:
        """Yield the entries below the root, for copying."""
        return (entry for entry in walk(self.path, report=False) if entry.name)

    def last_modes(self) -> Iterator[str]:
        """Yield the modes that directories get last, the deepest first."""
        for name, mode in reversed(self.modes):
            if stat.S_ISDIR(mode) and mode & 0o700 != 0o700:
                yield from (f"{mode & RIGHTS:o}", f"{name}/")
        yield from (f"{self.mode:o}", "")


async def _upload_tree(sandbox: Sandbox, source: str, target: str, progress: Progress | None) -> None:
    tree = await in_thread(_Tree, source)
    what = f"Copying {source!r} to {target!r}"
    await _need(sandbox, what, "mkdir", "mv", "rm")
    counter = _Counter(progress, tree.size)
    if "tar" in await find_programs(sandbox):
        produce = _tar_of(tree, counter)
    else:
        if any(stat.S_ISLNK(mode) for _, mode in tree.modes):
            await _need(sandbox, what, "ln")
        if any(mode & 0o1111 for _, mode in tree.modes if stat.S_ISREG(mode)):
            await _need(sandbox, what, "chmod")
        produce = _records_of(tree, counter)
    words = (in_place(target), secrets.token_hex(8), *tree.last_modes())
    await _feed(sandbox, "put_tree", words, produce, source, target)


def _tar_of(tree: _Tree, counter: _Counter) -> Callable[[Write], None]:
    """Return a function that writes the archive for put_tree.bash: the tree below "it", and then "end"."""

    def change(member: tarfile.TarInfo) -> None:
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        member.mtime = max(0, int(member.mtime))
        if member.isdir():
            member.mode |= 0o700  # put_tree.bash gives it the right one
        if member.isreg():
            counter.add(member.size)

    def produce(write: Write) -> None:
        with tar.Packer(write, format=tarfile.GNU_FORMAT, change=change) as packer:
            packer.make("it", 0o700)
            for entry in tree.entries():
                packer.add(entry, f"it/{entry.name}")
            packer.make("end", 0o700)

    return produce


def _records_of(tree: _Tree, counter: _Counter) -> Callable[[Write], None]:
    """Return a function that writes the records for put_tree.bash."""

    def produce(write: Write) -> None:
        write(b"d\0it\x00700\0")
        for entry in tree.entries():
            name, mode = os.fsencode(f"it/{entry.name}"), entry.status.st_mode
            if stat.S_ISDIR(mode):
                write(b"d\0%s\0%o\0" % (name, mode & RIGHTS | 0o700))
            elif stat.S_ISLNK(mode):
                write(b"l\0%s\0%s\0" % (name, os.fsencode(entry.link())))
            else:
                write(b"f\0%s\0%o\0" % (name, mode & RIGHTS))
                with entry.open() as file:
                    for piece in _frames(_pieces(file, None, counter)):
                        write(piece)
        write(b"d\0end\x00700\0")

    return produce


# Out of the sandbox


async def download(sandbox: Sandbox, source: str, target: str, progress: Progress | None = None) -> None:
    """Copy a file or tree of the sandbox to this machine.

    The rules are those of `upload` in reverse. The target does not change until all data has arrived. Nothing outside
    the target is written, whatever the sandbox sends. A file with several names becomes several files.

    Args:
        progress: called in a thread with the number of bytes received.

    Raises:
        OSError: if the source cannot be read or the target cannot be written.
        UploadError: as `swerex_c.files.local.copy`.
        NotSupportedError: if the sandbox lacks programs that this needs.
        SandboxLostError: if the sandbox is gone.
        ProtocolError: if the sandbox sends data that its own programs do not send.
    """
    check_path(source)
    check_path(target)
    async with await _start(sandbox, "get", in_place(source)) as running:
        await running.close_input()
        await in_thread(_receive, sandbox, running, source, target, progress)


def _receive(
    sandbox: Sandbox, running: RunningScript, source: str, target: str, progress: Progress | None
) -> None:
    """Write what get.bash sends. Blocks."""
    stream = _Stream(lambda size: background.run_blocking(running.read(size)), _Counter(progress, None))
    with Staging(target) as staging:
        problem: SwerexException | None = None
        kind = b""
        try:
            kind = stream.word()
            if kind == b"tar":
                tar.unpack(stream, staging, hard_links=True)
                stream.finish()
            elif kind == b"bash":
                _receive_records(stream, staging)
            elif kind.startswith(b"file "):
                _receive_file(stream, staging, kind[5:])
            else:
                raise ProtocolError(f"The data from {sandbox.backend.name} is neither a file nor a tree")
        except ProtocolError as error:
            problem = error  # the failure of the script may be the cause
        try:
            code = background.run_blocking(running.wait(), _END_SECONDS if problem else None)
        except TimeoutError:
            code = 0
        said = background.run_blocking(running.read(stderr=True)) if problem is None or code else b""
        text = os.fsdecode(said)
        _report_ignored(source, text)
        tolerable = code == 1 and kind == b"tar" and problem is None and _tolerable(text)
        if (code and not tolerable) or "read error" in text:
            failed = failure(sandbox, code, said, source, f"Copying {source!r}")
            if isinstance(failed, Refused):
                there = os.path.join(source, failed.text.removeprefix("./")) if failed.text else source
                failed = UploadError(f"Cannot copy {there!r}: it is neither a file nor a directory nor a link")
            raise failed
        if problem is not None:
            raise problem
        staging.commit(os.path.basename(os.path.normpath(source)), follow=False)


def _report_ignored(source: str, said: str) -> None:
    """Name in the log what tar, or get.bash, has left out of a tree."""
    for line in said.splitlines()[:_MOST_REPORTED]:
        if line.endswith(" ignored"):
            line = line if line.startswith("./") else line.partition(": ")[2]  # tar names itself, by any path
            name = line.rpartition(": ")[0].removeprefix("./")
            _logger.warning("%.200r is not copied: it is a special file", os.path.join(source, name))


def _tolerable(said: str) -> bool:
    """Return whether tar only reports concurrent changes to the files, which any copy may see without a report."""
    return all(any(words in line for words in _TOLERATED) for line in said.splitlines())


class _Stream:
    """Reader of a script's output, with lookahead."""

    def __init__(self, read: Callable[[int], bytes | None], counter: _Counter) -> None:
        self._source, self._counter = read, counter
        self._rest = b""

    def read(self, size: int) -> bytes:
        if not self._rest:
            data = self._source(min(size, _BLOCK)) or b""
            self._counter.add(len(data))
            return data
        data, self._rest = self._rest[:size], self._rest[size:]
        return data

    def word(self) -> bytes:
        """Return the bytes before the next NUL."""
        data = b""
        while b"\0" not in data:
            more = self._rest or self.read(4096)
            self._rest = b""
            if not more or len(data) > _LONGEST_WORD:
                raise ProtocolError("The data from the sandbox is incomplete")
            data += more
        word, _, self._rest = data.partition(b"\0")
        return word

    def exactly(self, size: int) -> bytes:
        """Return exactly `size` bytes."""
        parts = []
        while size:
            part = self.read(size)
            if not part:
                raise ProtocolError("The data from the sandbox is incomplete")
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def finish(self) -> None:
        """Read and discard the padding that an archiver writes after the end."""
        left = _MOST_AFTER
        while data := self.read(_BLOCK):
            left -= len(data)
            if left < 0:
                raise ProtocolError("The data from the sandbox continues after the end of its archive")


def _receive_file(stream: _Stream, staging: Staging, mode: bytes) -> None:
    with staging.file("", _mode(mode)) as fd:
        while data := stream.read(_BLOCK):
            write_all(fd, [data])


def _receive_records(stream: _Stream, staging: Staging) -> None:
    try:
        while (kind := stream.word()) != b"e":
            name = os.fsdecode(stream.word()).removeprefix(".").removeprefix("/")
            last = stream.word()
            if kind == b"d":
                staging.directory(name, _mode(last))
            elif kind == b"l" and name:
                staging.link(name, os.fsdecode(last))
            elif kind == b"f" and name:
                with staging.file(name, _mode(last)) as fd:
                    while size := int(stream.word()):
                        if not 0 < size <= _LONGEST_WORD + 1:
                            raise ValueError(size)
                        write_all(fd, [stream.exactly(size)])
            else:
                raise ProtocolError("The sandbox sent an entry that is neither a file nor a directory nor a link")
    except ValueError as error:
        if isinstance(error, SwerexException):
            raise
        raise ProtocolError(f"The data from the sandbox is not a tree of files: {error}") from None


def _mode(word: bytes) -> int:
    """Return the mode that a script reports; that of a new file if the sandbox cannot tell it."""
    if word in (b"x", b"-"):
        return (0o777 if word == b"x" else 0o666) & ~_umask()
    return int(word, 8) & 0o7777


def _umask() -> int:
    """Return the umask from /proc, because the system call would change it for all threads."""
    with contextlib.suppress(OSError), open("/proc/self/status") as status:
        for line in status:
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    return 0o022
