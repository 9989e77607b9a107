"""Payloads that are too long for a frame: they come as streams, and mean the same."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from swerex_c._core import FrameError
from swerex_c.exceptions import BashIncorrectSyntaxError, CommandTimeoutError, InvalidInputError
from swerex_c.remote.wire.exceptions import from_wire
from swerex_c.remote.wire.protocol import (
    END,
    ERROR,
    INLINE,
    PIECE,
    RESULT,
    UP,
    WINDOW,
    encode_message,
)
from tests.support.frames_tools import (
    Proxy,
    Served,
    bash,
    channel_to,
    encode,
    long_request,
    raw_client,
    request,
)
from tests.support.wait import until_async

pytestmark = pytest.mark.usefixtures("family")


def test_a_payload_has_bounds() -> None:
    for payload in ({"a": object()}, {"a": [0] * 200_001}, {"a": [[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]}):
        with pytest.raises(FrameError):
            encode_message(RESULT, 7, payload)


async def test_answers(served: Served, tmp_path: Path) -> None:
    """Of two long texts, of many short ones, of bytes that are no text; and one that is an error."""
    size = 3 * PIECE + 5
    (tmp_path / "file").write_bytes(b"\xff\xc3\xa9" * size)
    async with channel_to(served.port) as channel:
        both = f"import sys; sys.stdout.write('é' * {size}); sys.stderr.write('e' * {size})"
        answer = await channel.call("execute", {"command": ["python3", "-c", both]})
        assert (answer["stdout"], answer["stderr"]) == ("é" * size, "e" * size)
        surrogates = {"path": str(tmp_path / "file"), "encoding": "utf-8", "errors": "surrogateescape"}
        assert (await channel.call("read_file", surrogates))["content"] == "\udcffé" * size
        with pytest.raises(CommandTimeoutError) as caught:
            await channel.call("run_in_session", bash(f"head -c {size} /dev/zero | tr '\\0' x; sleep 60", 2))
        assert caught.value.output == "x" * size
        with pytest.raises(UnicodeDecodeError):
            await channel.call("read_file", {"path": str(tmp_path / "file"), "encoding": "utf-8"})


async def test_requests(served: Served, tmp_path: Path) -> None:
    async with channel_to(served.port) as channel:
        env = {f"V{i}": "x" * 50 for i in range(2000)}
        answer = await channel.call("execute", {"command": "env | grep -c ^V[0-9]", "shell": True, "env": env})
        assert answer["stdout"] == "2000\n"
        with pytest.raises(BashIncorrectSyntaxError):
            await channel.call("run_in_session", bash("if " + "x" * 2 * PIECE))
        with pytest.raises(InvalidInputError, match="too long"):
            await channel.upload(str(tmp_path), "/" + "x" * INLINE)


async def test_requests_that_are_not_what_they_should_be(served: Served) -> None:
    """They are answered by errors, and the connection goes on."""
    execute = {"command": ["true"]}
    size = len(encode(execute))
    cases: list[tuple[list[list[Any]], str]] = [
        ([request(1, "execute", 10), [END, 1, UP, 0]], "announced size"),
        ([request(2, "execute", size - 1), *long_request(2, "execute", execute)[1:]], "announced size"),
        ([request(3, "execute", 0)], "cannot be read"),
        (long_request(4, "upload", {"target_path": "/x"}), "too long"),
        (long_request(5, "execute", "x"), "is not valid"),
        (long_request(6, "nothing", {}), "no method"),
    ]
    async with raw_client(served.port) as peer:
        for number, (frames, text) in enumerate(cases, 1):
            peer.send(*frames)
            kind, *_, payload = await peer.answer(number)
            assert kind == ERROR and isinstance(from_wire(payload), InvalidInputError)
            assert text in payload["message"]
        peer.send(*long_request(7, "execute", {**execute, "env": {"A": "x" * INLINE}}))
        assert (await peer.answer(7))[0] == RESULT


async def test_given_up(served: Served, tmp_path: Path) -> None:
    """A client that does not take an answer is sent a window of it; nothing of it is left when the client has gone."""
    (tmp_path / "file").write_bytes(b"x" * 5 * WINDOW)
    async with Proxy(served.port) as proxy, channel_to(proxy.port) as channel:
        await channel.call("is_alive", {})
        proxy.stall_down = proxy.down + 100_000
        call = asyncio.create_task(channel.call("read_file", {"path": str(tmp_path / "file")}))
        await until_async(lambda: served.calls == 1 and served.running == 0)
        (channel_there,) = served.registry.channels.values()
        (call_there,) = channel_there.calls.values()
        assert call_there.long is not None and call_there.long.held > 4 * WINDOW
        call.cancel()
        await until_async(lambda: served.calls == 0)
    await until_async(lambda: served.service.in_flight == 0)
    assert not served.registry.channels
