"""Long texts of files, which are sent while they are read: the same text or the same error as if read as a whole."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from swerex_c.files.writing import BLOCK
from swerex_c.remote.wire.protocol import PIECE, WINDOW
from swerex_c.runtime.abstract import ReadFileRequest, ReadFileResponse, WriteFileRequest, WriteFileResponse
from swerex_c.runtime.local import LocalRuntime
from tests.support.frames_tools import Proxy, Served, channel_to, client, serving
from tests.support.processes import Family
from tests.support.wait import until_async


@pytest.fixture
async def served(family: Family) -> AsyncIterator[Served]:
    async with serving() as server:
        yield server


pytestmark = pytest.mark.usefixtures("family")

ASCII = b"0123456 the quick brown fox\n" * (3 * BLOCK // 28)
CONTENTS: dict[str, tuple[bytes, str | None, str | None]] = {
    "ascii": (ASCII, None, None),
    "exactly blocks": (b"x" * (2 * BLOCK), None, None),
    "a character over the end of a block": (b"x" * (BLOCK - 1) + "é€😀".encode() * BLOCK, None, None),
    "lines of others": (b"x" * (BLOCK - 1) + b"\r\n" + b"a\rb\r\n\n" * (BLOCK // 3), None, None),
    "one late return": (b"y" * BLOCK + "é".encode() * 100 + b"\r" + b"z" * BLOCK + b"\r", "utf-8", None),
    "latin-1": (bytes(range(256)) * (2 * BLOCK // 256), "latin-1", None),
    "utf-16": ("a€😀\r\n".encode("utf-16-le") * (BLOCK // 6), "utf-16-le", "strict"),
    "surrogates": (b"x" * BLOCK + b"\xff\xfe" * 1000, "utf-8", "surrogateescape"),
    "replaced": (b"x" * BLOCK + b"\xff" * 1000 + "é".encode(), None, "replace"),
    "wrong at once": (b"\xff" + ASCII, None, None),
    "wrong later": (ASCII + b"\xc3", "utf-8", None),
    "wrong in the middle": (ASCII + "é".encode() + b"\xff" + ASCII, None, None),
    "wrong encoding": (ASCII, "no such", None),
    "wrong handler": (ASCII + b"\xff", "utf-8", "no such"),
}


async def outcome(call: Any) -> Any:
    """What a call gives: a text, or what an error says; where a text is wrong, its first bytes are not all sent."""
    try:
        return (await call).content
    except UnicodeDecodeError as error:
        whole = re.search(r"position (\d+) of", error.reason)
        return error.reason.partition(" (")[0], int(whole[1]) if whole else error.start
    except Exception as error:
        return type(error).__name__, str(error)


@pytest.mark.parametrize("name", CONTENTS)
async def test_as_read_here(served: Served, tmp_path: Path, name: str) -> None:
    data, encoding, errors = CONTENTS[name]
    path = tmp_path / "file"
    path.write_bytes(data)
    request = ReadFileRequest(path=str(path), encoding=encoding, errors=errors)
    wire = client(served.port)
    there = await outcome(wire.call("read_file", request, ReadFileResponse))
    here = await outcome(LocalRuntime().read_file(request))
    assert there == here
    assert isinstance(there, tuple) == name.startswith("wrong")
    assert served.service.histograms["read_file"].finished == 1
    await wire.close()


async def test_over_a_connection_that_breaks(served: Served, tmp_path: Path) -> None:
    """No byte is lost or doubled."""
    text = "".join(f"{i:07} é\n" for i in range(1_000_000))
    (tmp_path / "file").write_text(text)
    for cut in (1000, 3 * PIECE + 5, WINDOW + PIECE, 2 * WINDOW + 1):
        async with Proxy(served.port) as proxy:
            proxy.cut_down = cut
            wire = client(proxy.port)
            answer = await wire.call("read_file", ReadFileRequest(path=str(tmp_path / "file")), ReadFileResponse)
            assert answer.content == text
            again = WriteFileRequest(path=str(tmp_path / "copy"), content=text)
            await wire.call("write_file", again, WriteFileResponse)
            assert (tmp_path / "copy").read_text() == text
            await wire.close()
    assert served.service.histograms["read_file"].finished == 4


async def test_given_up(served: Served, tmp_path: Path) -> None:
    """A client that does not take the text holds a window of it, and nothing when it has gone."""
    (tmp_path / "file").write_bytes(b"x" * 20 * BLOCK)
    async with Proxy(served.port) as proxy, channel_to(proxy.port) as channel:
        await channel.call("is_alive", {})
        proxy.stall_down = proxy.down + 100_000
        call = asyncio.create_task(channel.call("read_file", {"path": str(tmp_path / "file")}))
        exchange = await until_one(served)
        assert exchange.text is not None and exchange.text.held <= WINDOW + 4 * BLOCK
        assert exchange.answer is None and exchange.waits_for_client
        call.cancel()
    await until_async(lambda: served.service.in_flight == 0)
    assert not served.registry.channels


async def until_one(served: Served) -> Any:
    found: list[Any] = []

    def there() -> bool:
        found[:] = [e for c in served.registry.channels.values() for e in c.calls.values() if e.text is not None]
        return bool(found) and found[0].text.held >= WINDOW

    await until_async(there)
    return found[0]
