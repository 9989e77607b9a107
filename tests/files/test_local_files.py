"""Test that local files and trees are read, written and copied whole, or not at all."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from swerex_c.exceptions import NotSupportedError, RuntimeClosedError, UploadError
from swerex_c.files.local import copy as upload
from swerex_c.files.local import read_text, write_text
from swerex_c.runtime.abstract import AbstractRuntime
from swerex_c.runtime.dummy import DummyRuntime
from swerex_c.runtime.local import LocalRuntime
from tests.support.harness import raises
from tests.support.trees import assert_no_leftovers, everything, make_tree, mode

pytestmark = pytest.mark.usefixtures("here")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to own files for somebody else")


@pytest.fixture
def as_user(here: Path) -> Iterator[None]:
    """Run the test as a user whom permissions restrict. Relative paths need no rights above the directory."""
    if os.geteuid() != 0:
        yield
        return
    os.chown(here, 65534, -1)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


# Writing


@pytest.mark.parametrize(
    ("call", "number", "path"),
    [
        pytest.param(lambda: read_text("/proc/self/mem"), errno.EIO, "/proc/self/mem", id="read"),
        pytest.param(lambda: upload("/proc/self/mem", "t"), errno.EIO, "/proc/self/mem", id="copy"),
        pytest.param(lambda: write_text("/dev/full", "x"), errno.ENOSPC, "/dev/full", id="write in place"),
    ],
)
def test_a_failure_names_its_file(here: Path, call: Callable[[], object], number: int, path: str) -> None:
    with raises(OSError, number, path):
        call()
    assert_no_leftovers(here)


@pytest.mark.parametrize(("path", "content"), [("/proc/self/coredump_filter", "00000033\n"), ("/dev/null", "")])
def test_a_file_that_is_no_file_is_written_in_place(path: str, content: str) -> None:
    """What /proc shows has no size, and its directories take no new names."""
    before = mode(path)
    write_text(path, "0x33")
    assert (read_text(path), mode(path)) == (content, before)


def test_a_new_file_has_the_mode_that_open_gives(here: Path) -> None:
    open("plain", "w").close()
    write_text("f", "x")
    assert mode("f") == mode("plain")


def test_a_file_that_cannot_be_replaced_is_overwritten(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An example is a mounted file, such as /etc/hosts in a container."""
    write_text("f", "old and long")
    inode = os.stat("f").st_ino

    def busy(*_: object, **__: object) -> None:
        raise OSError(errno.EBUSY, "Device or resource busy")

    write_text("g", "source")
    monkeypatch.setattr(os, "replace", busy)
    write_text("f", "new")
    assert (read_text("f"), os.stat("f").st_ino) == ("new", inode)
    upload("g", "f")
    assert (read_text("f"), os.stat("f").st_ino) == ("source", inode)
    with pytest.raises(OSError, match="busy"):
        write_text("new", "x")
    assert_no_leftovers(here)


@needs_root
def test_a_file_of_a_group_that_nobody_can_give_it_is_overwritten(as_user: None) -> None:
    write_text("f", "old")
    os.seteuid(0)
    os.chown("f", -1, 23456)
    os.seteuid(65534)
    inode = os.stat("f").st_ino
    write_text("f", "new")
    found = os.stat("f")
    assert (read_text("f"), found.st_ino, found.st_gid) == ("new", inode, 23456)


def test_a_file_keeps_its_group_and_attributes() -> None:
    write_text("f", "old")
    if os.geteuid() == 0:
        os.chown("f", -1, 23456)
    try:
        os.setxattr("f", "user.swerex", b"kept")
    except OSError:
        pytest.skip("needs a file system with user attributes")
    before = os.stat("f")
    write_text("f", "new")
    assert os.stat("f").st_gid == before.st_gid
    assert os.getxattr("f", "user.swerex") == b"kept"


def test_a_file_that_must_not_be_written_is_not_replaced(as_user: None) -> None:
    write_text("f", "old")
    os.chmod("f", 0o444)
    with pytest.raises(PermissionError):
        write_text("f", "new")
    assert read_text("f") == "old"


def test_a_file_in_a_closed_directory_is_overwritten(as_user: None) -> None:
    write_text("d/f", "old")
    os.chmod("d", 0o555)
    try:
        write_text("d/f", "new")
        assert read_text("d/f") == "new"
    finally:
        os.chmod("d", 0o755)


# Uploading


@pytest.mark.parametrize("source", ["s/special", "/dev/null"])
def test_what_is_no_file_is_named(source: str, caplog: pytest.LogCaptureFixture) -> None:
    os.mkdir("s")
    os.mkfifo("s/special")
    upload("s", "t")
    assert os.listdir("t") == [] and caplog.messages == ["'s/special' is not copied: it is a named pipe"]
    with pytest.raises(UploadError, match="it is a (named pipe|character device)"):
        upload(source, "u")


@pytest.mark.parametrize(
    ("source", "target", "says"),
    [
        ("s", "s", "the same directory"),
        ("s", "s/bin/../", "the same directory"),
        ("s", "s/below", "lies in the source"),
        ("s", "s/to_directory/below", "lies in the source"),
        ("s/bytes", "s/bytes", "the same file"),
        ("s/bytes", "s", "the same file"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_copied(
    source: str, target: str, says: str, here: Path
) -> None:
    make_tree("s")
    before = everything(here)
    with pytest.raises(UploadError, match=says):
        upload(source, target)
    assert everything(here) == before


def test_files_that_nobody_may_write_are_replaced(as_user: None) -> None:
    """An example is .git/objects, when a checkout is copied again."""
    for text in ("old", "new"):
        write_text("s/objects/f", text)
        os.chmod("s/objects/f", 0o444)
        upload("s", "t")
        upload("s/objects/f", "g")
        upload("s/objects/f", "t")
        os.unlink("s/objects/f")
        for path in ("t/objects/f", "t/f", "g"):
            assert (read_text(path), mode(path)) == (text, 0o444)
    assert_no_leftovers(Path("."))


def test_a_tree_that_cannot_be_read_is_not_copied_in_part(as_user: None) -> None:
    make_tree("s")
    os.chmod("s/bin", 0)
    with pytest.raises(PermissionError) as caught:
        upload("s", "t")
    os.chmod("s/bin", 0o755)
    assert caught.value.filename == "s/bin" and not os.path.lexists("t")


def test_a_target_on_another_file_system(here: Path) -> None:
    """Nothing can be staged beside it, so files are copied twice."""
    make_tree("s")
    (here / "closed").mkdir()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as other:
        os.symlink(other, "closed/t")
        os.mkdir(f"{other}/bin")
        upload("s", "closed/t")
        assert everything(other) == everything("s")
        upload("s/bytes", "closed/t/bytes")
        assert_no_leftovers(Path(other))


async def test_every_runtime_has_download() -> None:
    runtime = LocalRuntime()
    await runtime.close()
    with pytest.raises(RuntimeClosedError):
        await runtime.download("/etc", "not made")
    await DummyRuntime().download("/etc", "not made")
    assert not os.path.exists("not made")

    class Other(DummyRuntime):
        """A runtime that was written for the original, which has no such method."""

        download = AbstractRuntime.download

    with pytest.raises(NotSupportedError, match="Other cannot download files"):
        await Other().download("s", "t")
