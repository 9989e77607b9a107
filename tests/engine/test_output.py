"""The text of a long output."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.core_sessions import ended, opened

LONG = 300_000

PIECES = {
    "lines": b"a b\n",
    "letters": b"x",
    "colours": b"\x1b[31mred\x1b[0m ",
    "beyond ascii": "ä漢🦊".encode(),
    "no utf-8": b"\xff\xfe-",
    "cr": b"a\r\n",
    "nul": b"\0",
    "escapes alone": b"\x1b",
}


@pytest.mark.parametrize("kind", PIECES)
async def test_a_long_text_is_that_of_its_pieces(tmp_path: Path, kind: str) -> None:
    runtime, core = await opened()
    number = LONG // len(PIECES[kind])
    (tmp_path / "long").write_bytes(PIECES[kind] * number)
    (tmp_path / "short").write_bytes(PIECES[kind])
    piece = (await ended(core, f"cat {tmp_path}/short")).output
    assert piece or kind == "escapes alone"
    assert (await ended(core, f"cat {tmp_path}/long")).output == piece * number
    assert (await ended(core, f"cat {tmp_path}/long; printf 'ä'")).output == piece * number + "ä"
    await runtime.close()


async def test_a_dropped_middle() -> None:
    runtime, core = await opened(output_limit=LONG)
    operation = await ended(core, "seq 100000")
    text = operation.output
    assert f"\n[... {operation.dropped} bytes of output were dropped here ...]\n" in text
    assert len(text) - text.count("[") * (text.index("]") - text.index("[") + 3) == LONG
    await runtime.close()
