"""Files and trees cross whole or not at all, in pieces, by a direct connection as well as by calls of the actor."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
import pytest_asyncio
import ray

from swerex_c.exceptions import NotSupportedError, SandboxLostError, UploadError
from swerex_c.providers.ray.forward import PIECE
from swerex_c.providers.ray.runtime import RayRuntime
from swerex_c.runtime.abstract import UploadRequest
from tests.support.ray_cluster import Made, raised
from tests.support.wait import until


@pytest_asyncio.fixture(params=["direct", "ray"])
async def runtime(made: Made, request: pytest.FixtureRequest) -> RayRuntime:
    deployment = made(resources={"far": 0.1}, connection=request.param)
    await deployment.start()
    assert isinstance(deployment.runtime, RayRuntime)
    return deployment.runtime


async def _up(runtime: RayRuntime, source: Path, target: Path) -> None:
    await runtime.upload(UploadRequest(source_path=str(source), target_path=str(target)))


def _tree(root: Path) -> dict[str, object]:
    found: dict[str, object] = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_symlink():
            found[name] = ("link", os.readlink(path))
        else:
            found[name] = (path.stat().st_mode, path.read_bytes() if path.is_file() else None)
    return found


async def test_trees_there_and_back(runtime: RayRuntime, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "deep" / "empty").mkdir(parents=True)
    for i in range(300):
        (source / f"file {i}").write_text("x" * i)
    (source / "deep" / "Größe \udcff").write_bytes(b"odd")
    (source / "deep" / "program").write_text("#!/bin/sh\n")
    (source / "deep" / "program").chmod(0o750)
    (source / "link").symlink_to("deep/program")
    (source / "broken").symlink_to("/nowhere")
    (source / "large").write_bytes(os.urandom(3 * PIECE + 12345))
    await _up(runtime, source, tmp_path / "there")
    assert _tree(tmp_path / "there") == _tree(source)
    await runtime.download(str(tmp_path / "there"), str(tmp_path / "back"))
    assert _tree(tmp_path / "back") == _tree(source)
    # Onto a directory it is merged.
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "another").write_text("1")
    await _up(runtime, tmp_path / "more", tmp_path / "there")
    assert _tree(tmp_path / "there").keys() == {*_tree(source), "another"}


async def test_files_there_and_back(runtime: RayRuntime, tmp_path: Path) -> None:
    source = tmp_path / "file"
    (tmp_path / "directory").mkdir()
    for size in (0, 1, PIECE, 2 * PIECE + 1):
        source.write_bytes(os.urandom(size))
        source.chmod(0o700)
        await _up(runtime, source, tmp_path / "new" / "name")
        await _up(runtime, source, tmp_path / "directory")
        await runtime.download(str(tmp_path / "new" / "name"), str(tmp_path / "back"))
        for path in (tmp_path / "new" / "name", tmp_path / "directory" / "file", tmp_path / "back"):
            assert path.read_bytes() == source.read_bytes()
            assert path.stat().st_mode & 0o777 == 0o700


async def test_what_cannot_be_copied_is_told_and_changes_nothing(runtime: RayRuntime, tmp_path: Path) -> None:
    error = await raised(_up(runtime, tmp_path / "none", tmp_path / "target"))
    assert type(error) is FileNotFoundError and error.filename == str(tmp_path / "none")
    error = await raised(runtime.download(str(tmp_path / "none"), str(tmp_path / "target")))
    assert type(error) is FileNotFoundError and error.filename == str(tmp_path / "none")
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "large").write_bytes(bytes(5 * PIECE))
    os.mkfifo(tmp_path / "pipe")
    assert type(await raised(_up(runtime, tmp_path / "pipe", tmp_path / "target"))) is UploadError
    assert type(await raised(runtime.download(str(tmp_path / "pipe"), str(tmp_path / "target")))) is UploadError
    (tmp_path / "pipe").unlink()
    (tmp_path / "a file").write_text("in the way")
    error = await raised(_up(runtime, tmp_path / "tree", tmp_path / "a file"))
    assert isinstance(error, UploadError | NotADirectoryError | FileExistsError), repr(error)
    error = await raised(_up(runtime, tmp_path / "tree", Path("/proc/nothing/here")))
    assert isinstance(error, OSError), repr(error)
    assert sorted(os.listdir(tmp_path)) == ["a file", "tree"]
    assert (tmp_path / "a file").read_text() == "in the way"
    assert runtime._link.lost is None


async def test_a_transfer_that_is_cancelled_or_whose_place_dies(runtime: RayRuntime, tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    with open(tmp_path / "tree" / "large", "wb") as file:
        file.truncate(2 << 30)
    for how in ("cancel", "kill"):
        upload = asyncio.ensure_future(_up(runtime, tmp_path / "tree", tmp_path / "target"))
        # What comes is beside the target meanwhile.
        await asyncio.to_thread(until, lambda: len(os.listdir(tmp_path)) > 1)
        if how == "cancel":
            upload.cancel()
        else:
            ray.kill(runtime._link._handle)
        error = await raised(asyncio.wait_for(upload, 20))
        assert isinstance(error, asyncio.CancelledError if how == "cancel" else SandboxLostError), repr(error)
        assert not (tmp_path / "target").exists()
        if how == "cancel":  # what had come goes, too
            await asyncio.to_thread(until, lambda: sorted(os.listdir(tmp_path)) == ["tree"])


async def test_little_of_a_large_file_is_in_memory_at_once(runtime: RayRuntime, tmp_path: Path) -> None:
    """Four times what an object store holds here passes through it."""
    size = 320 << 20
    with open(tmp_path / "large", "wb") as file:
        file.truncate(size)
    before = _peak()
    await _up(runtime, tmp_path / "large", tmp_path / "copy")
    assert (tmp_path / "copy").stat().st_size == size
    assert _peak() - before < 128 << 20
    with pytest.raises((NotSupportedError, OSError)):
        await runtime.download(str(tmp_path), "/proc/nothing/here")


def _peak() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    raise AssertionError("no VmHWM")
