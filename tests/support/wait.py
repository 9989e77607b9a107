"""Waiting in tests: for an event, never for a time.

Nothing but `DEADLINE` bounds a duration from above; what measures a duration is marked `idle`, and runs alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

DEADLINE = 60.0
"""Seconds after which whatever was waited for counts as hanging, on a machine however busy."""

PAUSE = 0.01
"""Seconds between two looks at a condition."""

STRICT = bool(os.environ.get("SWX_STRICT"))
"""Whether bounds of time hold as they are written: `.ci/full idle` sets it, which has the machine for itself."""


def until(condition: Callable[[], Any], what: str = "it does not come to hold") -> Any:
    """Return what the condition gives as soon as that is true; fail with `what` at the deadline."""
    end = time.monotonic() + DEADLINE
    while not (found := condition()):
        assert time.monotonic() < end, what
        time.sleep(PAUSE)
    return found


async def until_async(condition: Callable[[], Any], what: str = "it does not come to hold") -> Any:
    """Wait as `until` does, while the event loop goes on."""
    end = time.monotonic() + DEADLINE
    while not (found := condition()):
        assert time.monotonic() < end, what
        await asyncio.sleep(PAUSE)
    return found


async def settle(turns: int = 50) -> None:
    """Let everything run that is ready to run."""
    for _ in range(turns):
        await asyncio.sleep(0)


def at_most(seconds: float) -> float:
    """Return the bound, in seconds, of what takes that long at most on an idle machine; `DEADLINE` unless `STRICT`."""
    return seconds if STRICT else max(DEADLINE, seconds)


@contextlib.contextmanager
def quicker_than(seconds: float) -> Iterator[None]:
    """Fail when the block takes longer, see `at_most`."""
    start = time.monotonic()
    yield
    spent, most = time.monotonic() - start, at_most(seconds)
    assert spent < most, f"took {spent:.2f} s, more than {most:.2f} s"
