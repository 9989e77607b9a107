"""Test writes to a full disk, and the removal of files that killed processes left."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from swerex_c.files import local, staging
from swerex_c.runtime.abstract import AbstractRuntime, UploadRequest, WriteFileRequest
from swerex_c.runtime.local import LocalRuntime
from swerex_c.runtime.sandbox import SandboxRuntime
from tests.support import needs
from tests.support.harness import raises
from tests.support.local_backend import Here

ROOM = 4 << 20
Call = Callable[[AbstractRuntime, Path, Path], Awaitable[None]]


@pytest.fixture(scope="module")
def disk() -> Iterator[Path]:
    """A file system of four mebibytes, mounted by a process of its own."""
    rights = "--mount" if os.geteuid() == 0 else "--map-root-user"
    mount = f"mount -t tmpfs -o size={ROOM},mode=700 tmpfs /mnt && echo ready && exec cat"
    with subprocess.Popen(
        ["unshare", "--mount", rights, "sh", "-c", mount], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            needs.skip(needs.Lacking("the right to mount a file system, as root or in a namespace of a user's own"))
        yield Path(f"/proc/{process.pid}/root/mnt")
        process.kill()


@pytest.fixture
def here(disk: Path) -> Iterator[Path]:
    """A new directory in the small file system."""
    path = disk / f"test{time.monotonic_ns()}"
    path.mkdir()
    yield path
    subprocess.run(["rm", "-rf", str(path)], check=True)


async def write(runtime: AbstractRuntime, source: Path, target: Path) -> None:
    await runtime.write_file(WriteFileRequest(path=str(target), content=source.read_text()))


async def upload(runtime: AbstractRuntime, source: Path, target: Path) -> None:
    await runtime.upload(UploadRequest(source_path=str(source), target_path=str(target)))


async def download(runtime: AbstractRuntime, source: Path, target: Path) -> None:
    await runtime.download(str(source), str(target))


@pytest.mark.parametrize("call", [write, upload, download])
@pytest.mark.parametrize("more", [-4096, 1, ROOM])
async def test_a_file_that_does_not_fit(
    runtime: AbstractRuntime, here: Path, tmp_path: Path, call: Call, more: int
) -> None:
    """`more`: number of bytes beyond the free space."""
    (here / "old").write_text("old")
    room = os.statvfs(here)
    size = room.f_bavail * room.f_frsize + more
    source = tmp_path / "source"
    source.write_bytes(b"0123456789abcde\n" * (size // 16) + b"x" * (size % 16))
    try:
        await call(runtime, source, here / "old")
        assert (here / "old").read_bytes() == source.read_bytes()
        assert more < 0
    except OSError as error:
        assert error.errno == errno.ENOSPC
        assert (here / "old").read_text() == "old"
    assert os.listdir(here) == ["old"]


@pytest.mark.parametrize("call", [upload, download])
async def test_a_tree_that_does_not_fit(runtime: AbstractRuntime, here: Path, tmp_path: Path, call: Call) -> None:
    source, target = tmp_path / "source", here / "tree"
    source.mkdir()
    target.mkdir()
    (target / "f3").write_text("old")
    for number in range(9):
        (source / f"f{number}").write_bytes(os.urandom(ROOM // 8))
    with raises(OSError, errno.ENOSPC) as caught:
        await call(runtime, source, target)
    assert Path(caught.value.filename) in [target / f"f{number}" for number in range(9)]
    for path in target.iterdir():
        assert path.read_bytes() in (b"old", (source / path.name).read_bytes())
    assert os.listdir(here) == ["tree"] and not [name for name in os.listdir(target) if name.startswith(".")]


async def test_a_tree_for_another_file_system_that_does_not_fit(here: Path, tmp_path: Path) -> None:
    """The target is a link, beside which the tree is collected; it replaces files whole or not at all."""
    source, target = tmp_path / "source", tmp_path / "link"
    source.mkdir()
    target.symlink_to(Path("/mnt", here.name))
    (here / "old").write_text("old")
    (source / "old").write_bytes(bytes(2 * ROOM))
    user = ["--user", "--preserve-credentials"] if os.geteuid() else []
    async with SandboxRuntime(Here("nsenter", f"--target={here.parts[2]}", "--mount", *user)) as runtime:
        with raises(OSError, errno.ENOSPC):
            await upload(runtime, source, target)
    assert (here / "old").read_text() == "old" and os.listdir(here) == ["old"]


@pytest.mark.parametrize("call", [write, upload])
async def test_a_file_with_two_names_stays_what_it_was(here: Path, tmp_path: Path, call: Call) -> None:
    """It is overwritten in place, so that both names have the new text."""
    source = tmp_path / "source"
    source.write_text("x" * 2 * ROOM)
    (here / "old").write_text("old")
    os.link(here / "old", here / "other")
    runtime = LocalRuntime()
    with raises(OSError, errno.ENOSPC, here / "old"):
        await call(runtime, source, here / "old")
    assert (here / "old").read_text() == "old"
    source.write_text("x" * (ROOM // 2))
    await call(runtime, source, here / "old")
    assert (here / "other").read_text() == source.read_text()
    source.write_text("short")
    await call(runtime, source, here / "old")
    assert (here / "other").read_text() == "short"
    await runtime.close()


# After a kill

_WRITER = """
import sys, threading
from swerex_c.files import local, staging
path = sys.argv[1]
def pause(*_):
    print("now", flush=True)
    threading.Event().wait()
local.write_all = local.copy_contents = pause
if sys.argv[2] == "write":
    local.write_text(path, "new")
elif sys.argv[2] == "upload":
    local.copy(sys.executable, path)
else:
    with staging.Staging(path) as it:
        it.directory("")
        pause()
"""


@pytest.mark.parametrize("what", ["write", "upload", "tree"])
def test_what_a_killed_process_left_goes_with_the_next_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    target = tmp_path / "target"
    target.write_text("old")
    (tmp_path / ".swerex-0123456789abcdef.tmp").write_text("a script's, in a place that shares the directory")
    command = [sys.executable, "-c", _WRITER, str(target), what]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None and writer.stdout.readline() == "now\n"
        monkeypatch.setattr(staging, "_swept", {})
        local.write_text(str(tmp_path / "other"), "while it works")
        assert len(os.listdir(tmp_path)) == 4
        writer.kill()
    assert len(os.listdir(tmp_path)) == 4
    monkeypatch.setattr(staging, "_swept", {})
    local.write_text(str(tmp_path / "other"), "after it was killed")
    assert sorted(os.listdir(tmp_path)) == [".swerex-0123456789abcdef.tmp", "other", "target"]
    assert target.read_text() == "old"


def test_processes_that_sweep_leave_each_others_files(tmp_path: Path) -> None:
    """Several processes sweep all the time while they write."""
    program = (
        "import os, sys; from swerex_c.files import local, staging\n"
        "staging._SWEEP_SECONDS = 0\n"
        "for i in range(150):\n"
        "    path = f'{sys.argv[1]}/{i % 3}'\n"
        "    local.write_text(path, 'x' * 1000); assert len(local.read_text(path)) == 1000\n"
        "    with staging.Staging(path) as it:\n"
        "        with it.file('') as fd: os.write(fd, b'y' * 1000)\n"
        "        it.commit()\n"
    )
    writers = [subprocess.Popen([sys.executable, "-c", program, str(tmp_path)]) for _ in range(4)]
    assert [writer.wait() for writer in writers] == [0] * 4
    assert sorted(os.listdir(tmp_path)) == ["0", "1", "2"]
