"""Test the errors for damaged archives, and for a machine without threads, memory or temporary files."""

from __future__ import annotations

import errno
import io
import os
import random
import tarfile
import tempfile
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from swerex_c.exceptions import InvalidInputError, ProtocolError, ResourceError, UploadError
from swerex_c.files import local, tar, zip
from swerex_c.files.staging import Staging
from swerex_c.runtime.abstract import ReadFileRequest, UploadRequest, WriteFileRequest
from swerex_c.runtime.local import LocalRuntime
from swerex_c.runtime.remote import RemoteRuntime
from swerex_c.utils.temporary import make_temporary, temporary_directory, temporary_place
from tests.support.session import Session
from tests.support.trees import member, zipped
from tests.support.wait import until

ENTRIES = [("a/b.txt", random.Random(1).randbytes(300) + b"hello" * 500, 0o600), ("ü", b"x" * 1000, 0o600)]
ENTRIES.append(("c/", b"", 0o40775))


def tarred() -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tarfile.PAX_FORMAT) as made:
        for name in ("./", "./a/", "./a/b.txt", "./" + "ü" * 120):
            member = tarfile.TarInfo(name)
            member.type = tarfile.DIRTYPE if name.endswith("/") else tarfile.REGTYPE
            member.mode, member.mtime, member.size = 0o755, 1.5, 0 if member.isdir() else 1000
            made.addfile(member, io.BytesIO(b"x" * 1000))
    return data.getvalue()


def damaged(archive: bytes, number: int) -> bytes:
    """Return the archive with a few wrong bytes, or cut off. The number determines the damage."""
    rng = random.Random(number)
    data = bytearray(archive)
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        data[rng.randrange(len(data))] = rng.choice([0, 255, rng.randrange(256)])
    return bytes(data[: rng.randrange(len(data))] if rng.random() < 0.1 else data)


@pytest.mark.parametrize(
    ("unpack", "archive", "error", "least"),
    [
        (zip.unpack, zipped(*ENTRIES), InvalidInputError, 100),
        (zip.unpack, zipped(*ENTRIES, method=zipfile.ZIP_DEFLATED), InvalidInputError, 100),
        (tar.unpack, tarred(), ProtocolError, 40),
    ],
    ids=["stored", "deflated", "tar"],
)
def test_a_damaged_archive_has_an_error(
    tmp_path: Path, unpack: Callable[..., object], archive: bytes, error: type[Exception], least: int
) -> None:
    refused = 0
    for number in range(400):
        target = tmp_path / str(number)
        try:
            with Staging(str(target)) as staging:
                unpack(io.BytesIO(damaged(archive, number)), staging)
                staging.commit()
        except (error, UploadError):
            refused += 1
            assert not target.exists()
    assert refused > least


@pytest.mark.slow
@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_an_archive_that_would_become_large_in_memory(tmp_path: Path, method: int) -> None:
    with zipfile.ZipFile(tmp_path / "small.zip", "w", method) as made, made.open("zeros", "w") as file:
        for _ in range(200):
            file.write(bytes(1 << 20))
    with pytest.raises(InvalidInputError, match="'zeros' is neither stored nor deflated"):
        with open(tmp_path / "small.zip", "rb") as archive, Staging(str(tmp_path / "out")) as staging:
            zip.unpack(archive, staging)
    assert not (tmp_path / "out").exists()


SPARSE = member("./f", tarfile.XHDTYPE, b"22 GNU.sparse.major=1\n22 GNU.sparse.minor=0\n")


@pytest.mark.parametrize(
    ("members", "words"),
    [
        (SPARSE + member("./f", tarfile.REGTYPE, b"99999999\n" + b"1\n" * 1000), "a sparse file"),
        (member("./f", tarfile.GNUTYPE_SPARSE), "a sparse file"),
        (member("./f", tarfile.XHDTYPE, b"65000 comment=" + b"1" * 64985 + b"\n"), "more digits than a name"),
        (member("./f", tarfile.XHDTYPE, b"2 " * 32000 + b"="), "a damaged record"),
        (member("./f", tarfile.XGLTYPE, b"12 path=abc"), "a damaged record"),
        (member("./f", tarfile.XHDTYPE, b"9 path=a=\n"), "a damaged record"),
        (member("./f", tarfile.XHDTYPE, b"7 path=\n"), "a damaged record"),
    ],
)
def test_members_that_would_take_much_time_or_memory(tmp_path: Path, members: bytes, words: str) -> None:
    """They are small here, but a sandbox could send any number of them."""
    archive = member("./", tarfile.DIRTYPE) + members + member("./f", tarfile.REGTYPE, b"x") + bytes(1024)
    with pytest.raises(ProtocolError, match=words), Staging(str(tmp_path / "out")) as staging:
        tar.unpack(io.BytesIO(archive), staging)
    assert os.listdir(tmp_path) == []


# No threads


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    def fail(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    def begin() -> None:
        # A thread of an earlier test that is about to end would take the call.
        until(lambda: not any(each.name == "swerex-file" for each in threading.enumerate()))
        monkeypatch.setattr(threading.Thread, "start", fail)

    return begin


async def test_no_thread_for_a_file(no_threads: Callable[[], None], tmp_path: Path) -> None:
    runtime = LocalRuntime()
    path = str(tmp_path / "file")
    no_threads()
    for call in (
        runtime.write_file(WriteFileRequest(path=path, content="x")),
        runtime.read_file(ReadFileRequest(path=path)),
        runtime.upload(UploadRequest(source_path="/etc", target_path=path)),
        runtime.download("/etc", path),
    ):
        with pytest.raises(ResourceError, match="Cannot start a thread") as caught:
            await call
        assert caught.value.errno == errno.EAGAIN
    await runtime.close()


@pytest.mark.parametrize("tree", [False, True])
async def test_no_thread_for_a_transfer(
    no_threads: Callable[[], None], remote: RemoteRuntime, tmp_path: Path, tree: bool
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "file").write_text("x")
    before = len(os.listdir("/proc/self/fd"))
    no_threads()
    path, target = str(source if tree else source / "file"), str(tmp_path / "target")
    for call in (remote.upload(UploadRequest(source_path=path, target_path=target)), remote.download(path, target)):
        with pytest.raises(ResourceError, match="Cannot start a thread"):
            await call
    assert not os.path.exists(target) and len(os.listdir("/proc/self/fd")) <= before + 1


# No memory


async def test_no_memory_for_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise MemoryError

    runtime = LocalRuntime()
    monkeypatch.setattr(local, "read_text", fail)
    with pytest.raises(ResourceError, match="not enough memory") as caught:
        await runtime.read_file(ReadFileRequest(path="x"))
    assert caught.value.errno == errno.ENOMEM
    await runtime.close()


# No temporary files


async def test_no_directory_for_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Operations that need none work."""

    def none() -> str:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp', '/var/tmp']")

    monkeypatch.setattr(tempfile, "gettempdir", none)
    target = str(tmp_path / "target")
    async with LocalRuntime() as runtime:
        await runtime.write_file(WriteFileRequest(path=target, content="x"))
        await runtime.upload(UploadRequest(source_path=target, target_path=target + "2"))
        await runtime.download(target, target + "3")
        session = Session(runtime)
        await session.create()
        await session.gives("echo hi", "hi\n")
    with pytest.raises(OSError) as caught, Staging("/proc/none") as staging:
        staging.directory("")
    assert caught.value.filename == "/proc/none"
    for call in (temporary_place, lambda: make_temporary("x"), lambda: temporary_directory("x").__enter__()):
        with pytest.raises(ResourceError, match="set TMPDIR"):
            call()


# No such path


async def test_a_path_that_is_too_long(remote: RemoteRuntime, tmp_path: Path) -> None:
    """It is refused before any directory is created, and the error is short."""
    path = f"{tmp_path}/" + "x/" * 10_000 + "x"
    for call in (
        remote.read_file(ReadFileRequest(path=path)),
        remote.write_file(WriteFileRequest(path=path, content="")),
        remote.download(path, str(tmp_path / "copy")),
    ):
        with pytest.raises(OSError, match="name too long") as error:
            await call
        assert error.value.errno == errno.ENAMETOOLONG and len(str(error.value)) < 1000
    assert not (tmp_path / "x").exists()


async def test_a_path_of_too_many_directories(remote: RemoteRuntime, tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match="recursion"):
        await remote.write_file(WriteFileRequest(path=f"{tmp_path}/" + "x/" * 1500 + "x", content=""))
