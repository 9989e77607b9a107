"""Long texts of answers and requests, put together from the pieces in which they come."""

from __future__ import annotations

import random
from typing import Any

import pytest

from swerex_c.exceptions import ProtocolError
from swerex_c.remote.wire.protocol import PIECE, LongTexts
from tests.support.frames_tools import channel_to, serving

pytestmark = pytest.mark.usefixtures("family")

TEXTS = ["a", "abc" * 1000, "", "é" * 500, "x" * 999 + "€", "\ud800 alone", "b" * 4096]


def sent(texts: list[str], size: int) -> list[bytes]:
    """Each text begins with a piece of its own."""
    pieces = []
    for text in texts:
        data = text.encode("utf-8", "surrogatepass")
        pieces += [data[at : at + size] for at in range(0, len(data), size)]
    return pieces


def test_any_texts_in_any_pieces() -> None:
    draw = random.Random(7)
    for _ in range(300):
        texts = [draw.choice(TEXTS[: draw.choice([2, 3, 7])]) for _ in range(draw.randrange(1, 4))]
        pieces = sent(texts, draw.choice([1, 7, 100, 5000]))
        sizes = [len(text.encode("utf-8", "surrogatepass")) for text in texts]
        long = LongTexts()
        for piece in pieces:
            long.feed(bytearray(piece))
        assert long.size == sum(sizes)
        payload: dict[str, Any] = {"output": "", "more": [0, ""], "last": ""}
        places: list[list[Any]] = [["output"], ["more", 1], ["last"]]
        long.insert(payload, [[place, size] for place, size in zip(places, sizes, strict=False)])
        found = [payload["output"], payload["more"][1], payload["last"]][: len(texts)]
        assert found == texts


def test_other_texts_than_announced() -> None:
    for sizes in ([5], [7], [2, 4], [3, 3, 1], [1]):
        long = LongTexts()
        long.feed(b"abc")
        long.feed(b"def")
        if sizes == [3, 3, 1] or sizes[0] % 3:
            with pytest.raises(ProtocolError):
                long.insert({"a": "", "b": "", "c": ""}, [[[n], size] for n, size in zip("abc", sizes, strict=False)])
    long = LongTexts()
    with pytest.raises(ProtocolError):
        long.feed(b"abc\xff")


async def test_long_texts_of_answers() -> None:
    size = 3 * PIECE + 5
    async with serving(session=True) as served, channel_to(served.port) as channel:
        for letter in "xé":
            command = f"python3 -c \"print('{letter}' * {size}, end='')\""
            request = {"action_type": "bash", "command": command, "session": "default", "timeout": 20}
            answer = await channel.call("run_in_session", request)
            assert answer["output"] == letter * size
        both = f"import sys; sys.stdout.write('o' * {size}); sys.stderr.write('e' * {size})"
        answer = await channel.call("execute", {"command": ["python3", "-c", both]})
        assert (answer["stdout"], answer["stderr"]) == ("o" * size, "e" * size)
        assert not served.errors
