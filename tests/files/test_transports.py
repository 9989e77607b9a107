"""Test that every transport copies trees by the same rules, and writes only below the target.

The other end may be hostile, and may change the source and the target during the copy.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import stat
import subprocess
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from swerex_c.exceptions import SwerexException, UploadError
from swerex_c.runtime import sandbox
from swerex_c.runtime.abstract import AbstractRuntime, UploadRequest
from swerex_c.runtime.local import LocalRuntime
from swerex_c.runtime.sandbox import SandboxRuntime
from swerex_c.utils import background, progress
from tests.support.harness import in_thread
from tests.support.wait import cancel, until_async

Copy = Callable[[str | Path, str | Path], Awaitable[None]]
"""Copies from one path to another, and returns or raises what came of it."""


@pytest.fixture
def download(runtime: AbstractRuntime) -> Copy:
    return lambda source, target: runtime.download(str(source), str(target))


@pytest.fixture(params=["upload", "download"])
def copy(request: pytest.FixtureRequest, runtime: AbstractRuntime, download: Copy) -> Copy:
    """Copy by `upload` or by `download`."""
    if request.param == "download":
        return download
    return lambda source, target: runtime.upload(UploadRequest(source_path=str(source), target_path=str(target)))


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A directory that no copy may change."""
    place = tmp_path / "victim"
    place.mkdir(mode=0o700)
    (place / "file").write_text("mine")
    return place


def unchanged(victim: Path) -> bool:
    return (
        os.listdir(victim) == ["file"]
        and (victim / "file").read_text() == "mine"
        and stat.S_IMODE(victim.stat().st_mode) == 0o700
    )


@pytest.mark.slow
async def test_a_tree_that_is_very_deep(
    runtime: AbstractRuntime, download: Copy, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    request.addfinalizer(lambda: subprocess.run(["rm", "-rf", there, here]))  # pytest's own is recursive
    here.mkdir()
    deepest = str(there)
    for _ in range(11):
        deepest += "/d" * 100
        os.makedirs(deepest)  # which is recursive
    if isinstance(runtime, LocalRuntime):
        await download(there, here)
        assert os.path.isdir(deepest.replace(str(there), str(here)))
    else:
        with pytest.raises(UploadError, match="256 directories"):
            await download(there, here)
        assert os.listdir(here) == []
        assert not [name for name in os.listdir(tmp_path) if name.startswith(".swerex")]


async def test_progress_is_told(
    runtime: AbstractRuntime, copy: Copy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Except by a copy on this machine."""
    told: list[tuple[int, int | None]] = []
    for module in (progress, sandbox):
        monkeypatch.setattr(module, "shown", lambda _: contextlib.nullcontext(lambda *how: told.append(how)))
    size = 2_000_000
    (tmp_path / "file").write_bytes(bytes(size))
    await copy(tmp_path / "file", tmp_path / "copy")
    sizes = [done for done, _ in told]
    assert sizes == sorted(sizes) and all(whole in (None, size) for _, whole in told)
    if isinstance(runtime, LocalRuntime):
        assert not told
    else:
        assert size <= sizes[-1] < size + 100  # some bytes may say how long it is


@pytest.mark.parametrize("tree", [False, True])
async def test_a_cancelled_copy_leaves_nothing(
    runtime: AbstractRuntime, copy: Copy, tmp_path: Path, tree: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The target stays what it was, nothing is beside it, and the log has no message."""
    source, to = tmp_path / "source", tmp_path / "to"
    for directory in (source, to):
        directory.mkdir()
    (source / "big").touch()
    os.truncate(source / "big", 1 << 31)
    (to / "target").mkdir() if tree else (to / "target").write_text("old")
    copying = asyncio.ensure_future(copy(source if tree else source / "big", to / "target"))
    await until_async(lambda: len(os.listdir(to)) == 2)
    await cancel(copying)
    if not isinstance(runtime, SandboxRuntime):  # which is done when it is raised
        await until_async(lambda: len(os.listdir(to)) == 1)
    assert os.listdir(to) == ["target"]
    assert os.listdir(to / "target") == [] if tree else (to / "target").read_text() == "old"
    await until_async(lambda: all(thread.name != "swerex-file" for thread in threading.enumerate()))
    del copying
    await background.run(asyncio.sleep(0))  # the loop drops its references
    gc.collect()
    assert caplog.messages == []


# Links that come meanwhile


@contextlib.contextmanager
def swapped(directory: Path, link: Path) -> Iterator[None]:
    """Swap a directory and a link beside it again and again during the block."""
    aside = directory.with_name("aside")

    def swap(over: threading.Event) -> None:
        while not over.is_set():
            with contextlib.suppress(OSError):
                os.rename(directory, aside)
                os.rename(link, directory)
                os.rename(directory, link)
                os.rename(aside, directory)

    with in_thread(swap):
        yield


def many_files(directory: Path, text: str) -> None:
    for number in range(30):
        (directory / f"d{number}").mkdir(parents=True)
        (directory / f"f{number}").write_text(text)
        (directory / f"d{number}" / "file").write_text(text)


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_a_link_that_comes_meanwhile(copy: Copy, tmp_path: Path, victim: Path) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    many_files(there / "cache", "theirs")
    (here / "cache").mkdir(parents=True)
    (here / "other").symlink_to(victim)
    with swapped(here / "cache", here / "other"):
        for _ in range(30):
            with contextlib.suppress(SwerexException, OSError):
                await copy(there, here)
    assert unchanged(victim)


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_a_link_that_comes_into_the_source_meanwhile(copy: Copy, tmp_path: Path) -> None:
    """Files outside of the tree are not read."""
    there, outside = tmp_path / "there", tmp_path / "outside"
    many_files(there / "cache", "theirs")
    many_files(outside, "secret")
    (there / "other").symlink_to(outside)
    with swapped(there / "cache", there / "other"):
        for number in range(30):
            with contextlib.suppress(SwerexException, OSError):
                await copy(there, tmp_path / f"here{number}")
    for directory, _, files in os.walk(tmp_path):
        if Path(directory) != outside and outside not in Path(directory).parents:
            assert all((Path(directory) / name).read_text() == "theirs" for name in files)
