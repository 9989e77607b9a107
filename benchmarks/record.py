"""Records of runs, kept as JSON below record/."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["FILE", "RECORDS", "Record", "find", "latest", "read", "write"]

Record = dict[str, Any]

RECORDS = Path(__file__).resolve().parent / "record"
FILE = "run.json"


def write(found: Record) -> Path:
    """Keep a run in a directory of its own, named by date and commit, and return its file."""
    about = found["machine"]
    date = str(about["date"]).replace(" UTC", "").replace(" ", "-").replace(":", "")
    path = RECORDS / f"{date}-{about['commit']}" / FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1) + "\n")
    return path


def read(path: Path) -> Record:
    found: Record = json.loads(path.read_text())
    return found


def find(name: str) -> Path:
    """Return the file of a record by its path, or by how the name of its directory below record/ begins.

    Raises:
        LookupError: if there is not exactly one.
    """
    path = Path(name)
    if path.is_file() or (path / FILE).is_file():
        return path if path.is_file() else path / FILE
    fitting = sorted(RECORDS.glob(f"{name}*/{FILE}"))
    if len(fitting) != 1:
        raise LookupError(f"{len(fitting)} records begin with {name!r} in {RECORDS}: name one of them")
    return fitting[0]


def latest(suits: Callable[[Record], bool]) -> Path:
    """Return the file of the newest record that suits.

    Raises:
        LookupError: if there is none.
    """
    for path in sorted(RECORDS.glob(f"*/{FILE}"), reverse=True):
        if suits(read(path)):
            return path
    raise LookupError(f"no record in {RECORDS} has what is needed: make one with `python -m benchmarks`")
