"""Trees of files: one that has everything, and what is in one."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from swerex_c.files.local import write_text


def mode(path: str | Path) -> int:
    return stat.S_IMODE(os.lstat(path).st_mode)


def everything(root: str | Path) -> dict[str, object]:
    """A tree as its paths and what is at them."""
    seen: dict[str, object] = {}
    for path in sorted(Path(root).rglob("*")):
        name = str(path.relative_to(root))
        if path.is_symlink():
            seen[name] = ("link", os.readlink(path))
        else:
            seen[name] = ("directory", mode(path)) if path.is_dir() else (path.read_bytes(), mode(path))
    return seen


def assert_no_leftovers(root: Path) -> None:
    assert not [path for path in root.rglob("*") if ".swerex-" in path.name]


def make_tree(root: str) -> None:
    write_text(f"{root}/bin/run", "#!/bin/sh\n")
    os.chmod(f"{root}/bin/run", 0o755)
    write_text(f"{root}/a b/ü\n", "odd name")
    os.mkdir(f"{root}/empty")
    os.chmod(f"{root}/empty", 0o700)
    os.symlink("bin/run", f"{root}/link")
    os.symlink("bin", f"{root}/dirlink")
    os.symlink("/no/such/place", f"{root}/dangling")
    Path(f"{root}/bytes").write_bytes(bytes(range(256)) * 1000)
    Path(os.fsdecode(os.fsencode(root) + b"/\xff\xfe")).write_text("no UTF-8")
