"""A request that arrives twice is carried out once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from swerex_c.exceptions import InvalidInputError, ResultLostError
from swerex_c.remote.server.limits import Limits
from swerex_c.remote.server.requests import RequestTable
from tests.support.wait import settle, until_async


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
    once: RequestTable = RequestTable(Limits())
    calls, start = counted()
    assert [await once.run("a", "x", start, len) for _ in range(3)] == [b"result"] * 3
    assert len(calls) == 1
    assert await once.run("b", "x", start, len) == b"result"
    assert len(calls) == 2


async def test_those_that_come_meanwhile_wait_for_the_first() -> None:
    once: RequestTable = RequestTable(Limits())
    calls, start = counted(0.05)
    assert await asyncio.gather(*(once.run("a", "x", start, len) for _ in range(5))) == [b"result"] * 5
    assert len(calls) == 1


async def test_it_goes_on_when_the_first_has_gone_away() -> None:
    once: RequestTable = RequestTable(Limits())
    calls, start = counted(0.05)
    first = asyncio.create_task(once.run("a", "x", start, len))
    await settle()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert await once.run("a", "x", start, len) == b"result"
    assert len(calls) == 1


async def test_errors_are_kept_too() -> None:
    once: RequestTable = RequestTable(Limits())
    calls, start = counted(error=KeyError("k"))
    for _ in range(2):
        with pytest.raises(KeyError):
            await once.run("a", "x", start, len)
    assert len(calls) == 1


async def test_an_id_is_for_one_request() -> None:
    once: RequestTable = RequestTable(Limits())
    calls, start = counted()
    await once.run("a", "x", start, len)
    with pytest.raises(InvalidInputError):
        await once.run("a", "y", start, len)
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("limits", "kept"),
    [(Limits(results=3), 3), (Limits(result_bytes=20), 3), (Limits(result_seconds=0.0), 0)],
)
async def test_only_so_much_is_kept(limits: Limits, kept: int) -> None:
    """What was dropped to make room is not carried out again."""
    once: RequestTable = RequestTable(limits)
    _, start = counted()
    for i in range(10):
        await once.run(str(i), "x", start, len)
    assert len(once) == kept and once.kept_bytes == 6 * kept
    again, start = counted()
    await once.run("9", "x", start, len)
    assert len(again) == (not kept)
    if kept:
        with pytest.raises(ResultLostError):
            await once.run("0", "x", start, len)
        assert not again


async def test_results_go_when_their_time_is_over() -> None:
    """Also when nothing is asked any more."""
    once: RequestTable = RequestTable(Limits(result_seconds=0.05))
    _, start = counted()
    for name in "ab":
        await once.run(name, "x", start, len)
    assert once.kept_bytes == 12
    await until_async(lambda: not once.kept_bytes)
    assert len(once) == 0


async def test_what_runs_is_not_forgotten() -> None:
    once: RequestTable = RequestTable(Limits(results=1))
    calls, slow = counted(0.1)
    running = asyncio.create_task(once.run("slow", "x", slow, len))
    await settle()
    _, start = counted()
    for i in range(5):
        await once.run(str(i), "x", start, len)
    assert await once.run("slow", "x", slow, len) == b"result"
    assert len(calls) == 1
    await running


async def test_closing_ends_what_runs() -> None:
    once: RequestTable = RequestTable(Limits())
    _, start = counted(60)
    waiting = asyncio.create_task(once.run("a", "x", start, len))
    await settle()
    await once.close()
    with pytest.raises(ResultLostError):
        await waiting
    assert len(once) == 0
