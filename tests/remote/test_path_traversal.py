"""What comes from a sandbox is written below the target and nowhere else, whatever came before or happens meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import stat
import subprocess
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from swerex_c.exceptions import SwerexException, UploadError
from swerex_c.files import local_files
from swerex_c.runtime.abstract import UploadRequest
from swerex_c.runtime.remote import RemoteRuntime
from swerex_c.sandbox import tree_copy
from swerex_c.sandbox.sandbox import Sandbox
from tests.support.sandboxes import Local
from tests.support.server_process import KEY, Server, serving

Download = Callable[[str, str], object]


@pytest.fixture(scope="module")
def our_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("ours") / "log") as server:
        yield server


@pytest.fixture(params=["frames", "JSON", "a program in the place", "a copy on this machine"])
async def download(request: pytest.FixtureRequest, our_server: Server) -> AsyncIterator[Download]:
    """Copies from one path to another, in a thread that may block."""
    loop = asyncio.get_running_loop()
    if request.param == "a copy on this machine":
        yield local_files.download
    elif request.param == "a program in the place":
        place = Sandbox(Local(dict(os.environ)))
        await asyncio.to_thread(place.open, 30.0)
        yield lambda source, target: tree_copy.download(place, source, target)
        await asyncio.to_thread(place.close)
    else:
        wire = "json" if request.param == "JSON" else "msgpack"
        runtime = RemoteRuntime(auth_token=KEY, host="http://127.0.0.1", port=our_server.port, timeout=30, wire=wire)

        def call(source: str, target: str) -> None:
            asyncio.run_coroutine_threadsafe(runtime.download(source, target), loop).result(60)

        yield call
        await runtime.close()


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A directory outside of every target."""
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


async def test_a_link_that_an_earlier_tree_has_left(download: Download, tmp_path: Path, victim: Path) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    there.mkdir()
    (there / "cache").symlink_to(victim)
    await asyncio.to_thread(download, str(there), str(here))
    assert os.readlink(here / "cache") == str(victim)
    (there / "cache").unlink()
    (there / "cache").mkdir(mode=0o755)
    (there / "cache" / "file").write_text("theirs")
    with pytest.raises(UploadError, match="a link is there"):
        await asyncio.to_thread(download, str(there), str(here))
    assert unchanged(victim) and os.readlink(here / "cache") == str(victim)


async def test_a_link_in_the_place_of_a_file(download: Download, tmp_path: Path, victim: Path) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    there.mkdir()
    (there / "file").symlink_to(victim / "file")
    await asyncio.to_thread(download, str(there), str(here))
    (there / "file").unlink()
    (there / "file").write_text("theirs")
    await asyncio.to_thread(download, str(there / "file"), str(here))
    assert unchanged(victim) and (here / "file").read_text() == "theirs" and not (here / "file").is_symlink()


async def test_a_link_that_is_the_target(download: Download, tmp_path: Path, victim: Path) -> None:
    (tmp_path / "source").write_text("theirs")
    (tmp_path / "link").symlink_to(victim / "file")
    await asyncio.to_thread(download, str(tmp_path / "source"), str(tmp_path / "link"))
    assert (tmp_path / "link").read_text() == "theirs"
    assert unchanged(victim) and not (tmp_path / "link").is_symlink()


async def test_rights_stay_where_they_are(download: Download, tmp_path: Path) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    there.mkdir()
    (there / "program").write_text("#!/bin/sh\n")
    (there / "program").chmod(0o6755)
    there.chmod(0o2755)
    for source, target in ((there, here), (there / "program", tmp_path / "copy")):
        await asyncio.to_thread(download, str(source), str(target))
    found = [stat.S_IMODE(path.stat().st_mode) for path in (here, here / "program", tmp_path / "copy")]
    assert found == [0o755, 0o755, 0o755]


@pytest.mark.slow
async def test_a_tree_that_is_very_deep(download: Download, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    request.addfinalizer(lambda: subprocess.run(["rm", "-rf", there, here]))  # pytest's own is recursive
    here.mkdir()
    deepest = str(there)
    for _ in range(11):
        deepest += "/d" * 100
        os.makedirs(deepest)  # which is recursive
    if download is local_files.download:
        download(str(there), str(here))
        assert os.path.isdir(deepest.replace(str(there), str(here)))
    else:
        with pytest.raises(UploadError, match="256 directories"):
            await asyncio.to_thread(download, str(there), str(here))
        assert os.listdir(here) == []
        assert not [name for name in os.listdir(tmp_path) if name.startswith(".swerex")]


@pytest.mark.slow
async def test_a_link_that_comes_meanwhile(download: Download, tmp_path: Path, victim: Path) -> None:
    """Somebody swaps a directory of the target for a link, again and again."""
    there, here = tmp_path / "there", tmp_path / "here"
    for number in range(30):
        (there / "cache" / f"d{number}").mkdir(parents=True)
        (there / "cache" / f"f{number}").write_text("theirs")
        (there / "cache" / f"d{number}" / "file").write_text("theirs")
    link, aside = here / "cache", here / "aside"
    here.mkdir()
    (here / "cache").mkdir()
    (here / "other").symlink_to(victim)
    ended = threading.Event()

    def swap() -> None:
        while not ended.is_set():
            with contextlib.suppress(OSError):
                os.rename(link, aside)
                os.rename(here / "other", link)
                os.rename(link, here / "other")
                os.rename(aside, link)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        for _ in range(30):
            with contextlib.suppress(SwerexException, OSError):
                await asyncio.to_thread(download, str(there), str(here))
    finally:
        ended.set()
        thread.join()
    assert unchanged(victim)


LIMIT = (1 << 20) + 13


@contextlib.contextmanager
def short_of_room(process: int) -> Iterator[None]:
    """A process can write no file of more than `LIMIT` bytes: the last write is a short one, as on a full disk."""
    before = resource.prlimit(process, resource.RLIMIT_FSIZE)
    resource.prlimit(process, resource.RLIMIT_FSIZE, (LIMIT, before[1]))
    try:
        yield
    finally:
        resource.prlimit(process, resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("more", [1, 2 * LIMIT])
@pytest.mark.parametrize("wire", ["json", "msgpack"])
async def test_a_part_of_a_file_is_not_taken_for_it(our_server: Server, tmp_path: Path, wire: str, more: int) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(os.urandom(LIMIT + more))
    target.write_text("old")
    runtime = RemoteRuntime(auth_token=KEY, host="http://127.0.0.1", port=our_server.port, timeout=30, wire=wire)
    try:
        with short_of_room(our_server.process.pid), pytest.raises(OSError) as caught:
            await runtime.upload(UploadRequest(source_path=str(source), target_path=str(target)))
        assert caught.value.errno == errno.EFBIG and target.read_text() == "old"
        with short_of_room(os.getpid()), pytest.raises(OSError) as caught:
            await runtime.download(str(source), str(target))
        assert caught.value.errno == errno.EFBIG and target.read_text() == "old"
        assert sorted(os.listdir(tmp_path)) == ["source", "target"]
        await runtime.download(str(source), str(target))
        assert target.read_bytes() == source.read_bytes()
    finally:
        await runtime.close()
