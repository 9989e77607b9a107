"""A request that arrives twice is carried out once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from swerex_c.exceptions import InvalidInputError, ResultLostError
from swerex_c.remote.wire.idempotency import ResultCache
from swerex_c.remote.wire.limits import Limits
from tests.support.wait import settle


def counted(
    seconds: float = 0.0, error: Exception | None = None
) -> tuple[list[int], Callable[[], Coroutine[Any, Any, bytes]]]:
    calls: list[int] = []

    async def start() -> bytes:
        calls.append(1)
        await asyncio.sleep(seconds)
        if error is not None:
            raise error
        return b"result"

    return calls, start


async def test_the_second_gets_the_first_ones_result() -> None:
    once: ResultCache[bytes] = ResultCache(Limits())
    calls, start = counted()
    assert [await once.run("a", "x", start) for _ in range(3)] == [b"result"] * 3
    assert len(calls) == 1
    assert await once.run("b", "x", start) == b"result"
    assert len(calls) == 2


async def test_those_that_come_meanwhile_wait_for_the_first() -> None:
    once: ResultCache[bytes] = ResultCache(Limits())
    calls, start = counted(0.05)
    assert await asyncio.gather(*(once.run("a", "x", start) for _ in range(5))) == [b"result"] * 5
    assert len(calls) == 1


async def test_it_goes_on_when_the_first_has_gone_away() -> None:
    once: ResultCache[bytes] = ResultCache(Limits())
    calls, start = counted(0.05)
    first = asyncio.create_task(once.run("a", "x", start))
    await settle()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert await once.run("a", "x", start) == b"result"
    assert len(calls) == 1


async def test_errors_are_kept_too() -> None:
    once: ResultCache[bytes] = ResultCache(Limits())
    calls, start = counted(error=KeyError("k"))
    for _ in range(2):
        with pytest.raises(KeyError):
            await once.run("a", "x", start)
    assert len(calls) == 1


async def test_an_id_is_for_one_request() -> None:
    once: ResultCache[bytes] = ResultCache(Limits())
    calls, start = counted()
    await once.run("a", "x", start)
    with pytest.raises(InvalidInputError):
        await once.run("a", "y", start)
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("limits", "kept"), [(Limits(results=3), 3), (Limits(result_bytes=20), 3), (Limits(result_seconds=0.0), 0)]
)
async def test_only_so_much_is_kept(limits: Limits, kept: int) -> None:
    once: ResultCache[bytes] = ResultCache(limits, len)
    _, start = counted()
    for i in range(10):
        await once.run(str(i), "x", start)
    assert len(once) == kept and once.kept_bytes == 6 * kept
    again, start = counted()
    await once.run("9", "x", start)
    assert len(again) == (not kept)


async def test_what_runs_is_not_forgotten() -> None:
    once: ResultCache[bytes] = ResultCache(Limits(results=1), len)
    calls, slow = counted(0.1)
    running = asyncio.create_task(once.run("slow", "x", slow))
    await settle()
    _, start = counted()
    for i in range(5):
        await once.run(str(i), "x", start)
    assert await once.run("slow", "x", slow) == b"result"
    assert len(calls) == 1
    await running


async def test_closing_ends_what_runs() -> None:
    once: ResultCache[bytes] = ResultCache(Limits())
    _, start = counted(60)
    waiting = asyncio.create_task(once.run("a", "x", start))
    await settle()
    await once.close()
    with pytest.raises(ResultLostError):
        await waiting
    assert len(once) == 0
