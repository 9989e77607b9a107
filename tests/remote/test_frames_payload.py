"""Payloads that are too long for a frame, which are sent as streams."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest

from swerex_c._core import FrameError
from swerex_c.exceptions import CommandTimeoutError, InvalidInputError, ServerLimitError
from swerex_c.remote.wire.exceptions import from_wire
from swerex_c.remote.wire.protocol import (
    CANCEL,
    END,
    ERROR,
    INLINE,
    PIECE,
    RESULT,
    UP,
    WINDOW,
    decode_payload,
    encode_message,
)
from tests.support.frames_tools import Served, channel_to, encode, long_request, raw_client, request
from tests.support.wait import until_async

pytestmark = pytest.mark.usefixtures("family")


def test_a_payload_has_bounds() -> None:
    for payload in ({"a": object()}, {"a": [0] * 200_001}, {"a": [[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]}):
        with pytest.raises(FrameError):
            encode_message(RESULT, 7, payload)


def test_a_payload_is_one_value() -> None:
    long = encode({"a": 1})
    assert decode_payload(long) == {"a": 1}
    for data in (b"", long[:3], long[:-1], long + b"x", long + long, b"\0\0\0\2ab", b"\0\0\0\0"):
        with pytest.raises(FrameError):
            decode_payload(data)


async def test_an_error_may_be_long(served: Served) -> None:
    output = "é\udcff" * PIECE
    served.place.runtime.read_file = fails = AsyncMock(side_effect=CommandTimeoutError("late", output=output))
    async with channel_to(served.port) as channel:
        with pytest.raises(CommandTimeoutError) as caught:
            await channel.call("read_file", {"path": "x"})
    assert caught.value.output == output and fails.await_count == 1


async def test_requests_that_are_not_what_they_should_be(served: Served) -> None:
    """They get errors as responses, and the connection remains."""
    execute = {"command": ["true"]}
    size = len(encode(execute))
    cases: list[tuple[list[list[Any]], str]] = [
        ([request(1, "execute", 10), [END, 1, UP, 0]], "announced size"),
        ([request(2, "execute", size - 1), *long_request(2, "execute", execute)[1:]], "announced size"),
        ([request(3, "execute", 0)], "cannot be read"),
        (long_request(4, "upload", {"target_path": "/x"}), "too long"),
        (long_request(5, "execute", "x"), "is not valid"),
        (long_request(6, "nothing", {}), "no method"),
        ([request(7, "execute", 2 << 30)], "the server takes"),
    ]
    async with raw_client(served.port) as peer:
        for number, (frames, text) in enumerate(cases, 1):
            peer.send(*frames)
            kind, *_, payload = await peer.answer(number)
            assert kind == ERROR and isinstance(from_wire(payload), InvalidInputError | ServerLimitError)
            assert text in payload["message"]
        peer.send(*long_request(8, "execute", {**execute, "env": {"A": "x" * INLINE}}))
        assert (await peer.answer(8))[0] == RESULT


async def test_given_up(served: Served, tmp_path: Path) -> None:
    """A response that is not read is sent up to the window, and dropped when it is cancelled."""
    (tmp_path / "file").write_bytes(b"x" * 5 * WINDOW)
    async with raw_client(served.port) as peer:
        peer.send(request(1, "read_file", {"path": str(tmp_path / "file")}))
        await until_async(lambda: served.calls == 1 and served.running == 0)
        assert served.exchanges[0].answer.held > 4 * WINDOW
        peer.send([CANCEL, 1])
        await until_async(lambda: served.calls == 0)
    await until_async(lambda: served.service.in_flight == 0)
