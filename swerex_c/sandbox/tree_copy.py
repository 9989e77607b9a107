"""Copies of files and trees into and out of a sandbox, as streams.

They are not held in memory. The way depends on the sandbox:

    the sandbox has tar            tar -x, tar -c
    otherwise, bash alone          names and framed bytes, as in put_tree.bash and get.bash
    programs for that are missing  the engine's own copy, if the backend has one and nothing is mounted there

Uploads are unpacked beside the target first, and moved there when they are complete; only the engine's copy writes
into the target directly. Downloads use `Staging`, as uploads to the server do.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import secrets
import stat
import subprocess
import tarfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, BinaryIO

from swerex_c.exceptions import ProtocolError, ResourceError, SwerexException, UploadError
from swerex_c.files import tar
from swerex_c.files.local import Entry, open_regular, walk
from swerex_c.files.staging import RIGHTS, Staging
from swerex_c.files.writing import check_path, write_all
from swerex_c.sandbox.file_ops import FileScripts, Refused, failure, frames, in_place
from swerex_c.sandbox.loader_pool import lost

if TYPE_CHECKING:
    from swerex_c.sandbox.sandbox import Sandbox
    from swerex_c.utils.progress import Progress

__all__ = ["download", "upload", "write_by_archive"]

Write = Callable[[bytes], object]

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


class _Counter:
    """Reporter of copied bytes to a progress callback."""

    def __init__(self, progress: Progress | None, size: int | None) -> None:
        self._progress, self._size, self._done = progress, size, 0

    def add(self, count: int) -> None:
        self._done += count
        if self._progress is not None:
            self._progress(self._done if self._size is None else min(self._done, self._size), self._size)


# Into the sandbox


def upload(sandbox: Sandbox, source: str, target: str, progress: Progress | None = None) -> None:
    """Copy a local file or tree into the sandbox.

    The rules are those of `swerex_c.files.local.copy`.

    Args:
        progress: called in this thread with the number of bytes sent and the total.

    Raises:
        OSError: if the source cannot be read or the target cannot be written.
        UploadError: as `swerex_c.files.local.copy`.
        NotSupportedError: if the sandbox lacks programs that this needs.
        SandboxLostError: if the sandbox is gone.
    """
    check_path(source)
    check_path(target)
    status = os.stat(source)
    if stat.S_ISDIR(status.st_mode):
        _upload_tree(FileScripts(sandbox), source, str(PurePosixPath(target)), progress)
        return
    next(walk(source))  # refuses what is no regular file
    scripts = FileScripts(sandbox)
    by_chunks = scripts.has("chmod", "mkdir") or _of_the_kernel(source)
    if by_chunks or not _file_by_archive(scripts, source, target, progress):
        _put(scripts, source, target, progress)


def _of_the_kernel(path: str) -> bool:
    """Return whether a file contains more than its size says, as those in /proc do."""
    with open_regular(path) as file:
        return os.fstat(file.fileno()).st_size == 0 and bool(file.read(1))


def _put(scripts: FileScripts, source: str, target: str, progress: Progress | None) -> None:
    name = os.path.basename(os.path.normpath(source))
    with open_regular(source) as file:
        status = os.fstat(file.fileno())
        counter = _Counter(progress, status.st_size or None)
        raw = bool(status.st_size) and scripts.has("cat", "stat")  # the kernel's files have a size of 0
        pieces = _pieces(file, status.st_size if raw else None, counter)
        mode = f"{status.st_mode & RIGHTS:o}"
        words = (in_place(target), str(status.st_size) if raw else "", mode, name, secrets.token_hex(8))

        def produce(write: Write) -> None:
            for piece in pieces if raw else frames(pieces):
                write(piece)

        _feed(scripts, "put_file", words, produce, source, target)


def _pieces(file: BinaryIO, size: int | None, counter: _Counter) -> Iterator[bytes]:
    """Yield a file's contents, up to `size` bytes."""
    while data := file.read(_BLOCK if size is None else min(_BLOCK, size)):
        if size is not None:
            size -= len(data)
        yield data
        counter.add(len(data))


def _feed(
    scripts: FileScripts, script: str, words: Iterable[str], produce: Callable[[Write], None], source: str, target: str
) -> None:
    """Run a script with the input that `produce` writes, and raise the error that it reports.

    Input that the script does not read is dropped.
    """
    with scripts.start(script, *words) as running:
        try:
            with contextlib.suppress(BrokenPipeError):
                produce(running.write)
        except BaseException:
            # The script sees that its input is incomplete, and removes its partial results.
            running.close_input()
            with contextlib.suppress(SwerexException, TimeoutError):
                running.wait(_CLEAN_UP_SECONDS)
            raise
        running.close_input()
        code = running.wait()
        said = running.read(stderr=True)
    if code:
        raise _refusal(failure(scripts, code, said, target, f"Copying {source!r} to {target!r}"), source, target)


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


def _upload_tree(scripts: FileScripts, source: str, target: str, progress: Progress | None) -> None:
    tree = _Tree(source)
    what = f"Copying {source!r} to {target!r}"
    if not scripts.has("mkdir", "mv", "rm") and _tree_by_archive(scripts, tree, target, progress):
        return
    scripts.need(what, "mkdir", "mv", "rm")
    counter = _Counter(progress, tree.size)
    if scripts.has("tar"):
        produce = _tar_of(tree, counter)
    else:
        if any(stat.S_ISLNK(mode) for _, mode in tree.modes):
            scripts.need(what, "ln")
        if any(mode & 0o1111 for _, mode in tree.modes if stat.S_ISREG(mode)):
            scripts.need(what, "chmod")
        produce = _records_of(tree, counter)
    _feed(scripts, "put_tree", (in_place(target), secrets.token_hex(8), *tree.last_modes()), produce, source, target)


def _tar_of(tree: _Tree, counter: _Counter) -> Callable[[Write], None]:
    """Return a function that writes the archive for put_tree.bash: the tree below "it", and then "end"."""

    def produce(write: Write) -> None:
        with _packer(write, counter, (0, 0)) as packer:
            packer.make("it", 0o700)
            for entry in tree.entries():
                packer.add(entry, f"it/{entry.name}")
            packer.make("end", 0o700)

    return produce


def _packer(write: Write, counter: _Counter, owner: tuple[int, int], *, closed: bool = False) -> tar.Packer:
    """Return a packer for an archive in the format that every program reads, with names of any bytes.

    Args:
        owner: user ID and group ID of the files.
        closed: set directory modes at once, even if the owner then cannot create files in them.
    """

    def change(member: tarfile.TarInfo) -> None:
        member.uid, member.gid = owner
        member.uname = member.gname = ""
        member.mtime = max(0, int(member.mtime))
        if member.isdir() and not closed:
            member.mode |= 0o700  # put_tree.bash gives it the right one
        if member.isreg():
            counter.add(member.size)

    return tar.Packer(write, format=tarfile.GNU_FORMAT, change=change)


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
                    for piece in frames(_pieces(file, None, counter)):
                        write(piece)
        write(b"d\0end\x00700\0")

    return produce


# Into the sandbox by the engine's copy


class _EngineTarget:
    """A sandbox path, resolved for an engine that copies to it; see resolve_path.bash."""

    def __init__(self, scripts: FileScripts, path: str) -> None:
        """Resolve the path.

        Raises:
            Refused: with the reason "mounted" or "link" if the engine may not see the path.
        """
        code, out, said = scripts.ask("resolve_path", in_place(path))
        if code:
            raise failure(scripts, code, said, path, f"Copying to or from {path!r}")
        words = [os.fsdecode(word) for word in out.split(b"\0")[:-1]]
        self._scripts = scripts
        self.base, uid, gid, umask, self.kind = words[:5]
        self._owner = (int(uid), int(gid))
        self.umask = int(umask, 8)
        self.missing = words[5:]

    def copy_in(self, counter: _Counter, add: Callable[[tar.Packer, str], None]) -> None:
        """Have the engine unpack missing directories and what `add` puts below a name."""
        argv = self._scripts.sandbox.backend.archive_in(self.base)
        assert argv is not None
        with _client(self._scripts, argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
            assert process.stdin is not None
            with (
                contextlib.suppress(BrokenPipeError),
                _packer(process.stdin.write, counter, self._owner, closed=True) as packer,
            ):
                for count in range(1, len(self.missing)):
                    packer.make("/".join(self.missing[:count]), 0o777 & ~self.umask)
                add(packer, "/".join(self.missing))
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()

    def copy_out(self, staging: Staging, progress: Progress | None) -> None:
        """Have the engine write an archive, and unpack it."""
        path = os.path.join(self.base, *self.missing)
        argv = self._scripts.sandbox.backend.archive_out(path)
        assert argv is not None
        problem: SwerexException | None = None
        with _client(self._scripts, argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            stream = _Stream(process.stdout.read, _Counter(progress, None))
            try:
                root = os.path.basename(path) or "."
                tar.unpack(stream, staging, root=root, hard_links=True, file=self.kind == "file")
                stream.finish()
            except ProtocolError as error:
                problem = error  # a failure of the engine may be the cause
                process.stdout.close()
        if problem is not None:
            raise problem


def _engine_copies(scripts: FileScripts) -> bool:
    backend = scripts.sandbox.backend
    return backend.archive_in("/") is not None and backend.archive_out("/") is not None


def _engine_target(scripts: FileScripts, path: str) -> _EngineTarget | None:
    """Resolve a path for the engine's copy; None if the engine cannot copy there."""
    if not _engine_copies(scripts):
        return None
    try:
        return _EngineTarget(scripts, path)
    except Refused as error:
        if error.reason in ("mounted", "link"):
            return None
        raise _refusal(error, path, path) from None


def write_by_archive(scripts: FileScripts, path: str, data: bytes) -> bool:
    """Write a file whose missing directory no program can create.

    Returns:
        False if no directory is missing, or the engine cannot copy there.
    """
    to = _engine_target(scripts, path)
    if to is None or len(to.missing) < 2:
        return False
    mode = 0o666 & ~to.umask
    to.copy_in(_Counter(None, None), lambda packer, name: packer.make(name, mode, data))
    return True


def _file_by_archive(scripts: FileScripts, source: str, target: str, progress: Progress | None) -> bool:
    to = _engine_target(scripts, target)
    if to is not None and to.kind == "tree":
        target = os.path.join(target, os.path.basename(os.path.normpath(source)))
        to = _engine_target(scripts, target)
    if to is None or target.endswith("/"):  # the script reports a missing directory
        return False
    if to.kind == "tree":
        raise _refusal(Refused("directory", ""), source, target)
    root = next(walk(source))
    to.copy_in(_Counter(progress, root.status.st_size), lambda packer, name: packer.add(root, name))
    return True


def _tree_by_archive(scripts: FileScripts, tree: _Tree, target: str, progress: Progress | None) -> bool:
    to = _engine_target(scripts, target)
    if to is None:
        return False
    names = [name + "/" * stat.S_ISDIR(mode) for name, mode in tree.modes]
    code, present, said = scripts.ask("check_tree", in_place(target), *names)
    if code:
        error = failure(scripts, code, said, target, f"Copying {tree.path!r} to {target!r}")
        raise _refusal(error, tree.path, target)

    def add(packer: tar.Packer, root: str) -> None:
        kept = {name for (name, _), there in zip(tree.modes, present, strict=True) if there == ord("1")}
        if root:
            packer.make(root, tree.mode)
        for entry in tree.entries():
            if entry.name not in kept:
                packer.add(entry, os.path.join(root, entry.name))

    to.copy_in(_Counter(progress, tree.size), add)
    return True


@contextlib.contextmanager
def _client(scripts: FileScripts, argv: list[str], *, stdin: int, stdout: int) -> Iterator[subprocess.Popen[bytes]]:
    """Run a client of the engine that copies. It must succeed when the block ends; it is killed if the block fails."""
    backend = scripts.sandbox.backend
    with (
        open(os.memfd_create("swerex-copy"), "rb") as stderr,
        subprocess.Popen(
            argv, stdin=stdin, stdout=stdout, stderr=stderr, env=backend.environment(), start_new_session=True
        ) as process,
    ):
        try:
            yield process
        except BaseException:
            process.kill()
            if process.stdin is not None:
                with contextlib.suppress(OSError):
                    process.stdin.close()
            raise
        code = process.wait()
        said = " ".join(os.pread(stderr.fileno(), _LONGEST_WORD, 0).decode(errors="replace").split())
    if code:
        if gone := lost(backend):
            raise gone
        if "no space left" in said.lower():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        raise ResourceError(f"The engine could not copy to or from {backend.name}: {said or f'exit code {code}'}")


# Out of the sandbox


def download(sandbox: Sandbox, source: str, target: str, progress: Progress | None = None) -> None:
    """Copy a file or tree of the sandbox to this machine.

    The rules are those of `upload` in reverse. The target does not change until all data has arrived. Nothing outside
    the target is written, whatever the sandbox sends. A file with several names becomes several files.

    Args:
        progress: called in this thread with the number of bytes received.

    Raises:
        OSError: if the source cannot be read or the target cannot be written.
        UploadError: as `swerex_c.files.local.copy`.
        NotSupportedError: if the sandbox lacks programs that this needs.
        SandboxLostError: if the sandbox is gone.
        ProtocolError: if the sandbox sends data that its own programs do not send.
    """
    check_path(source)
    check_path(target)
    scripts = FileScripts(sandbox)
    with Staging(target) as staging:
        name = os.path.basename(os.path.normpath(source))
        way = "archive" if _engine_copies(scripts) else ""
        if not _get(scripts, source, way, staging, progress):
            if (found := _engine_target(scripts, source)) is not None:
                found.copy_out(staging, progress)
            else:
                _get(scripts, source, "", staging, progress)
        staging.commit(name, follow=False)


def _get(scripts: FileScripts, source: str, way: str, staging: Staging, progress: Progress | None) -> bool:
    """Fill the spool with get.bash; return False if the engine has to copy."""
    what = f"Copying {source!r}"
    with scripts.start("get", in_place(source), way) as running:
        running.close_input()
        stream = _Stream(running.read, _Counter(progress, None))
        problem: SwerexException | None = None
        kind = b""
        try:
            kind = stream.word()
            if kind == b"archive":
                return False
            if kind == b"tar":
                tar.unpack(stream, staging, hard_links=True)
                stream.finish()
            elif kind == b"bash":
                _receive_records(stream, staging, source)
            elif kind.startswith(b"file "):
                _receive_file(stream, staging, kind[5:])
            else:
                raise ProtocolError(f"The data from {scripts.sandbox.backend.name} is neither a file nor a tree")
        except ProtocolError as error:
            problem = error  # the failure of the script may be the cause
        try:
            code = running.wait(_END_SECONDS if problem else None)
        except TimeoutError:
            code = 0
        said = running.read(stderr=True) if problem is None or code else b""
    text = os.fsdecode(said)
    _report_ignored(source, text)
    if code == 1 and kind == b"tar" and problem is None and _tolerable(text):
        return True
    if code or "read error" in text:
        failed = failure(scripts, code, said, source, what)
        if isinstance(failed, Refused):
            there = os.path.join(source, failed.text.removeprefix("./")) if failed.text else source
            failed = UploadError(f"Cannot copy {there!r}: it is neither a file nor a directory nor a link")
        raise failed
    if problem is not None:
        raise problem
    return True


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
    """Reader of a script's or an engine's output, with lookahead."""

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


def _receive_records(stream: _Stream, staging: Staging, source: str) -> None:
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
