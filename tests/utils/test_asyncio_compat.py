"""Private names of asyncio: this Python still has them."""

from __future__ import annotations

import asyncio
import select

from swerex_c.utils.asyncio_compat import READY, SELECTOR, TIMERS


async def test_a_loop_shows_its_ready_callbacks() -> None:
    loop = asyncio.get_running_loop()
    assert not getattr(loop, READY)
    handle = loop.call_soon(int)
    assert list(getattr(loop, READY)) == [handle]


async def test_a_loop_shows_its_timers() -> None:
    loop = asyncio.get_running_loop()
    late, early = loop.call_later(9, int), loop.call_later(5, int)
    assert getattr(loop, TIMERS)[0] is early
    early.cancel()
    late.cancel()


async def test_a_loop_shows_what_it_sleeps_in() -> None:
    loop = asyncio.get_running_loop()
    poll = select.poll()
    poll.register(getattr(loop, SELECTOR).fileno(), select.POLLIN)
    assert not poll.poll(0)
    await asyncio.to_thread(loop.call_soon_threadsafe, int)
    loop.call_soon_threadsafe(int)
    assert poll.poll(0)
