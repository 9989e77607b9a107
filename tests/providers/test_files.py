"""Test files of sandboxes beyond the contracts: existing files, missing programs, cut and hostile streams."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import shlex
import shutil
import stat
import subprocess
import tarfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import pytest

from swerex_c.exceptions import NotSupportedError, ProtocolError, ResourceError, SandboxLostError, UploadError
from swerex_c.providers.docker.backend import DockerBackend
from swerex_c.sandbox import file_scripts
from swerex_c.sandbox import files as _files
from swerex_c.sandbox.backend import Backend
from swerex_c.sandbox.sandbox import Sandbox
from swerex_c.utils import background
from tests.support import needs
from tests.support.docker_engine import Engine
from tests.support.harness import raises, write_script
from tests.support.local_backend import Here
from tests.support.processes import memory_of
from tests.support.sandboxes import Blocking, StartBackend
from tests.support.trees import assert_no_leftovers, everything, file_of, make_tree, member
from tests.support.wait import DEADLINE, until

files: Any = Blocking(_files)


Machine = Callable[..., Blocking]


@pytest.fixture
def machine(here: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """`machine()` is this machine as a sandbox; `machine(programs=...)` with only those in it."""
    with contextlib.ExitStack() as stack:

        def make(*, programs: tuple[str, ...] | None = None) -> Blocking:
            variables = {}
            if programs is not None:
                variables["PATH"] = str(here.parent / "programs")
                os.mkdir(variables["PATH"])
                for name in ("bash", "env", *programs):
                    os.symlink(str(shutil.which(name)), f"{variables['PATH']}/{name}")
                monkeypatch.setattr(file_scripts, "_PATH", variables["PATH"])
            return stack.enter_context(opened(Here(**variables)))

        yield make


@contextlib.contextmanager
def opened(backend: Backend) -> Iterator[Blocking]:
    """Open a sandbox for the block."""
    sandbox = Blocking(Sandbox(backend))
    sandbox.open(DEADLINE)
    try:
        yield sandbox
    finally:
        sandbox.close()


@pytest.mark.xdist_group("engine")
def test_relative_paths_begin_where_programs_do(docker_backend: StartBackend, bash_min: str) -> None:
    with opened(docker_backend(bash_min)) as sandbox:
        where = sandbox.run('printf %s "$PWD"').stdout.decode()
        files.write_text(sandbox, "relative", "x")
        assert files.read_text(sandbox, f"{where}/relative") == "x"


# This machine as the sandbox


@pytest.mark.parametrize("programs", [None, (), ("cat",)], ids=["all", "bash", "cat"])
def test_an_existing_file_stays_what_it_is(machine: Machine, here: Path, programs: tuple[str, ...] | None) -> None:
    sandbox = machine(programs=programs)
    (here / "f").write_text("old and long")
    os.chmod("f", 0o751)
    os.symlink("f", "one")
    os.symlink(here / "one", "two")
    inode = os.stat("f").st_ino
    files.write_text(sandbox, "two", "new")
    assert (Path("f").read_text(), stat.S_IMODE(os.stat("f").st_mode)) == ("new", 0o751)
    assert os.path.islink("one") and os.path.islink("two")
    assert (os.stat("f").st_ino == inode) == (programs is not None)  # replaced whole, where that can be
    user, device = os.openpty()
    mode = os.fstat(device).st_mode
    files.upload(sandbox, "f", os.ttyname(device))
    assert os.fstat(device).st_mode == mode != os.stat("f").st_mode and os.read(user, 100) == b"new"
    os.close(user)
    os.close(device)
    assert_no_leftovers(here)


def test_missing_programs_are_named(machine: Machine, here: Path) -> None:
    sandbox = machine(programs=("cat",))
    make_tree("s")
    for call in (
        lambda: files.write_text(sandbox, "none/f", "x"),
        lambda: files.upload(sandbox, "s/bin/run", "run"),
        lambda: files.upload(sandbox, "s", "t"),
        lambda: files.download(sandbox, "s", "t"),
    ):
        with pytest.raises(NotSupportedError, match=r"this machine lacks: (mkdir|chmod|mkdir, mv, rm|readlink)\."):
            call()
    assert sorted(os.listdir()) == ["s"]


def test_bytes_that_are_cut_off_change_nothing(machine: Machine, here: Path) -> None:
    sandbox = machine()
    (here / "f").write_text("old")
    for words, given in ((("9", "", "", "1"), b"new"), (("", "", "", "2"), b"8\nnew"), (("", "", "", "3"), b"3\nnew")):
        answer = sandbox.run(file_scripts.text("put_file"), "./f", *words, input=given)
        failure = file_scripts.failure(sandbox.it, answer.code, answer.stderr, "f", "Writing")
        assert isinstance(failure, UploadError)
    (here / "d").mkdir()
    begin = io.BytesIO()
    with tarfile.open(fileobj=begin, mode="w") as tar:
        tar.add("d", "it")
        tar.add("f", "it/f")
    answer = sandbox.run(file_scripts.text("put_tree"), "./t", "4", input=begin.getvalue())
    assert isinstance(file_scripts.failure(sandbox.it, answer.code, answer.stderr, "t", "Copying"), UploadError)
    assert sorted(os.listdir()) == ["d", "f"] and Path("f").read_text() == "old"


@pytest.mark.parametrize("tree", [False, True])
def test_what_a_killed_script_left_goes_with_the_next_write(machine: Machine, here: Path, tree: bool) -> None:
    """Files stay that another script may be writing: a living one, or a young one of another container."""
    with subprocess.Popen(["true"]) as ended:
        pass
    old = time.time() - 4000
    names = {f".swerex-{pid}-{age}.tmp": age for pid in (ended.pid, os.getpid()) for age in ("old", "new")}
    for name, age in names.items():
        (here / name).mkdir() if tree else (here / name).write_text("x")
        if age == "old":
            os.utime(here / name, (old, old))
    if tree:
        make_tree("s")
        files.upload(machine(), "s", "t")
    else:
        files.write_text(machine(), "t", "x")
    assert set(os.listdir()) == {*names, "t", *(["s"] if tree else [])} - {f".swerex-{ended.pid}-old.tmp"}


def test_a_source_that_fails_leaves_nothing(machine: Machine, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox = machine()
    make_tree("s")
    (here / "s/closed").write_text("x" * 3_000_000)

    def fail(*_: object) -> Any:
        raise PermissionError(errno.EACCES, "Permission denied", "s/closed")

    monkeypatch.setattr("swerex_c.files.local.open_regular", fail)
    with raises(PermissionError, errno.EACCES, "s/closed"):
        files.upload(sandbox, "s", "t")
    assert os.listdir() == ["s"]


def test_an_upload_that_is_cancelled_as_it_begins_leaves_nothing(machine: Machine, here: Path) -> None:
    """Its end kills a program that has made the staging directory, and one that is about to remove it."""
    sandbox = machine(programs=("cat", "chmod", "mv", "sleep", "stat", "tar"))
    for program, when, then in (("mkdir", 'mkdir "$@"', "exec sleep 1000"), ("rm", ":", "kill -9 $$")):
        first = f"[ -e {here}/{program} ] || {{ : >{here}/{program}; {when}; {then}; }}"
        write_script(here.parent / "programs" / program, f'PATH=/usr/bin:/bin\n{first}\nexec {program} "$@"')
    make_tree("s")
    os.mkdir("to")
    uploading = background.spawn(_files.upload(sandbox.it, "s", "to/t"))
    until(lambda: os.listdir("to"))
    uploading.cancel()
    with pytest.raises(CancelledError):
        uploading.result(DEADLINE)
    assert os.listdir("to") == [] and os.path.exists("rm")


# Hostile sandboxes


def false_tar(machine: Machine, here: Path, script: str) -> Blocking:
    """Return this machine as a sandbox whose tar is a script."""
    sandbox = machine(programs=("cat", "chmod", "dd", "mkdir", "mv", "rm", "stat"))
    write_script(here.parent / "programs/tar", script)
    return sandbox


def hostile(outside: str) -> dict[str, bytes]:
    """Return archives that would change files outside of their target, or need endless memory.

    `tests/remote/test_frames_copy.py` has those that are wrong in other ways.
    """
    root, link = member("./", tarfile.DIRTYPE), member("./l", tarfile.SYMTYPE, link=outside)
    to_evil = member("./l", tarfile.SYMTYPE, link=f"{outside}/evil")
    to_kept = member("./l", tarfile.SYMTYPE, link=f"{outside}/kept")
    pairs = (b"%d k%06d=xxxxx\n" % (17, i) for i in range(1100))
    return {
        "through a link": root + link + member("./l/evil", data=b"x"),
        "onto a link": root + to_evil + member("./l", data=b"x"),
        "the root as a link": member("./", tarfile.SYMTYPE, link=outside) + member("./evil", data=b"x"),
        "a directory's link": root + link + member("./l", tarfile.DIRTYPE),
        "a name of an outer file": root + member("./n", tarfile.LNKTYPE, link=f"{outside}/kept"),
        "a name through a link": root + link + member("./n", tarfile.LNKTYPE, link="./l/kept"),
        "a link's name": root + to_kept + member("./n", tarfile.LNKTYPE, link="./l"),
        "headers without end": root + member("p", tarfile.XHDTYPE, data=b"12 path=abc\n") * 3000,
        "words without end": root
        + b"".join(member("g", tarfile.XGLTYPE, data=pair) + member(f"./{i}") for i, pair in enumerate(pairs)),
        "no end": root + member("./f", data=b"x") + bytes(3 << 20),
    }


def test_a_hostile_archive_writes_nothing_outside(machine: Machine, here: Path) -> None:
    sandbox = false_tar(machine, here, f"exec cat {shlex.quote(str(here / 'archive'))}")
    for directory in ("outside", "s", "in"):
        (here / directory).mkdir()
    (here / "outside/kept").write_text("secret")
    for what, archive in hostile(str(here / "outside")).items():
        (here / "archive").write_bytes(archive + bytes(1024))
        with pytest.raises((UploadError, ProtocolError, FileExistsError)):
            files.download(sandbox, "s", "in/t")
        assert everything(here / "outside") == {"kept": file_of(b"secret")} and os.listdir("in") == [], what


@pytest.mark.parametrize("stream", [1, 2])
@pytest.mark.parametrize("call", [files.upload, files.download])
def test_what_a_program_prints_needs_little_memory(
    machine: Machine, here: Path, call: Callable[..., object], stream: int
) -> None:
    sandbox = false_tar(machine, here, f"dd if=/dev/zero bs=65536 count=4800 status=none >&{stream}; exit 1")
    make_tree("s")
    Path("/proc/self/clear_refs").write_text("5")  # counts the most memory from now on
    before = memory_of(what="VmHWM")
    with pytest.raises((ProtocolError, ResourceError)):
        call(sandbox, "s", "t")
    assert memory_of(what="VmHWM") - before < 100 << 20, "a third of what was printed"
    assert sorted(os.listdir()) == ["s"]


@pytest.mark.parametrize("reason", ["errorcode", "__doc__", "", r"\377"])
def test_a_refusal_for_no_known_reason(machine: Machine, here: Path, reason: str) -> None:
    sandbox = false_tar(machine, here, f"printf '\\0{reason}\\0x\\0' >&2; exit 90")
    make_tree("s")
    with pytest.raises(ResourceError):
        files.download(sandbox, "s", "t")


@pytest.mark.xdist_group("engine")
@pytest.mark.parametrize("what", ["upload", "download"])
def test_a_container_that_ends_during_a_copy(
    docker: Engine, bash_min: str, container: Callable[..., str], here: Path, what: str
) -> None:
    name = container(bash_min)
    sandbox = Blocking(Sandbox(DockerBackend(name, environment=docker.environment)))
    with (here / "big").open("wb") as file:
        file.truncate(1 << 30)
    (here / "t").write_text("old")
    sandbox.run("head -c 20000000 /dev/zero >/f")
    gone = threading.Event()

    def end(done: int, size: int | None) -> None:
        if done > 5 << 20 and not gone.is_set():
            gone.set()
            docker.docker("kill", name)

    # For a moment after its end an engine may still say that a container runs.
    with pytest.raises((SandboxLostError, ResourceError)):
        if what == "upload":
            files.upload(sandbox, "big", "/big", end)
        else:
            files.download(sandbox, "/f", "t", end)
    assert (here / "t").read_text() == "old"
    assert_no_leftovers(here)
    sandbox.close()


# Containers


@pytest.mark.xdist_group("engine")
@pytest.mark.parametrize("image", ["bash_only", "bash_min"])
def test_plain_mounted_full_and_read_only_directories(
    docker_backend: StartBackend, here: Path, image: str, request: pytest.FixtureRequest
) -> None:
    small = ("--tmpfs", "/small:size=1m", "--tmpfs", "/shut:ro")
    sandbox = Blocking(Sandbox(docker_backend(request.getfixturevalue(image), *small)))
    for path, content in (("/etc/hosts", "127.0.0.1 here\n"), ("/f", "x\0" * 100_000), ("/f", "a\0\\b\n"), ("/f", "")):
        files.write_text(sandbox, path, content)
        assert files.read_text(sandbox, path) == content
    (here / "bytes").write_bytes(bytes(range(256)) * 1000)
    os.chmod("bytes", 0o644)
    files.upload(sandbox, "bytes", "/bytes")
    files.download(sandbox, "/bytes", "back")
    assert Path("back").read_bytes() == Path("bytes").read_bytes()
    files.write_text(sandbox, "/small/f", "old")
    (here / "f").write_text("x" * 3_000_000)
    (here / "s").mkdir()
    (here / "s/f").write_text("x" * 3_000_000)
    os.chmod("f", 0o644)
    for call in (
        lambda: files.write_text(sandbox, "/small/new", "x" * 3_000_000),
        lambda: files.upload(sandbox, "f", "/small/g"),
        lambda: files.upload(sandbox, "s", "/small/t"),
    ):
        if image == "bash_only" and call.__code__.co_consts[1] == "s":
            with pytest.raises(NotSupportedError, match="lacks: mkdir, mv, rm"):
                call()
            continue
        with raises(OSError, errno.ENOSPC):
            call()
        sandbox.run("for f in /small/new /small/g; do [[ ! -e $f ]] || : >$f; done")
    if image == "bash_min":
        with raises(OSError, errno.ENOSPC):
            files.write_text(sandbox, "/small/f", "x" * 3_000_000)
        assert files.read_text(sandbox, "/small/f") == "old"
        assert sandbox.run("shopt -s dotglob; cd /small; echo *").stdout.split() == [b"f"]
    with raises(OSError, errno.EROFS, "/shut/f"):
        files.write_text(sandbox, "/shut/f", "x")
    with raises(OSError, errno.EROFS, "/shut/f"):
        files.upload(sandbox, "f", "/shut/f")
    sandbox.close()


@pytest.mark.xdist_group("engine")
def test_a_user_who_is_not_root_and_an_odd_path(
    docker: Engine, debian_py: str, container: Callable[..., str], here: Path
) -> None:
    (here / "odd").mkdir()
    shutil.copy(needs.program("bash-static", "bash-static"), here / "odd/bash")
    name = container(debian_py, "-e", "PATH=/odd:.", "-w", "/tmp", "-v", f"{here}/odd:/odd")
    root = Blocking(Sandbox(DockerBackend(name, environment=docker.environment)))
    files.write_text(root, "/closed/f", "secret")
    root.run("/bin/chmod 700 /closed; /bin/mkdir -m 555 /shut; echo old >/shut/f; /bin/chmod 666 /shut/f")
    user = Blocking(Sandbox(DockerBackend(name, environment=docker.environment, arguments=["--user", "1000:1000"])))
    for call in (
        lambda: files.read_text(user, "/closed/f"),
        lambda: files.write_text(user, "/closed/f", "x"),
        lambda: files.download(user, "/closed/f", "t"),
        lambda: files.download(user, "/closed", "t"),
        lambda: files.upload(user, "s/bin/run", "/closed/f"),
        lambda: files.upload(user, "s", "/shut/t"),
        lambda: files.write_text(user, "/shut/g", "x"),
        lambda: files.write_text(user, "/etc/shadow", "x"),
    ):
        make_tree("s") if not os.path.exists("s") else None
        with raises(PermissionError, errno.EACCES) as caught:
            call()
        assert str(caught.value.filename).startswith(("/closed", "/shut", "/etc/shadow"))
    files.write_text(user, "/shut/f", "new")
    assert files.read_text(user, "/shut/f") == "new"
    os.chmod("s/bin", 0o555)
    files.upload(user, "s", "tree")
    files.download(user, "/tmp/tree", "t")
    assert everything("t") == everything("s")
    assert user.run("/usr/bin/stat -c %u /tmp/tree/bin/run").stdout == b"1000\n"
    root.close()
    user.close()
