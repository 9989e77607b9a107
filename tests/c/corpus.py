"""Fuzz corpora: one file for each target, with one input in hexadecimal on each line.

    corpus.py unpack FILE DIRECTORY    write each input to a file of its own
    corpus.py pack DIRECTORY FILE      write the inputs of a directory into one file, sorted by length
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path


def unpack(packed: Path, directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for line in packed.read_text().splitlines():
        data = bytes.fromhex(line)
        (directory / hashlib.sha1(data).hexdigest()).write_bytes(data)


def pack(directory: Path, packed: Path) -> None:
    inputs = sorted({path.read_bytes() for path in directory.iterdir()}, key=lambda data: (len(data), data))
    packed.write_text("".join(f"{data.hex()}\n" for data in inputs))


if __name__ == "__main__":
    {"unpack": unpack, "pack": pack}[sys.argv[1]](Path(sys.argv[2]), Path(sys.argv[3]))
