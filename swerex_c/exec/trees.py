"""Copying files and trees into a place and out of it, through streams: they are never whole in memory.

    program tar in the place       tar -x, tar -c
    else bash alone                names and framed bytes, as `file_scripts` have them
    where that lacks programs      the engine's own copying, if the backend has one and nothing is mounted there

Into the place: what comes is unpacked beside the target first, and moved there when it is whole; only the engine's
copying writes into the target at once. Out of it: as the server's uploads, by `Spool`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import subprocess
import tarfile
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import PurePosixPath
from typing import IO, TYPE_CHECKING, BinaryIO

from swerex_c.exceptions import ProtocolError, ResourceError, SwerexException, UploadError
from swerex_c.exec import file_scripts
from swerex_c.exec.file_talk import Refused, Talk, failure, frames, in_place, random
from swerex_c.exec.shells import lost
from swerex_c.runtime import _tars
from swerex_c.runtime._spool import Spool
from swerex_c.runtime.files import check_path, entries_of, refuse_special

if TYPE_CHECKING:
    from swerex_c.exec.place import Place
    from swerex_c.utils.progress import Progress

__all__ = ["download", "upload", "write_by_archive"]

Write = Callable[[bytes], object]

_BLOCK = 1 << 18
_END_SECONDS = 5.0
_LONGEST_WORD = 64 << 10
_MOST_AFTER = 1 << 20
"""Bytes that may come after an archive's end: programs fill up their last block."""

_TOLERATED = ("file changed as we read it", "file is unchanged", "Removing leading")


class _Counter:
    """Tells how far it is."""

    def __init__(self, progress: Progress | None, size: int | None) -> None:
        self._progress, self._size, self._done = progress, size, 0

    def add(self, count: int) -> None:
        self._done += count
        if self._progress is not None:
            self._progress(self._done if self._size is None else min(self._done, self._size), self._size)


# Into the place


def upload(place: Place, source: str, target: str, progress: Progress | None = None) -> None:
    """Copy a file or a tree of this machine into the place, by the rules of `runtime.files.upload`.

    Args:
        progress: called in this thread with the bytes that were sent and how many there will be.

    Raises:
        OSError: if it cannot be read here or written there.
        UploadError: as `runtime.files.upload`.
        NotSupportedError: if programs that this needs are missing in the place.
        PlaceLostError: if the place is gone.
    """
    check_path(source)
    check_path(target)
    status = os.stat(source)
    if stat.S_ISDIR(status.st_mode):
        _upload_tree(Talk(place), source, str(PurePosixPath(target)), progress)
        return
    refuse_special(source, status)
    talk = Talk(place)
    if talk.has("chmod", "mkdir") or _of_the_kernel(source) or not _file_by_archive(talk, source, target, progress):
        _put(talk, source, target, progress)


def _of_the_kernel(path: str) -> bool:
    """Whether a file has more in it than its size says, as those in /proc."""
    with open(path, "rb", buffering=0) as file:
        return os.fstat(file.fileno()).st_size == 0 and bool(file.read(1))


def _put(talk: Talk, source: str, target: str, progress: Progress | None) -> None:
    name = os.path.basename(os.path.normpath(source))
    with open(source, "rb", buffering=0) as file:
        status = os.fstat(file.fileno())
        counter = _Counter(progress, status.st_size or None)
        raw = bool(status.st_size) and talk.has("cat", "stat")  # the kernel's files have a size of 0
        pieces = _pieces(file, status.st_size if raw else None, counter)
        mode = f"{stat.S_IMODE(status.st_mode):o}"
        words = (in_place(target), str(status.st_size) if raw else "", mode, name, random())

        def produce(write: Write) -> None:
            for piece in pieces if raw else frames(pieces):
                write(piece)

        _feed(talk, file_scripts.PUT, words, produce, source, target)


def _pieces(file: BinaryIO, size: int | None, counter: _Counter) -> Iterator[bytes]:
    """What is in a file, up to `size` bytes."""
    while data := file.read(_BLOCK if size is None else min(_BLOCK, size)):
        if size is not None:
            size -= len(data)
        yield data
        counter.add(len(data))


def _feed(
    talk: Talk, script: str, words: Iterable[str], produce: Callable[[Write], None], source: str, target: str
) -> None:
    """Run a script on an input, and raise what it says."""
    with talk.start(script, *words) as running:
        talk.give(running, produce)
        code = running.wait()
        said = running.stderr.read()
    if code:
        raise _refusal(failure(talk, code, said, target, f"Copying {source!r} to {target!r}"), source, target)


def _refusal(error: Exception, source: str, target: str) -> Exception:
    """The words for what only copying can be refused for."""
    if not isinstance(error, Refused):
        return error
    reason, text = error.reason, error.text
    kind, other = ("file", "directory") if reason == "directory" else ("directory", "file")
    if reason == "special":
        kind, other = "file", "special file"
    if text.startswith(("./", "/./")):  # the target as a script calls it
        target = text.removeprefix("./" if text.startswith("./") else "/.")
    elif text:
        source, target = os.path.join(source, text), os.path.join(target, text)
    return UploadError(f"Cannot copy the {kind} {source!r} to {target!r}: a {other} is there")


class _Tree:
    """What is in a tree of this machine, looked at once."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.mode = stat.S_IMODE(os.stat(path).st_mode)
        self.entries: list[tuple[str, str, os.stat_result]] = []  # path, path below the root, status
        self.size = 0
        for entry, relative in entries_of(path):
            status = entry.stat(follow_symlinks=False)
            refuse_special(entry.path, status)
            self.entries.append((entry.path, relative, status))
            if stat.S_ISREG(status.st_mode):
                self.size += status.st_size

    def last_modes(self) -> Iterator[str]:
        """The modes that directories get last, as words of TREE_END: the deepest first."""
        for _, relative, status in reversed(self.entries):
            if stat.S_ISDIR(status.st_mode) and stat.S_IMODE(status.st_mode) & 0o700 != 0o700:
                yield from (f"{stat.S_IMODE(status.st_mode):o}", f"{relative}/")
        yield from (f"{self.mode:o}", "")


def _upload_tree(talk: Talk, source: str, target: str, progress: Progress | None) -> None:
    tree = _Tree(source)
    what = f"Copying {source!r} to {target!r}"
    if not talk.has("mkdir", "mv", "rm") and _tree_by_archive(talk, tree, target, progress):
        return
    talk.need(what, "mkdir", "mv", "rm")
    counter = _Counter(progress, tree.size)
    if talk.has("tar"):
        fill, produce = file_scripts.FILL_BY_TAR, _tar_of(tree, counter)
    else:
        if any(stat.S_ISLNK(status.st_mode) for _, _, status in tree.entries):
            talk.need(what, "ln")
        if any(stat.S_IMODE(status.st_mode) & 0o7111 for _, _, status in tree.entries if stat.S_ISREG(status.st_mode)):
            talk.need(what, "chmod")
        fill, produce = file_scripts.FILL_BY_BASH, _records_of(tree, counter)
    script = file_scripts.TREE_BEGIN + fill + file_scripts.TREE_END
    _feed(talk, script, (in_place(target), random(), *tree.last_modes()), produce, source, target)


def _tar_of(tree: _Tree, counter: _Counter) -> Callable[[Write], None]:
    """Writes the archive for FILL_BY_TAR: the tree below "it", and then "end"."""

    def produce(write: Write) -> None:
        with _packer(write, counter, (0, 0)) as packer:
            packer.make("it", 0o700)
            for path, relative, _ in tree.entries:
                packer.add(path, f"it/{relative}")
            packer.make("end", 0o700)

    return produce


def _packer(write: Write, counter: _Counter, owner: tuple[int, int], *, closed: bool = False) -> _tars.Packer:
    """An archive of the format that every program reads, with names of any bytes.

    Args:
        owner: numbers of the user and the group whose the files are to be.
        closed: directories get their mode at once, whether or not the owner can then put something into them.
    """

    def change(member: tarfile.TarInfo) -> None:
        member.uid, member.gid = owner
        member.uname = member.gname = ""
        member.mtime = max(0, int(member.mtime))
        if member.isdir() and not closed:
            member.mode |= 0o700  # TREE_END gives it the right one
        if member.isreg():
            counter.add(member.size)

    return _tars.Packer(write, format=tarfile.GNU_FORMAT, change=change)


def _records_of(tree: _Tree, counter: _Counter) -> Callable[[Write], None]:
    """Writes what FILL_BY_BASH reads."""

    def produce(write: Write) -> None:
        write(b"d\0it\x00700\0")
        for path, relative, status in tree.entries:
            name, mode = os.fsencode(f"it/{relative}"), stat.S_IMODE(status.st_mode)
            if stat.S_ISDIR(status.st_mode):
                write(b"d\0%s\0%o\0" % (name, mode | 0o700))
            elif stat.S_ISLNK(status.st_mode):
                write(b"l\0%s\0%s\0" % (name, os.fsencode(os.readlink(path))))
            else:
                write(b"f\0%s\0%o\0" % (name, mode))
                with open(path, "rb", buffering=0) as file:
                    for piece in frames(_pieces(file, None, counter)):
                        write(piece)
        write(b"d\0end\x00700\0")

    return produce


# Into the place by the engine's copying


class _Here:
    """Where a path of the place leads, for an engine that copies there; see the script HERE."""

    def __init__(self, talk: Talk, path: str) -> None:
        """Raises `Refused` with the reason "mounted" where the engine may not see it."""
        code, out, said = talk.ask(file_scripts.HERE, in_place(path))
        if code:
            raise failure(talk, code, said, path, f"Copying to or from {path!r}")
        words = [os.fsdecode(word) for word in out.split(b"\0")[:-1]]
        self.base, uid, gid, umask, kind = words[:5]
        self.owner = (int(uid), int(gid))
        self.directory_mode = 0o777 & ~int(umask, 8)
        self.file_mode = 0o666 & ~int(umask, 8)
        self.kind = kind
        self.missing = words[5:]

    def directories(self, packer: _tars.Packer, names: list[str]) -> str:
        """Makes those below the base; what the names of their contents begin with."""
        for count in range(1, len(names) + 1):
            packer.make("/".join(names[:count]), self.directory_mode)
        return "".join(f"{name}/" for name in names)


def _engine_copies(talk: Talk) -> bool:
    backend = talk.place.backend
    return backend.archive_in("/") is not None and backend.archive_out("/") is not None


def _here(talk: Talk, path: str) -> _Here | None:
    """None where the engine cannot copy."""
    if not _engine_copies(talk):
        return None
    try:
        return _Here(talk, path)
    except Refused as error:
        if error.reason in ("mounted", "link"):
            return None
        raise _refusal(error, path, path) from None


def write_by_archive(talk: Talk, path: str, data: bytes) -> bool:
    """Write a file whose directory is missing, and that no program can make. False: that is not so, or not possible."""
    here = _here(talk, path)
    if here is None or len(here.missing) < 2:
        return False

    def produce(write: Write) -> None:
        with _packer(write, _Counter(None, None), here.owner, closed=True) as packer:
            above = here.directories(packer, here.missing[:-1])
            packer.make(above + here.missing[-1], here.file_mode, data)

    _copy_in(talk, here.base, produce)
    return True


def _file_by_archive(talk: Talk, source: str, target: str, progress: Progress | None) -> bool:
    here = _here(talk, target)
    if here is not None and here.kind == "tree":
        target = os.path.join(target, os.path.basename(os.path.normpath(source)))
        here = _here(talk, target)
    if here is None or target.endswith("/"):  # the script has the words for a directory that is missing
        return False
    if here.kind == "tree":
        raise _refusal(Refused("directory", ""), source, target)

    def produce(write: Write) -> None:
        with _packer(write, _Counter(progress, os.stat(source).st_size), here.owner) as packer:
            above = here.directories(packer, here.missing[:-1])
            packer.add(os.path.realpath(source), above + here.missing[-1])

    _copy_in(talk, here.base, produce)
    return True


def _present(talk: Talk, target: str, names: Iterable[str], source: str) -> bytes:
    code, out, said = talk.ask(file_scripts.DIRECT, in_place(target), *names)
    if code:
        error = failure(talk, code, said, target, f"Copying {source!r} to {target!r}")
        raise _refusal(error, source, target)
    return out


def _tree_by_archive(talk: Talk, tree: _Tree, target: str, progress: Progress | None) -> bool:
    here = _here(talk, target)
    if here is None:
        return False
    names = [relative + "/" * stat.S_ISDIR(status.st_mode) for _, relative, status in tree.entries]
    present = _present(talk, target, names, tree.path)

    def produce(write: Write) -> None:
        with _packer(write, _Counter(progress, tree.size), here.owner, closed=True) as packer:
            above = here.directories(packer, here.missing[:-1])
            if here.missing:
                packer.make(above + here.missing[-1], tree.mode)
                above += here.missing[-1] + "/"
            for (path, relative, _), there in zip(tree.entries, present, strict=True):
                if there != ord("1"):
                    packer.add(path, above + relative)

    _copy_in(talk, here.base, produce)
    return True


def _copy_in(talk: Talk, directory: str, produce: Callable[[Write], None]) -> None:
    argv = talk.place.backend.archive_in(directory)
    assert argv is not None
    with _client(talk, argv, subprocess.PIPE, subprocess.DEVNULL) as process:
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            produce(process.stdin.write)
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()


@contextlib.contextmanager
def _client(talk: Talk, argv: list[str], stdin: int, stdout: int) -> Iterator[subprocess.Popen[bytes]]:
    """A client of the engine that copies. It has to end well when the block has; it is killed if the block fails."""
    backend = talk.place.backend
    process = subprocess.Popen(
        argv, stdin=stdin, stdout=stdout, stderr=subprocess.PIPE, env=backend.environment(), start_new_session=True
    )
    said: list[bytes] = []
    assert process.stderr is not None
    listener = threading.Thread(target=_listen, args=(process.stderr, said), daemon=True)
    listener.start()
    try:
        yield process
        code = process.wait()
    except BaseException:
        process.kill()
        process.wait()
        raise
    finally:
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        listener.join(1)
    if code:
        raise lost(backend) or _engine_failure(backend.name, b"".join(said), code)


def _listen(stream: IO[bytes], said: list[bytes]) -> None:
    with stream:
        while data := stream.read(4096):
            said.append(data)
            del said[:-16]


def _engine_failure(name: str, said: bytes, code: int) -> Exception:
    words = " ".join(said.decode(errors="replace").split()) or f"exit code {code}"
    if "no space left" in words.lower():
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return ResourceError(f"The engine could not copy to or from {name}: {words}")


# Out of the place


def download(place: Place, source: str, target: str, progress: Progress | None = None) -> None:
    """Copy a file or a tree of the place to this machine, by the rules of `upload` the other way round.

    The target is as it was until all has come. Whatever the place sends, nothing outside of the target is written. A
    file with several names becomes several files.

    Args:
        progress: called in this thread with the bytes that came.

    Raises:
        OSError: if it cannot be read there or written here.
        UploadError: as `runtime.files.upload`.
        NotSupportedError: if programs that this needs are missing in the place.
        PlaceLostError: if the place is gone.
        ProtocolError: if the place sends something that its own programs do not send.
    """
    check_path(source)
    check_path(target)
    talk = Talk(place)
    with Spool(target) as spool:
        name = os.path.basename(os.path.normpath(source))
        way = "archive" if _engine_copies(talk) else ""
        if not _get(talk, source, way, spool, progress):
            here = _here(talk, source)
            if here is not None:
                _copy_out(talk, here, spool, progress)
            else:
                _get(talk, source, "", spool, progress)
        spool.place(None if os.path.isdir(spool.root) else name)


def _get(talk: Talk, source: str, way: str, spool: Spool, progress: Progress | None) -> bool:
    """Fill the spool by the script GET; False if the engine has to."""
    what = f"Copying {source!r}"
    with talk.start(file_scripts.GET, in_place(source), way) as running:
        running.close_input()
        stream = _Stream(running.stdout.read, _Counter(progress, None))
        problem: SwerexException | None = None
        kind = b""
        try:
            kind = stream.word()
            if kind == b"archive":
                return False
            if kind == b"tar":
                _tars.unpack(stream, spool, hard_links=True)
                stream.finish()
            elif kind == b"bash":
                _receive_records(stream, spool, source)
            elif kind.startswith(b"file "):
                _receive_file(stream, spool, kind[5:])
            else:
                raise ProtocolError(f"What {talk.place.backend.name} sends is no file")
        except ProtocolError as error:
            problem = error  # the reason may be that the script failed
        try:
            code = running.wait(_END_SECONDS if problem else None)
        except TimeoutError:
            code = 0
        said = running.stderr.read() if problem is None or code else b""
    text = os.fsdecode(said)
    if "socket ignored" in text:
        raise UploadError(f"Cannot copy {source!r}: a socket is in it: {' '.join(text.split())[:500]}")
    if code == 1 and kind == b"tar" and problem is None and _tolerable(text):
        return True
    if code or "read error" in text:
        failed = failure(talk, code, said, source, what)
        if isinstance(failed, Refused):
            there = os.path.join(source, failed.text.removeprefix("./")) if failed.text else source
            failed = UploadError(f"Cannot copy {there!r}: it is neither a file nor a directory nor a link")
        raise failed
    if problem is not None:
        raise problem
    return True


def _tolerable(said: str) -> bool:
    """Whether tar only says that somebody else works on the files, as whoever copies may see without being told."""
    return all(any(words in line for words in _TOLERATED) for line in said.splitlines())


class _Stream:
    """What comes from a script or an engine, as a file with the beginning looked at."""

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
        """What comes before the next NUL."""
        data = b""
        while b"\0" not in data:
            more = self._rest or self.read(4096)
            self._rest = b""
            if not more or len(data) > _LONGEST_WORD:
                raise ProtocolError("What comes from the place breaks off")
            data += more
        word, _, self._rest = data.partition(b"\0")
        return word

    def exactly(self, size: int) -> bytes:
        """So many bytes."""
        parts = []
        while size:
            part = self.read(size)
            if not part:
                raise ProtocolError("What comes from the place breaks off")
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def finish(self) -> None:
        """Reads what an archiver writes after the end."""
        left = _MOST_AFTER
        while data := self.read(_BLOCK):
            left -= len(data)
            if left < 0:
                raise ProtocolError("A tree does not end where it should")


def _receive_file(stream: _Stream, spool: Spool, mode: bytes) -> None:
    with spool.file("", _mode(mode)) as file:
        while data := stream.read(_BLOCK):
            _tars.write_all(file.fileno(), [data])


def _receive_records(stream: _Stream, spool: Spool, source: str) -> None:
    try:
        while (kind := stream.word()) != b"e":
            name = os.fsdecode(stream.word()).removeprefix(".").removeprefix("/")
            last = stream.word()
            if kind == b"d":
                spool.directory(name, _mode(last))
            elif kind == b"l" and name:
                spool.link(name, os.fsdecode(last))
            elif kind == b"f" and name:
                with spool.file(name, _mode(last)) as file:
                    while size := int(stream.word()):
                        if not 0 < size <= _LONGEST_WORD + 1:
                            raise ValueError(size)
                        _tars.write_all(file.fileno(), [stream.exactly(size)])
            else:
                raise ProtocolError("A tree has something in it that is no file")
    except ValueError as error:
        if isinstance(error, SwerexException):
            raise
        raise ProtocolError(f"What came is not a tree of files: {error}") from None


def _mode(word: bytes) -> int:
    """A mode as a script tells it; as that of a new file where it cannot be learned there."""
    if word in (b"x", b"-"):
        return (0o777 if word == b"x" else 0o666) & ~_umask()
    return int(word, 8) & 0o7777


def _umask() -> int:
    """Read where it is told, because asking for it means changing it for all threads."""
    with contextlib.suppress(OSError), open("/proc/self/status") as status:
        for line in status:
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    return 0o022


def _copy_out(talk: Talk, here: _Here, spool: Spool, progress: Progress | None) -> None:
    path = os.path.join(here.base, *here.missing)
    argv = talk.place.backend.archive_out(path)
    assert argv is not None
    with _client(talk, argv, subprocess.DEVNULL, subprocess.PIPE) as process:
        assert process.stdout is not None
        stream = _Stream(process.stdout.read, _Counter(progress, None))
        problem: SwerexException | None = None
        try:
            _tars.unpack(stream, spool, root=os.path.basename(path) or ".", hard_links=True, file=here.kind == "file")
            stream.finish()
        except ProtocolError as error:
            problem = error
            process.stdout.close()
    if problem is not None:
        raise problem
