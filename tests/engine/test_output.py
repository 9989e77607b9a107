"""The text of a long output."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.session import Shell

LONG = 300_000

PIECES = {
    "lines": b"a b\n", "letters": b"x", "colours": b"\x1b[31mred\x1b[0m ", "beyond ascii": "ä漢🦊".encode(),
    "no utf-8": b"\xff\xfe-", "cr": b"a\r\n", "nul": b"\0", "escapes alone": b"\x1b",
}  # fmt: skip


@pytest.mark.parametrize("kind", PIECES)
def test_a_long_text_is_that_of_its_pieces(sh: Shell, tmp_path: Path, kind: str) -> None:
    number = LONG // len(PIECES[kind])
    (tmp_path / "long").write_bytes(PIECES[kind] * number)
    (tmp_path / "short").write_bytes(PIECES[kind])
    piece = sh.out(f"cat {tmp_path}/short")
    assert piece or kind == "escapes alone"
    sh.gives(f"cat {tmp_path}/long", piece * number)
    sh.gives(f"cat {tmp_path}/long; printf 'ä'", piece * number + "ä")
