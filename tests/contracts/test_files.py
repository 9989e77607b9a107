"""Files: text read and written, files and trees copied both ways, as on this machine or not at all."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from swerex_c.exceptions import InvalidInputError, UploadError
from swerex_c.models import ReadFileRequest, UploadRequest, WriteFileRequest
from tests.contracts.test_program import SIZES, data_of
from tests.support.harness import raises
from tests.support.results import WrongAnswer
from tests.support.targets import ALL, DEADLINE, Target, token
from tests.support.trees import everything, file_of, make_tree

TARGETS = [*(name for name in ALL if name != "original"), "cat", "no-tar"]


async def write(target: Target, path: str, content: str) -> None:
    await target.runtime.write_file(WriteFileRequest(path=path, content=content))


async def read(target: Target, path: str, encoding: str | None = "utf-8", errors: str | None = None) -> str:
    return (await target.runtime.read_file(ReadFileRequest(path=path, encoding=encoding, errors=errors))).content


async def upload(target: Target, source: str | Path, to: str) -> None:
    await target.runtime.upload(UploadRequest(source_path=str(source), target_path=to))


async def download(target: Target, source: str, to: str | Path) -> None:
    await target.runtime.download(source, str(to))


# ---- text

TEXTS: dict[str, str] = {
    "nothing": "",
    "line": "a line\n",
    "no newline at the end": "a\nb",
    "UTF-8": "ä € 漢 😀\n",
    "control characters": "".join(map(chr, range(10))) + "\v\f\x0e\x1b\x7f",
    "what a shell expands": "$x `y` \\1 \\0101 %s !e ~ * 'q' \"q\"\n",
    "blanks at both ends": " \n\t a \t\n ",
    "a long line": "x" * 1_000_000,
    "many lines": "".join(f"{i} ä\n" for i in range(200_000)),
    **{f"{size // 2} letters": "".join(map(chr, data_of(size // 2))).replace("\r", "\n") for size in SIZES},
}


@pytest.mark.parametrize("name", TEXTS)
async def test_what_is_written_is_read(target: Target, name: str) -> None:
    """In a directory that is made for it, and by a program."""
    path, text = f"{target.new()}/a b/file", TEXTS[name]
    await write(target, path, text)
    if (gave := await read(target, path)) != text:
        raise WrongAnswer(f"wrote {text!r:.1000}, read {gave!r:.1000}")
    if (gave := await target.says(["cat", path])) != text:
        raise WrongAnswer(f"wrote {text!r:.1000}, printed {gave!r:.1000}")


async def test_line_ends_are_written_as_they_are_and_read_as_newlines(target: Target) -> None:
    path = target.new()
    await write(target, path, "a\r\nb\rc\n")
    assert (await target.says(["cat", path])) == "a\r\nb\rc\n"
    assert await read(target, path) == "a\nb\nc\n"


@pytest.mark.parametrize("name", ["-n*", " ä\n$x%22", "'\"\\", "n" * 255, "a\udc80\udcff"])
async def test_odd_names(target: Target, tmp_path: Path, name: str) -> None:
    path, other = f"{target.new()}/{name}", f"{target.new()}/{name}"
    await write(target, path, "first")
    await write(target, path, "second")
    await download(target, path, tmp_path / name)
    await upload(target, tmp_path / name, other)
    assert await read(target, other) == await target.says(["cat", other]) == "second"


async def test_encodings(target: Target) -> None:
    path = target.new()
    await target.says(["bash", "-c", "printf 'caf\\351 \\377' >\"$0\"", path])
    assert await read(target, path, "latin-1") == "café ÿ"
    for errors, text in (("replace", "caf� �"), ("backslashreplace", "caf\\xe9 \\xff"), ("ignore", "caf ")):
        assert await read(target, path, "utf-8", errors) == text
    with pytest.raises(UnicodeDecodeError) as caught:
        await read(target, path)
    assert (caught.value.object, caught.value.start, caught.value.end) == (b"caf\xe9 \xff", 3, 4)
    with pytest.raises(LookupError):
        await read(target, path, "no-such-encoding")


async def test_bytes_that_are_no_text_survive_as_surrogates(target: Target) -> None:
    path = target.new()
    await target.says(["bash", "-c", "printf 'caf\\351' >\"$0\"", path])
    assert await read(target, path, "utf-8", "surrogateescape") == "caf\udce9"
    with pytest.raises(UnicodeEncodeError):
        await write(target, path, "\ud800")
    assert await read(target, path, "latin-1") == "café"


async def test_an_existing_file_keeps_its_mode_its_owner_and_the_names_and_links_that_it_has(target: Target) -> None:
    root = target.new()
    await write(target, f"{root}/file", "old and long")
    await target.says(f"cd {root} && chmod 751 file && ln -s file link && ln -s {root}/link two && ln -s new dangling")
    await target.execute(f"chown 12345:23456 {root}/file")  # if this user may
    owner = await target.says(f"stat -c %u:%g {root}/file")
    await write(target, f"{root}/two", "new")
    await write(target, f"{root}/dangling", "made")
    look = f"cd {root}; stat -c '%u:%g\n%a' file; for link in link two dangling; do readlink $link; done; cat file new"
    assert await target.says(look) == f"{owner}751\nfile\n{root}/link\nnew\nnewmade"
    await target.says(f"ln {root}/new {root}/other")
    await write(target, f"{root}/new", "newer")
    assert await target.says(f"cat {root}/other") == "newer"
    await write(target, "/dev/null", "x")
    assert await target.says("[ -c /dev/null ] && ls -A " + root) == "dangling\nfile\nlink\nnew\nother\ntwo\n"


async def test_a_reader_sees_the_old_text_or_the_new_one(target: Target) -> None:
    path, texts = f"{target.new()}/file", ["a" * 200_000, "b" * 100_000, "c"]
    await write(target, path, "c")

    async def write_often(text: str) -> None:
        for _ in range(5):
            await write(target, path, text)

    writing = asyncio.gather(*map(write_often, texts))
    seen = set()
    while not writing.done():
        seen.add(await read(target, path))
    await writing
    assert seen <= set(texts)
    assert await target.says(f"ls -A {os.path.dirname(path)}") == "file\n"


async def test_what_is_no_ordinary_file_is_read(target: Target) -> None:
    assert await read(target, "/dev/null") == ""
    assert (await read(target, "/proc/self/status")).startswith("Name:")
    assert await read(target, "/proc/sys/kernel/ostype") == "Linux\n"


ERRORS: dict[str, tuple[str, type[OSError], int]] = {
    "no file": ("none/file", FileNotFoundError, errno.ENOENT),
    "no name": ("", FileNotFoundError, errno.ENOENT),
    "directory": ("directory", IsADirectoryError, errno.EISDIR),
    "below a file": ("file/below", NotADirectoryError, errno.ENOTDIR),
    "name that is too long": ("n" * 300, OSError, errno.ENAMETOOLONG),
    "circle of links": ("circle", OSError, errno.ELOOP),
}


async def some(target: Target) -> str:
    """A directory with a file, a directory and a circle of links."""
    root = target.new()
    await target.says(f"mkdir -p {root}/directory && cd {root} && echo x >file && ln -s circle circle")
    return root


@pytest.mark.parametrize("name", ERRORS)
async def test_what_cannot_be_read_says_which_file_and_why(target: Target, name: str) -> None:
    root = await some(target)
    below, kind, number = ERRORS[name]
    path = below and f"{root}/{below}"
    with raises(kind, number, path):
        await read(target, path)


async def test_what_cannot_be_written_changes_nothing(target: Target) -> None:
    root = await some(target)
    before = await look(target, root)
    with raises(IsADirectoryError, errno.EISDIR, f"{root}/directory"):
        await write(target, f"{root}/directory", "x")
    for path in ("file/below", "circle", "n" * 300):
        with pytest.raises(OSError):
            await write(target, f"{root}/{path}", "x")
    assert await look(target, root) == before


@pytest.mark.slow
async def test_a_named_pipe_without_its_other_end_is_an_error_in_time(target: Target, tmp_path: Path) -> None:
    root = target.new()
    await target.says(f"mkdir {root}; mkfifo {root}/r {root}/w {root}/u")
    (tmp_path / "f").write_text("x" * 300_000)
    calls = [read(target, f"{root}/r"), write(target, f"{root}/w", "x"), upload(target, tmp_path / "f", f"{root}/u")]
    errors = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), DEADLINE)
    for error, name in zip(errors, "rwu", strict=True):
        assert isinstance(error, OSError) and error.errno in (errno.ETIMEDOUT, errno.ENXIO), errors
        assert error.filename == f"{root}/{name}", errors


async def test_a_nul_in_a_path_is_refused(target: Target, tmp_path: Path) -> None:
    odd, here = "a\0b", str(tmp_path)
    for call in (read(target, odd), write(target, odd, "x"), upload(target, here, odd), upload(target, odd, here)):
        with pytest.raises((InvalidInputError, UploadError), match="NUL"):
            await call


# ---- trees

_LOOK = """cd "$1" && shopt -s dotglob nullglob
look() {
    local path
    for path in "$1"*; do
        printf '%s\\0' "$path"
        if [[ -L $path ]]; then
            printf 'link %s\\0' "$(readlink -- "$path")"
        elif [[ -d $path ]]; then
            printf 'directory %s\\0' "$(stat -c %a -- "$path")"
            look "$path/"
        else
            sum=$(sha256sum <"$path")
            printf '%s %s\\0' "$(stat -c %a -- "$path")" "${sum%% *}"
        fi
    done
}
look ''"""


async def look(target: Target, root: str) -> dict[str, str]:
    """Return what is below a directory of the sandbox, by a way that is not the tested one."""
    answer = await target.execute(["bash", "-c", _LOOK, "bash", root])
    assert answer.exit_code == 0, answer
    words = answer.stdout.split("\0")
    return dict(zip(words[0::2], words[1::2], strict=False))


@pytest.mark.slice
async def test_a_tree_is_copied_both_ways_as_it_is(target: Target, tmp_path: Path) -> None:
    """But for set-user-ID and set-group-ID bits, names of one file, which become several, and, without tar, times."""
    has_tar = (await target.execute(["bash", "-c", "type -P tar"])).exit_code == 0
    source, there, back = make_tree(tmp_path / "s"), f"{target.new()}/deep/er", tmp_path / "new/back"
    (source / ".git").chmod(0o1755)
    os.link(source / "big", source / "bin/big")
    os.utime(source / "big", (1_000_000_000, 1_000_000_000))
    expected = everything(source)
    (source / "bin/run").chmod(0o6755)
    await upload(target, source, there)
    assert await look(target, there) == expected
    assert await target.says(f"cd {there}; stat -c %h big bin/big") == "1\n1\n"
    assert await target.says(f"stat -c %Y {there}/big") == "1000000000\n" or not has_tar
    await target.says(f"cd {there}; chmod 4711 ./-n; chmod 6755 bin/run; ln -f big bin/big")
    (source / "-n").chmod(0o711)
    (source / "bin/run").chmod(0o755)
    await download(target, there, back)
    assert everything(back) == everything(source) and os.listdir(tmp_path / "new") == ["back"]
    assert [(back / name).stat().st_nlink for name in ("big", "bin/big")] == [1, 1]
    assert (back / "big").stat().st_mtime == 1_000_000_000 or not has_tar


async def test_trees_merge_when_they_are_uploaded(target: Target, tmp_path: Path) -> None:
    """Files are replaced, also read-only ones and links; the rest stays; so it is once more, by a link to it."""
    source, there = make_tree(tmp_path / "s"), target.new()
    plant = "mkdir -p bin && echo kept >kept && echo kept >bin/kept && echo old >bin/run && echo old >link"
    plant += " && ln -s /no bytes && echo old >secret && chmod 444 secret bin/run && chmod 1711 bin"
    await target.says(f"mkdir -p {there} && cd {there} && {plant} && ln -s {there} {there}.link")
    expected = everything(source) | {"bin": "directory 1711"}
    for to in (there, f"{there}.link"):
        await upload(target, source, to)
        found = await look(target, there)
        assert found.pop("kept") == found.pop("bin/kept") == file_of(b"kept\n")
        assert found == expected


async def test_trees_merge_when_they_are_downloaded(target: Target, tmp_path: Path) -> None:
    source, there, back = make_tree(tmp_path / "s"), target.new(), tmp_path / "back"
    await upload(target, source, there)
    (back / "bin").mkdir(parents=True)
    for name in ("kept", "bin/kept", "bin/run", "link"):
        (back / name).write_text("kept")
    (back / "bin/run").chmod(0o444)
    (back / "bin").chmod(0o711)
    (back / "bytes").symlink_to("nowhere")
    for _ in range(2):
        await download(target, there, back)
        found = everything(back)
        assert found.pop("kept") == found.pop("bin/kept")
        assert found == everything(source) | {"bin": "directory 711"}


@pytest.mark.parametrize("mode", [0o755, 0o640, 0o444])
async def test_a_file_is_copied_both_ways_with_its_mode(target: Target, tmp_path: Path, mode: int) -> None:
    there, data = target.new(), random.Random(mode).randbytes(100_000)
    expected = file_of(data, f"{mode:o}")
    (tmp_path / "f").write_bytes(data)
    (tmp_path / "f").chmod(mode)
    for _ in range(2):  # the second replaces the first, which may be read-only
        await upload(target, tmp_path / "f", f"{there}/new/file")
    assert await look(target, there) == {"new": "directory 755", "new/file": expected}
    (tmp_path / "old").write_text("old")
    (tmp_path / "old").chmod(0o444)
    (tmp_path / "into").mkdir()
    for to in ("new/back", "old", "into", "into/"):
        await download(target, f"{there}/new/file", f"{tmp_path}/{to}")
    found = everything(tmp_path)
    assert [found[name] for name in ("new/back", "old", "into/file")] == [expected] * 3


async def test_a_file_onto_a_directory_goes_into_it(target: Target, tmp_path: Path) -> None:
    """And replaces a link there; one that is itself the target is followed."""
    there = target.new()
    await target.says(f"mkdir {there}; echo old >{there}.outside; ln -s {there}.outside {there}/f")
    (tmp_path / "f").write_text("x")
    for to in (there, f"{there}/"):
        await upload(target, tmp_path / "f", to)
        assert await look(target, there) == {"f": file_of(b"x")}
    assert await target.says(f"cat {there}.outside; ln -s {there}.outside {there}.link") == "old\n"
    await upload(target, tmp_path / "f", f"{there}.link")
    assert await target.says(f"readlink {there}.link; cat {there}.outside") == f"{there}.outside\nx"


async def test_a_source_that_is_a_link_is_copied_as_what_it_leads_to(target: Target, tmp_path: Path) -> None:
    here, there, back = tmp_path / "here", target.new(), tmp_path / "back"
    (here / "d").mkdir(parents=True)
    (here / "d/f").write_text("x")
    (here / "to_file").symlink_to("d/f")
    (here / "to_directory").symlink_to("d")
    expected = {"file": file_of(b"x"), "tree": "directory 755", "tree/f": file_of(b"x")}
    await upload(target, here / "to_file", f"{there}/file")
    await upload(target, here / "to_directory", f"{there}/tree")
    assert await look(target, there) == expected
    await target.says(f"cd {there}; ln -s file to_file; ln -s tree to_directory")
    await download(target, f"{there}/to_file", back / "file")
    await download(target, f"{there}/to_directory", back / "tree")
    assert everything(back) == expected


async def test_what_does_not_fit_is_refused_before_anything_is_uploaded(target: Target, tmp_path: Path) -> None:
    there = target.new()
    plant = "mkdir -p 1/b 2 4 outside; echo old | tee 2/a 3 >outside/f; ln -s ../outside 4/a; mkfifo pipe"
    await target.says(f"mkdir {there}; cd {there}; {plant}; mkdir 5; ln pipe 5/b")
    (tmp_path / "s/a").mkdir(parents=True)
    for name in ("0", "a/f", "b"):
        (tmp_path / "s" / name).write_text("new")
    before = await look(target, f"{there}/outside"), await look(target, f"{there}/2")
    for to, wrong in (("1", "1/b"), ("2", "2/a"), ("3", "3"), ("4", "4/a"), ("5", "5/b")):
        with pytest.raises(UploadError, match=f"{there}/{wrong}'.* a (directory|file|link|special file) is there"):
            await upload(target, tmp_path / "s", f"{there}/{to}")
    assert (await look(target, f"{there}/outside"), await look(target, f"{there}/2")) == before
    assert await target.says(f"cd {there}; echo *; echo [1245]/*") == "1 2 3 4 5 outside pipe\n1/b 2/a 4/a 5/b\n"


async def test_what_does_not_fit_is_refused_before_anything_is_downloaded(target: Target, tmp_path: Path) -> None:
    there = target.new()
    await target.says(f"mkdir -p {there}/1 {there}/2/a; cd {there}; echo new | tee 1/0 1/b 2/0 >3")
    (tmp_path / "1/b").mkdir(parents=True)
    (tmp_path / "2").mkdir()
    (tmp_path / "2/a").write_text("old")
    (tmp_path / "file").write_text("old")
    before = everything(tmp_path)
    for source, to in (("1", "1"), ("2", "2"), ("1", "file")):
        with pytest.raises(UploadError):
            await download(target, f"{there}/{source}", tmp_path / to)
    assert everything(tmp_path) == before


def unix_socket(path: Path) -> Any:
    listening = socket.socket(socket.AF_UNIX)
    directory = os.open(path.parent, os.O_PATH)  # a socket's path has at most 107 bytes
    listening.bind(f"/proc/self/fd/{directory}/{path.name}")
    os.close(directory)
    return listening


@pytest.mark.parametrize("special", [os.mkfifo, unix_socket])
async def test_special_files_are_not_uploaded(target: Target, tmp_path: Path, special: Callable[[Path], Any]) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "s/file").write_text("x")
    kept = special(tmp_path / "s/special")
    there = target.new()
    with pytest.raises(UploadError, match="special"):
        await upload(target, tmp_path / "s/special", there)
    assert (await target.execute(["ls", "-d", there])).exit_code != 0, "something was copied"
    await upload(target, tmp_path / "s", there)
    assert list(await look(target, there)) == ["file"]
    if kept is not None:
        kept.close()


async def test_special_files_are_not_downloaded(target: Target, tmp_path: Path) -> None:
    there, back = target.new(), tmp_path / "back"
    await target.says(f"mkdir {there}; echo x >{there}/file; mkfifo {there}/special")
    with pytest.raises(UploadError, match="special"):
        await download(target, f"{there}/special", back)
    assert not os.path.lexists(back)
    await download(target, there, back)
    assert os.listdir(back) == ["file"]


async def test_a_missing_source_is_named(target: Target, tmp_path: Path) -> None:
    there = target.new()
    with raises(FileNotFoundError, errno.ENOENT, f"{tmp_path}/none"):
        await upload(target, tmp_path / "none", there)
    with raises(FileNotFoundError, errno.ENOENT, there):
        await download(target, there, tmp_path / "back")
    assert os.listdir(tmp_path) == []


async def test_no_link_in_a_downloads_target_is_followed(target: Target, tmp_path: Path) -> None:
    """Whoever planted links at the target, nothing is written where they lead."""
    there, outside = target.new(), tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("safe")
    await target.says(f"mkdir -p {there}/a/b; cd {there}; echo new | tee a/file a/b/file >file")
    before = everything(outside)
    back = tmp_path / "back"
    for planted in ("a", "a/b", "a/file", "file"):
        back.joinpath(planted).parent.mkdir(parents=True, exist_ok=True)
        leads = outside / "file" if planted.endswith("file") else outside
        back.joinpath(planted).symlink_to(leads)
        try:
            await download(target, there, back)
        except UploadError:
            pass  # a link where a directory comes may be refused
        else:
            assert not back.joinpath(planted).is_symlink()
        assert everything(outside) == before
        os.system(f"rm -rf {back}")
    (tmp_path / "link").symlink_to(outside / "file")
    await download(target, f"{there}/file", tmp_path / "link")
    assert not (tmp_path / "link").is_symlink() and everything(outside) == before


async def test_links_of_the_sandbox_lead_nowhere_here(target: Target, tmp_path: Path) -> None:
    """A tree whose links lead out of it is copied with the links, and nothing of what they lead to."""
    there = target.new()
    links = "ln -s /etc/passwd one; ln -s ../../.. two; ln -s /proc/self/root three; ln -s . four"
    await target.says(f"mkdir {there}; cd {there}; {links}")
    await download(target, there, tmp_path / "back")
    assert set(everything(tmp_path / "back").values()) == {
        "link /etc/passwd",
        "link ../../..",
        "link /proc/self/root",
        "link .",
    }


async def test_files_whose_size_the_system_does_not_know_are_uploaded(target: Target, tmp_path: Path) -> None:
    """Those of /proc have 0 bytes, and those of /sys 4096, whatever is in them."""
    there = target.new()
    files = {"file": "/sys/devices/system/cpu/online", "new": "/proc/sys/kernel/ostype"}
    for name, source in files.items():
        await upload(target, source, f"{there}/{name}")
    await upload(target, "/sys/devices/system/cpu/cpu0/topology", f"{there}/tree")
    await upload(target, "/proc/sys/kernel/keys", f"{there}/tree")
    expected = {f"{there}/{name}": Path(source) for name, source in files.items()}
    for directory in ("/sys/devices/system/cpu/cpu0/topology", "/proc/sys/kernel/keys"):
        expected |= {f"{there}/tree/{path.name}": path for path in Path(directory).iterdir()}
    for path, source_file in expected.items():
        assert await read(target, path) == source_file.read_text(), path


async def test_one_tree_is_uploaded_to_one_target_by_several_callers_at_once(target: Target, tmp_path: Path) -> None:
    source = tmp_path / "s"
    for name in ("a/b/c", *map(str, range(30))):
        (source / name).mkdir(parents=True)
        (source / name / "file").write_text(name)
    (source / "empty").mkdir()
    for _ in range(5):
        there = target.new()
        await asyncio.gather(*(upload(target, source, there) for _ in range(6)))
        assert await look(target, there) == everything(source)
        assert await target.says(f"ls -A {os.path.dirname(there)} | grep swerex || :") == ""


async def test_many_copies_at_once(target: Target, tmp_path: Path) -> None:
    there, data = target.new(), random.Random(5).randbytes(300_000)
    (tmp_path / "f").write_bytes(data)
    calls = [upload(target, tmp_path / "f", f"{there}/{i}") for i in range(8)]
    text = token()
    writes = [write(target, f"{there}/w{i}", f"{text}{i}") for i in range(8)]
    await asyncio.gather(*calls, *writes)
    found = await look(target, there)
    assert {found.pop(f"{i}") for i in range(8)} == {file_of(data)}
    assert sorted(found) == [f"w{i}" for i in range(8)]
    texts = await asyncio.gather(*(read(target, f"{there}/w{i}") for i in range(8)))
    assert texts == [f"{text}{i}" for i in range(8)]
