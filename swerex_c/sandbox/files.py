"""Read, write and copy files of a sandbox, by the rules of `swerex_c.files.local`.

Relative paths are relative to the directory in which the sandbox starts programs. An operation that needs a missing
program raises `NotSupportedError`. The functions run in the private event loop; what they do with files of this
machine, they do in threads. When the cancellation of a copy is raised, nothing writes any more.

Copies are streams, which are not held in memory. A file is copied by cat, else by bash alone, in frames. A tree is an
archive if the sandbox has tar, else records that bash alone reads and writes. Uploads are written beside the target
first, and moved there when they are complete (put_file.bash, put_tree.bash); downloads (get.bash) use `Staging`, as
uploads to the server do.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import io
import locale
import logging
import os
import secrets
import stat
import tarfile
from collections.abc import Awaitable, Callable, Iterable, Iterator
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, TypeVar

from swerex_c.exceptions import ProtocolError, SwerexException
from swerex_c.files import tar, writing
from swerex_c.files.local import Entry, open_regular, sized, too_long, walk
from swerex_c.files.staging import RIGHTS, Staging
from swerex_c.files.writing import check_path, write_all
from swerex_c.sandbox.file_scripts import escape, failure, frames, in_place, text
from swerex_c.sandbox.loader import NO_INPUT, REUSABLE
from swerex_c.utils import background
from swerex_c.utils.threads import in_thread, in_thread_settled

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

    from swerex_c.sandbox.sandbox import RunningScript, Sandbox
    from swerex_c.utils.progress import Progress

__all__ = ["download", "read_text", "upload", "write_text"]

Write = Callable[[bytes], object]
T = TypeVar("T")

_WORD = 64 << 10
"""Number of bytes up to which a text travels with its script, which leaves the loader usable."""

_LARGE = 1 << 20
"""Number of bytes from which a text is decoded in a thread."""

_BLOCK = 1 << 18
"""Bytes to read at once."""

_END_SECONDS = 5.0
"""Seconds for a script to end when what it sends is not read any more."""

_CLEAN_UP_SECONDS = 10.0
"""Seconds for a script to clean up after its input was cut off."""

_LONGEST_PIECE = (64 << 10) + 1
"""Maximum number of bytes of a name, or of a piece of a file, in a record."""

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
    """Return a file's text as `swerex_c.files.local.read_text` does."""
    check_path(path)
    io.TextIOWrapper(io.BytesIO(), encoding, errors)  # raises LookupError before the script starts
    pieces, size = [], 0
    async with await sandbox.start(text("read_file"), in_place(path), kind=REUSABLE | NO_INPUT) as running:
        await running.first()
        while piece := await _unless_silent(running, lambda: running.read(1 << 20), "sent", path):
            pieces.append(piece)
            size += len(piece)
            if limit is not None and size > limit:
                raise too_long(path, limit)
        code, said = await running.finish()
    if code or b"read error" in said:
        raise failure(sandbox, code, said, path, f"Reading {path!r}")

    def decode() -> str:
        with io.TextIOWrapper(io.BytesIO(b"".join(pieces)), encoding, errors) as file:
            return file.read()

    return decode() if size < _LARGE else await in_thread(decode)


async def write_text(sandbox: Sandbox, path: str, content: str) -> None:
    """Replace the text of a file as `swerex_c.files.local.write_text` does.

    If the sandbox lacks mv, chmod or stat, the file is overwritten in place.

    Raises:
        NotSupportedError: if directories are missing and the sandbox has no mkdir.
    """
    check_path(path)
    path = str(PurePosixPath(path))
    data = content.encode(codecs.lookup(locale.getpreferredencoding(False)).name)
    what = f"Writing {path!r}"
    if len(data) > _WORD:
        await _put_file(sandbox, [data], len(data), path, what)
        return
    words = (in_place(path), "", "", "", secrets.token_hex(8), os.fsdecode(escape(data)))
    async with await sandbox.start(text("put_file"), *words, kind=REUSABLE | NO_INPUT) as running:
        await running.first()
        answer = await _unless_silent(running, lambda: running.collect(b"", None), "accepted", path)
    if answer.code:
        raise failure(sandbox, answer.code, answer.stderr, path, what)


async def _unless_silent(running: RunningScript, work: Callable[[], Awaitable[T]], how: str, path: str) -> T:
    """Await what `work` returns, with a limit of time if the script said that it waits for a named pipe or terminal."""
    limit = asyncio.timeout(writing.STILL_SECONDS if running.note else None)
    try:
        async with limit:
            return await work()
    except TimeoutError:
        if not limit.expired():
            raise
        raise writing.silent(how, path) from None


# Into the sandbox


async def upload(sandbox: Sandbox, source: str, target: str, progress: Progress | None = None) -> None:
    """Copy a local file or tree into the sandbox as `swerex_c.files.local.copy` does.

    Args:
        progress: called in a thread with the number of bytes sent and the total.
    """
    check_path(source)
    check_path(target)
    mode, size, pieces = await in_thread(_survey, source)
    what = f"Copying {source!r} to {target!r}"
    if stat.S_ISDIR(mode):
        target = str(PurePosixPath(target))

        def pack(form: bytes, write: Write) -> None:
            _pack(source, _Archive(write) if form == b"tar\n" else _Records(write))

        await _feed(sandbox, "put_tree", (secrets.token_hex(8),), pack, target, what, progress, size)
    else:
        name = os.path.basename(os.path.normpath(source))
        await _put_file(sandbox, pieces, size, target, what, f"{mode & RIGHTS:o}", name, progress)


def _survey(source: str) -> tuple[int, int, Iterable[bytes]]:
    """Return the mode of a tree's root, the size of its files, and the contents if it is a file.

    What cannot be copied is refused, or named in the log.
    """
    entries = walk(source)
    root = next(entries)
    if stat.S_ISDIR(root.status.st_mode):
        size = sum(it.status.st_size for it in entries if stat.S_ISREG(it.status.st_mode))
        return root.status.st_mode, size, ()
    with root.open() as file:
        first, size = sized(file, root.status.st_size)
    return root.status.st_mode, size, [first] if len(first) == size else _contents(source, size)


def _contents(source: str, size: int) -> Iterator[bytes]:
    """Yield a file's bytes, up to `size` of them."""
    with open_regular(source) as file:
        while data := file.read(min(_BLOCK, size)):
            size -= len(data)
            yield data


async def _put_file(
    sandbox: Sandbox,
    pieces: Iterable[bytes],
    size: int,
    target: str,
    what: str,
    mode: str = "",
    name: str = "",
    progress: Progress | None = None,
) -> None:
    """Write a file that consists of these pieces; `mode` and `name` are those of put_file.bash."""
    words = (str(size), mode, name, secrets.token_hex(8))

    def produce(form: bytes, write: Write) -> None:
        for piece in pieces if form == b"plain\n" else frames(pieces):
            write(piece)

    await _feed(sandbox, "put_file", words, produce, target, what, progress, size)


async def _feed(
    sandbox: Sandbox,
    script: str,
    words: Iterable[str],
    produce: Callable[[bytes, Write], None],
    target: str,
    what: str,
    progress: Progress | None,
    size: int,
) -> None:
    """Run a script with the input that `produce` writes in a thread, and raise the error that it reports.

    `produce` gets the line in which the script names the format that it reads; a script that refuses the copy has none.
    If `produce` fails, or this is cancelled, the script sees that its input is incomplete, and removes what it wrote.
    """
    async with await sandbox.start(text(script), in_place(target), *words) as running:
        done, form = 0, await running.read_line()
        running.drop_output()

        def write(data: bytes) -> None:
            nonlocal done
            background.run_blocking(_unless_silent(running, lambda: running.write(data), "accepted", target))
            done += len(data)
            if progress is not None:
                progress(min(done, size), size)

        def fill() -> None:
            with contextlib.suppress(BrokenPipeError):
                if form:
                    produce(form, write)

        try:
            await in_thread_settled(_CLEAN_UP_SECONDS, fill)
        except BaseException:
            with contextlib.suppress(SwerexException, TimeoutError):
                async with asyncio.timeout(0 if running.note else _CLEAN_UP_SECONDS):
                    await running.close_input()
                    await running.wait()
            raise
        await running.close_input()
        code, said = await _unless_silent(running, running.finish, "accepted", target)
    if code:
        raise failure(sandbox, code, said, target, what)


class _Archive(tar.Packer):
    """Archive for put_tree.bash, as tar of any kind reads it."""

    format = tarfile.GNU_FORMAT

    def _begin(self, member: tarfile.TarInfo) -> None:
        member.mtime = max(0, int(member.mtime))
        if member.isdir():
            member.mode |= 0o700  # put_tree.bash gives it the right one
        super()._begin(member)


class _Records(tar.Packer):
    """Records for put_tree.bash where there is no tar."""

    end = b""

    def add(self, entry: Entry, name: str) -> None:
        mode = entry.status.st_mode
        if stat.S_ISDIR(mode):
            self._record(b"d", name, b"%o" % (mode & RIGHTS | 0o700))
        elif stat.S_ISLNK(mode):
            self._record(b"l", name, os.fsencode(entry.link()))
        else:
            with entry.open() as file:
                self._record(b"f", name, b"%o" % (mode & RIGHTS), frames(iter(lambda: file.read(_BLOCK), b"")))

    def make(self, name: str, mode: int, data: bytes) -> None:
        self._record(b"f", name, b"%o" % mode, frames([data]))

    def _record(self, kind: bytes, name: str, last: bytes, contents: Iterable[bytes] = ()) -> None:
        self._put(b"%s\0%s\0%s\0" % (kind, os.fsencode(name), last))
        for frame in contents:
            self._put(frame)


def _pack(source: str, packer: tar.Packer) -> None:
    """Write a tree for put_tree.bash: the tree below "it", and then "end", with the modes that directories get last."""
    modes: list[str] = []
    with packer:
        for entry in walk(source, report=False):
            mode = entry.status.st_mode
            if stat.S_ISDIR(mode) and (mode & 0o700 != 0o700 or not entry.name):
                modes += [os.path.join(entry.name, ""), f"{mode & RIGHTS:o}"]
            packer.add(entry, f"it/{entry.name}")
        packer.make("end", 0o600, b"".join(os.fsencode(word) + b"\0" for word in reversed(modes)))  # deepest first


# Out of the sandbox


async def download(sandbox: Sandbox, source: str, target: str, progress: Progress | None = None) -> None:
    """Copy a file or tree of the sandbox to this machine as `swerex_c.files.local.copy` does.

    The target does not change until all data has arrived. Nothing outside the target is written, whatever the sandbox
    sends. A file with several names becomes several files.

    Args:
        progress: called in a thread with the number of bytes received.

    Raises:
        ProtocolError: if the sandbox sends data that its own programs do not send.
    """
    check_path(source)
    check_path(target)
    async with await sandbox.start(text("get"), in_place(source)) as running:
        await running.close_input()
        await in_thread_settled(_CLEAN_UP_SECONDS, _receive, sandbox, running, source, target, progress)


class _Output(io.RawIOBase):
    """Output of a script, for reading in a thread."""

    def __init__(self, running: RunningScript, progress: Progress | None) -> None:
        self._running, self._progress, self._done = running, progress, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        into = memoryview(buffer)
        data = background.run_blocking(self._running.read(len(into)))
        into[: len(data)] = data
        self._done += len(data)
        if self._progress is not None:
            self._progress(self._done, None)
        return len(data)


def _receive(sandbox: Sandbox, running: RunningScript, source: str, target: str, progress: Progress | None) -> None:
    """Write what get.bash sends. Blocks."""
    stream = io.BufferedReader(_Output(running, progress), _BLOCK)
    with Staging(target) as staging:
        problem: SwerexException | None = None
        head = b""
        try:
            head = stream.readline(_LONGEST_PIECE)
            if head == b"tar\n":
                tar.unpack(stream, staging, hard_links=True)
                if len(stream.read(_MOST_AFTER + 1)) > _MOST_AFTER:
                    raise ProtocolError("The data from the sandbox continues after the end of its archive")
            else:
                _receive_plain(head, stream, staging)
        except ProtocolError as error:
            problem = error  # the failure of the script may be the cause
        try:
            code, said = background.run_blocking(running.finish(), _END_SECONDS if problem else None)
        except TimeoutError:
            code, said = 0, b""
        told = os.fsdecode(said)
        _report_ignored(source, told)
        # tar may only report concurrent changes to the files, which any copy may see without a report.
        only_changes = all(any(words in line for words in _TOLERATED) for line in told.splitlines())
        tolerable = code == 1 and head == b"tar\n" and problem is None and only_changes
        if (code and not tolerable) or "read error" in told:
            raise failure(sandbox, code, said, source, f"Copying {source!r}")
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


def _receive_plain(head: bytes, stream: io.BufferedReader[_Output], staging: Staging) -> None:
    """Write a file, or the records of a tree, as get.bash sends them without tar."""

    def exactly(size: bytes) -> bytes:
        data = stream.read(int(size)) if 0 <= int(size) <= _LONGEST_PIECE else b""
        if len(data) != int(size):
            raise ValueError("it is incomplete")
        return data

    def record(line: bytes) -> None:
        kind, mode, length, *more = line.split()
        name = os.fsdecode(exactly(length)).removeprefix(".").removeprefix("/")
        if kind == b"d":
            staging.directory(name, _mode(mode))
        elif kind == b"l" and name:
            (length,) = more
            staging.link(name, os.fsdecode(exactly(length)))
        elif kind == b"f" and name:
            with staging.file(name, _mode(mode)) as fd:
                while data := exactly(stream.readline(_LONGEST_PIECE)):
                    write_all(fd, [data])
        else:
            raise ValueError("an entry is neither a file nor a directory nor a link")

    try:
        if head == b"tree\n":
            while (line := stream.readline(_LONGEST_PIECE)) != b"end\n":
                record(line)
        else:
            _, mode = head.split()
            with staging.file("", _mode(mode)) as fd:
                while data := stream.read1(_BLOCK):
                    write_all(fd, [data])
    except ValueError as error:
        if isinstance(error, SwerexException):
            raise
        raise ProtocolError(f"The data from the sandbox is neither a file nor a tree: {error}") from None


def _mode(word: bytes) -> int | None:
    """Return the mode that get.bash reports; None, which is that of a new file, if the sandbox cannot tell it."""
    return None if word == b"-" else int(word, 8)
