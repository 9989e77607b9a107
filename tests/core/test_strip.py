"""The strip filter against a definition of the same thing in one regular expression."""

from __future__ import annotations

import re
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swerex_c import _core
from tests.support import needs

LIMIT = 4096
SEQUENCE = re.compile(
    rb"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI
    rb"|\x1b\][^\x07\x18\x1a\x1b\n]*(?:\x07|\x1b\\)"  # OSC
    rb"|\x1b[PX^_][^\x18\x1a\x1b]*\x1b\\"  # DCS, SOS, PM, APC
    rb"|\x1b[ -/]+[0-~]"  # nF
    rb"|\x1b[0-OQ-WYZ\\`-~]"  # Fp, Fe, Fs
)


TOKEN = re.compile(rb"\xc2(?=\xc2)|\xc2[\x80-\x84\x86-\x9f]|.", re.DOTALL)


def defined(data: bytes) -> bytes:
    def removed(match: re.Match[bytes]) -> bytes:
        """Too long: given up, but an ESC \\ at its end is then a sequence of its own."""
        return b"" if len(match[0]) <= LIMIT else match[0].removesuffix(b"\x1b\\")

    plain = b""
    for token in TOKEN.findall(SEQUENCE.sub(removed, data).replace(b"\x1b", b"")):
        if not (plain.endswith(b"\xc2") and 0x80 <= token[-1] <= 0x9F and token[-1] != 0x85):
            plain += token[1:] if len(token) == 2 else token
    return plain


def strip(data: bytes) -> bytes:
    filtered = _core.Strip()
    return filtered.feed(data) + filtered.finish()


PIECES = [
    *[b"\x1b", b"\x1b[", b"\x1b]", b"\x1bP", b"\x1bX", b"\x1b^", b"\x1b_", b"\x1b\\", b"\\", b"\x07", b"m", b"0;1"],
    *[b" ", b"(", b"B", b"\r", b"\n", b"\r\n", b"a", b"\x18", b"\x1a", b"\x9b", b"\xff", b"\0", b"\x7f", b"~"],
    *[b"[", b"]", b"?", b"x" * 4090, b"\xc2", b"\xc2\x9b", b"\x85", "é".encode(), "°".encode()],
]


@pytest.mark.slow
@settings(max_examples=3000, deadline=None)
@given(st.lists(st.sampled_from(PIECES) | st.binary(max_size=3), max_size=16).map(b"".join))
def test_same_as_the_definition(data: bytes) -> None:
    assert strip(data) == defined(data)


@pytest.mark.parametrize("term", ["xterm-256color", "screen", "linux", "vt100"])
def test_real_programs(term: str) -> None:
    """What tput writes for this terminal disappears."""
    names = ["bold", "sgr0", "smcup", "rmcup", "civis", "cnorm", "el", "clear", "smkx", "rmkx", "op"]
    with needs.else_skipped():
        tput = needs.program("tput", "ncurses-bin")
        written = b"|".join(subprocess.run([tput, "-T", term, name], capture_output=True).stdout for name in names)
        if len(written) < 30:
            raise needs.Lacking(f"the terminal description {term}")
    left = re.sub(rb"\$<\d+[*/]?>", b"", strip(written)).replace(b"\x0f", b"")  # padding, shift in
    assert left == b"|" * (len(names) - 1)


def test_types() -> None:
    assert strip(b"\x1b[ma\r\n") == b"a\r\n"
    assert strip(b"") == b""
    with pytest.raises(TypeError):
        _core.Strip().feed("text")  # type: ignore[arg-type]
