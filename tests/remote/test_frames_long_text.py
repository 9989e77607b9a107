"""Long texts of answers and requests, put together from the pieces in which they come."""

from __future__ import annotations

import random
from typing import Any

import pytest

from swerex_c import _core
from swerex_c.exceptions import ProtocolError
from swerex_c.remote.client import calls
from swerex_c.remote.wire.protocol import PIECE, LongTexts
from tests.support.frames_tools import Served, channel_to, serving

pytestmark = pytest.mark.usefixtures("family")

TEXTS = ["a", "abc" * 1000, "", "é" * 500, "x" * 999 + "€", "\ud800 alone", "b" * 4096]


def sent(texts: list[str], size: int) -> list[bytes]:
    """Each text begins with a piece of its own."""
    pieces = []
    for text in texts:
        data = text.encode("utf-8", "surrogatepass")
        pieces += [data[at : at + size] for at in range(0, len(data), size)]
    return pieces


@pytest.mark.parametrize("known", [True, False, "too short", "too long"])
def test_any_texts_in_any_pieces(known: bool | str) -> None:
    draw = random.Random(7)
    for _ in range(300):
        texts = [draw.choice(TEXTS[: draw.choice([2, 3, 7])]) for _ in range(draw.randrange(1, 4))]
        pieces = sent(texts, draw.choice([1, 7, 100, 5000]))
        sizes = [len(text.encode("utf-8", "surrogatepass")) for text in texts]
        total = sum(sizes) + {"too short": -1, "too long": 10}.get(str(known), 0)
        long = LongTexts(max(0, total) if known else None)
        for piece in pieces:
            long.feed(bytearray(piece))
        assert long.size == sum(sizes)
        payload: dict[str, Any] = {"output": "", "more": [0, ""], "last": ""}
        places: list[list[Any]] = [["output"], ["more", 1], ["last"]]
        long.insert(payload, [[place, size] for place, size in zip(places, sizes, strict=False)])
        found = [payload["output"], payload["more"][1], payload["last"]][: len(texts)]
        assert found == texts


@pytest.mark.parametrize("total", [None, 6, 100])
def test_other_texts_than_announced(total: int | None) -> None:
    for sizes in ([5], [7], [2, 4], [3, 3, 1], [1]):
        long = LongTexts(total)
        long.feed(b"abc")
        long.feed(b"def")
        if sizes == [3, 3, 1] or sizes[0] % 3:
            with pytest.raises(ProtocolError):
                long.insert({"a": "", "b": "", "c": ""}, [[[n], size] for n, size in zip("abc", sizes, strict=False)])
    long = LongTexts(total)
    with pytest.raises(ProtocolError):
        long.feed(b"abc\xff")


def test_room() -> None:
    room = _core.TextRoom(10)
    assert room.feed(b"abc") and not room.feed("é".encode()) and not room.feed(b"12345678")
    assert room.feed(memoryview(b"defghij")) and room.feed(b"") and not room.feed(b"k")
    text = room.finish()
    assert text == "abcdefghij" and hash(text) == hash("abcdefghij") and text.isascii()
    assert room.finish() == "" and not room.feed(b"a")
    for size in (0, 1, 2, 3, 1 << 62):
        room = _core.TextRoom(size)
        assert not size or room.feed(b"a") == (2 < size < 1 << 62)
        assert room.finish() in ("", "a")
    for wrong in (-1, "x"):
        with pytest.raises((ValueError, TypeError)):
            _core.TextRoom(wrong)  # type: ignore[arg-type]


async def test_an_answer_goes_straight_to_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server says how long the texts will be; the client makes room for that many, and no piece is a text."""
    totals: list[int | None] = []

    class Seen(LongTexts):
        def __init__(self, total: int | None = None) -> None:
            totals.append(total)
            super().__init__(total)

    monkeypatch.setattr(calls, "LongTexts", Seen)
    size = 3 * PIECE + 5
    async with serving(session=True) as served, channel_to(served.port) as channel:
        served_here: Served = served
        for letter, length in (("x", size), ("é", 2 * size)):
            command = f"python3 -c \"print('{letter}' * {size}, end='')\""
            request = {"action_type": "bash", "command": command, "session": "default", "timeout": 20}
            answer = await channel.call("run_in_session", request)
            assert answer["output"] == letter * size
            assert totals.pop() == length and not totals
        both = f"import sys; sys.stdout.write('o' * {size}); sys.stderr.write('e' * {size})"
        answer = await channel.call("execute", {"command": ["python3", "-c", both]})
        assert (answer["stdout"], answer["stderr"]) == ("o" * size, "e" * size)
        assert totals.pop() == 2 * size and not totals
        assert not served_here.errors
