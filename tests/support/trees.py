"""Trees of files: one that has everything that can be copied, and what is in one."""

from __future__ import annotations

import hashlib
import io
import os
import random
import stat
import tarfile
import zipfile
from pathlib import Path


def mode(path: str | Path) -> int:
    return stat.S_IMODE(os.lstat(path).st_mode)


def file_of(data: bytes, mode: str = "644") -> str:
    """Return what `everything` tells of a file."""
    return f"{mode} {hashlib.sha256(data).hexdigest()}"


def everything(root: str | Path) -> dict[str, str]:
    """Return a tree as its paths and what is at them."""
    found = {}
    for path in Path(root).rglob("*"):
        name = os.fsencode(path.relative_to(root)).decode("utf-8", "backslashreplace")
        if path.is_symlink():
            found[name] = f"link {os.readlink(path)}"
        elif path.is_dir():
            found[name] = f"directory {mode(path):o}"
        else:
            found[name] = file_of(path.read_bytes(), f"{mode(path):o}")
    return found


def assert_no_leftovers(root: Path) -> None:
    assert not [path for path in root.rglob("*") if ".swerex-" in path.name]


def member(name: str, kind: bytes = tarfile.REGTYPE, data: bytes = b"", link: str = "") -> bytes:
    """Return a member of a tar archive."""
    head = tarfile.TarInfo(name)
    head.type, head.size, head.linkname, head.mode = kind, len(data), link, 0o755
    return head.tobuf(tarfile.GNU_FORMAT) + data + bytes(-len(data) % 512)


def zipped(*entries: tuple[str, bytes, int], method: int = zipfile.ZIP_STORED) -> bytes:
    """Return a zip archive of (name, content, mode)."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, content, mode in entries:
            info = zipfile.ZipInfo(name)
            info.create_system, info.external_attr, info.compress_type = 3, mode << 16, method
            archive.writestr(info, content)
    return file.getvalue()


def make_tree(at: str | Path) -> Path:
    root = Path(at)
    for directory in ("empty/deep", "bin", ".git", f"{'d' * 120}/{'e' * 120}"):
        (root / directory).mkdir(parents=True)
    for name, data in {
        "bin/run": b"#!/bin/sh\n",
        ".git/config": b"c",
        "..more": b"m",
        "-n": b"",
        "a b\tü\n": b"odd",
        "n" * 200: b"long",
        f"{'d' * 120}/{'e' * 120}/f": b"far",
        "secret": b"s",
        "bytes": bytes(range(256)) * 100,
        "big": random.Random(7).randbytes(1_500_001),
    }.items():
        (root / name).write_bytes(data)
    Path(os.fsdecode(os.fsencode(root) + b"/\xff\xfe")).write_bytes(b"no UTF-8")
    for name, number in {"bin/run": 0o755, "secret": 0o600, "empty": 0o700}.items():
        (root / name).chmod(number)
    links = {"dangling": "/no/such/place", "link": "bin/run", "to_directory": "bin", "out": "/etc"}
    for name, leads in links.items():
        (root / name).symlink_to(leads)
    return root
