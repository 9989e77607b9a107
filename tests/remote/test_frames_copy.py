"""Uploads and downloads over frames: cancelled ones, and hostile names and archives."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import tarfile
import threading
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from swerex_c.exceptions import ResultLostError, SwerexException
from swerex_c.remote.wire import file_transfer
from swerex_c.remote.wire.protocol import DATA, DOWN, END, ERROR, GOODBYE, RESULT, UP
from tests.support.frames_tools import Served, channel_to, keep_answering, raw_client, raw_server, request
from tests.support.trees import everything
from tests.support.wait import DEADLINE, until_async

pytestmark = pytest.mark.usefixtures("family")


async def test_a_file_is_closed_whose_opening_is_cancelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opening, go_on, opened = threading.Event(), threading.Event(), list[BinaryIO]()

    def slow(path: str) -> BinaryIO:
        opening.set()
        go_on.wait(DEADLINE)
        opened.append(open(path, "rb"))
        return opened[0]

    async def send() -> None:
        async with file_transfer.open_stream(str(tmp_path / "f")):
            pass

    monkeypatch.setattr(file_transfer, "open_regular", slow)
    (tmp_path / "f").write_bytes(b"x")
    sending = asyncio.create_task(send())
    await asyncio.to_thread(opening.wait, DEADLINE)
    sending.cancel()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await sending
    await until_async(lambda: opened and opened[0].closed)


# From peers that mean no good


def archive(*members: tuple[tarfile.TarInfo, bytes], form: int = tarfile.PAX_FORMAT) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as tar:
        for member, data in members:
            member.size = len(data) if data else member.size
            tar.addfile(member, io.BytesIO(data) if data else None)
    return out.getvalue()


def entry(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", data: bytes = b"", **more: Any) -> Any:
    member = tarfile.TarInfo(name)
    member.type = kind
    member.linkname = link
    for key, value in more.items():
        setattr(member, key, value)
    return member, data


ROOT = entry("./", tarfile.DIRTYPE, mode=0o755)


BLOCK = archive(entry("x", data=b"1"))[:512]
BROKEN = BLOCK[:100] + b"zzzzzzzz" + BLOCK[108:] + bytes(1024)
HUGE = tarfile.TarInfo("pax")
HUGE.type, HUGE.size = tarfile.XHDTYPE, 1 << 33


def sparse(data: bytes, **fields: str) -> Any:
    return entry("./s", data=data, pax_headers={f"GNU.sparse.{key}": value for key, value in fields.items()})


HOSTILE: dict[str, bytes] = {
    "absolute": archive(ROOT, entry("/tmp/swerex-escaped", data=b"x")),
    "parent": archive(ROOT, entry("../escaped", data=b"x")),
    "parent below": archive(ROOT, entry("./a/../../escaped", data=b"x")),
    "root is a file": archive(entry("./", data=b"x"), entry("./escaped", data=b"x")),
    "no root": archive(entry("./escaped", data=b"x")),
    "twice": archive(ROOT, entry("./f", data=b"1"), entry("./f", data=b"2")),
    "hard link": archive(ROOT, entry("./h", tarfile.LNKTYPE, "/etc/passwd")),
    "no parent": archive(ROOT, entry("./a/b/c", data=b"x")),
    "NUL in name": archive(ROOT, entry("./n", data=b"x", pax_headers={"path": "./a\0b"})),
    "NUL in link": archive(ROOT, entry("./n", tarfile.SYMTYPE, pax_headers={"linkpath": "a\0b"})),
    "empty link": archive(ROOT, entry("./n", tarfile.SYMTYPE, "")),
    "endless name": archive(ROOT, entry("./" + "n" * 300, data=b"x")),
    "negative size": archive(ROOT, entry("./t", data=b"x", pax_headers={"size": "-5"})),
    "sparse": archive(ROOT, sparse(b"x" * 512, size=str(1 << 50), map="0,1")),
    "sparse with a bad map": archive(ROOT, sparse(b"x\n" * 256, major="1", minor="0", realsize="9")),
    "sparse with a strange map": archive(ROOT, sparse(b"x", size="9", map="a,b")),
    "unknown kind": archive(ROOT, entry("./k", b"?")),
    "garbage": os.urandom(5000),
    "broken header": archive(ROOT)[:512] + BROKEN,
    "broken first": BROKEN,
    "huge pax header": archive(ROOT)[:512] + HUGE.tobuf(tarfile.GNU_FORMAT) + bytes(1 << 20),
    "half of a file": archive(ROOT, entry("./f", data=b"x" * 5000))[:3000],
    "nothing": b"",
}
"""Links that lead out are planted in `test_a_hostile_archive_writes_nothing_outside`, by the same way."""

HEADS = [
    *(b"", b"{}", b"{}\n", b"[]\n", b"null\n", b"[" * 60000 + b"\n", b"x" * 70000, b"\xff\n", b'{"kind": "tree"}'),
    *(b'{"kind": "fifo"}\n', b'{"kind": ["file"]}\n', b'{"kind": "file", "mode": "x"}\n'),
    *(b'{"kind": "file", "mode": 1e9}\n', b'{"kind": "file", "name": 5}\n'),
]
NAMES = [".bashrc", "../escaped", "/escaped", "..", ".", "a\0b", "\ud800", "x" * 300, "a/../../escaped"]


STREAMS = [(f"head {head[:30]!r}", head) for head in HEADS]
STREAMS += [(name, b'{"kind": "tree"}\n' + data) for name, data in HOSTILE.items()]


def prepared(tmp_path: Path) -> dict[str, object]:
    (tmp_path / "out").mkdir(exist_ok=True)
    (tmp_path / "in").mkdir(exist_ok=True)
    (tmp_path / "in" / "kept").write_text("k")
    return everything(tmp_path)


async def test_hostile_uploads(served: Served, tmp_path: Path) -> None:
    """Each is refused with a typed error, and changes neither the target nor anything else."""
    before = prepared(tmp_path)
    for i, (what, data) in enumerate(STREAMS):
        async with raw_client(served.port, name=i.to_bytes(16, "big")) as peer:
            peer.send(request(1, "upload", {"target_path": str(tmp_path / "in" / "new")}))
            for start in range(0, len(data), 200_000):
                peer.send([DATA, 1, UP, start, data[start : start + 200_000]])
            if what != "huge pax header":  # which is refused before the end, or it would be kept in memory
                peer.send([END, 1, UP, len(data)])
            answer = await peer.answer(1)
            assert answer is not None and answer[0] == ERROR, what
            kind = answer[-1]["class_path"]
            assert "swerex" in kind or kind.endswith(("FileExistsError", "FileNotFoundError", "OSError")), (what, kind)
        await until_async(lambda: served.running == 0)
        assert not any(exchange.up for exchange in served.exchanges), "the stream of what was refused takes memory"
        assert everything(tmp_path) == before, what
    assert not os.path.exists("/tmp/swerex-escaped")


@pytest.mark.parametrize("name", NAMES)
async def test_hostile_names(tmp_path: Path, name: str) -> None:
    """The file is stored in the given directory under the requested name only."""
    prepared(tmp_path)
    data = json.dumps({"kind": "file", "name": name, "mode": 0o644}).encode() + b"\nx"

    def respond(frame: list[Any]) -> list[Any]:
        return [[DATA, frame[1], DOWN, 0, data], [RESULT, frame[1], len(data), {}]]

    async with raw_server(lambda peer: keep_answering(peer, respond)) as port, channel_to(port) as channel:
        with contextlib.suppress(SwerexException, OSError):
            await channel.download("/there/x", str(tmp_path / "in"))
    assert sorted(os.listdir(tmp_path)) == ["home", "in", "out"]
    assert not os.listdir(tmp_path / "out")
    assert sorted(os.listdir(tmp_path / "in")) in ([["kept", "x"]] if name == ".bashrc" else [["kept"], ["kept", "x"]])
    assert (tmp_path / "in" / "kept").read_text() == "k"


async def test_strange_archives_that_are_taken(served: Served, tmp_path: Path) -> None:
    """A file with an invalid time is accepted; special files are left out."""
    data = b'{"kind": "tree"}\n' + archive(
        ROOT,
        entry("./a", data=b"x", pax_headers={"mtime": "1e300"}),
        entry("./b", data=b"x", pax_headers={"mtime": "nan"}),
        entry("./c", tarfile.DIRTYPE, mode=0o755, pax_headers={"mtime": "-inf"}),
        entry("./d", tarfile.CHRTYPE, devmajor=1, devminor=3),
        entry("./e", tarfile.BLKTYPE, devmajor=8),
        entry("./f", tarfile.FIFOTYPE),
    )
    async with raw_client(served.port) as peer:
        peer.send(request(1, "upload", {"target_path": str(tmp_path / "new")}))
        peer.send([DATA, 1, UP, 0, data], [END, 1, UP, len(data)])
        assert (await peer.answer(1))[0] == RESULT
    assert sorted(os.listdir(tmp_path / "new")) == ["a", "b", "c"]


@pytest.mark.parametrize("missing", [0, 1])
async def test_an_answer_may_come_before_its_bytes(tmp_path: Path, missing: int) -> None:
    """A download is complete when its bytes are there, and fails if they never arrive."""
    data = b'{"kind": "file", "name": "x", "mode": 420}\nabc'

    def respond(frame: list[Any]) -> list[Any]:
        pieces = [[DATA, frame[1], DOWN, at, data[at : at + 5]] for at in range(0, len(data), 5)]
        return [[RESULT, frame[1], len(data) + missing, {}], *pieces, [GOODBYE, "no more"]]

    async with raw_server(lambda peer: keep_answering(peer, respond)) as port, channel_to(port) as channel:
        downloading = asyncio.wait_for(channel.download("/x", str(tmp_path / "new")), 30)
        if missing:
            with pytest.raises(ResultLostError):
                await downloading
            await until_async(lambda: os.listdir(tmp_path) == ["home"])
        else:
            await downloading
            assert (tmp_path / "new").read_text() == "abc"
