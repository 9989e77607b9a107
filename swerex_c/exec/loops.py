"""The event loop in which libraries are called that reach places: one in each process, in a thread of its own.

Callers' own loops come and go, and each call may be made in another; what a library keeps, such as its connections,
belongs to this loop.

It is everybody's: whoever takes messages of a connection, which may all be there already, so that no `await` between
them waits, asks its `Turn` after each whether others are to have the loop first.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
import time
import weakref
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

__all__ = ["Turn", "call", "let_go", "submit", "turn"]

T = TypeVar("T")

_TURN_SECONDS = 0.002
"""How long those who take messages may have the loop together, until all else that is ready is done."""

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None


def _running() -> asyncio.AbstractEventLoop:
    """The loop, which runs until the process ends."""
    global _loop
    with _lock:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_run, args=(_loop,), name="swerex-c calls", daemon=True).start()
        return _loop


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    loop.run_forever()


def let_go(descriptors: Iterable[int]) -> None:
    """In a process that was forked: have these be of nothing, without a word to whoever is at their other ends.

    What the parent has is kept open by every process that has it too, and one that was forked may outlive its parent:
    those who wait for the end of a connection would wait for that of both. The numbers stay in use, so that objects
    which close them later close nothing else.
    """
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for each in descriptors:
        os.dup2(nothing, each, inheritable=False)
    os.close(nothing)


def _connections(loop: asyncio.AbstractEventLoop) -> list[int]:
    """The descriptors of a loop's connections, whichever library has made them."""
    found = []
    # Nothing public tells them all: a transport that is not read from for a while is not in the selector either.
    for each, transport in list(getattr(loop, "_transports", {}).items()):
        connection = transport.get_extra_info("socket")
        if connection is not None and connection.fileno() == each:  # else it was closed, and may be somebody else's
            found.append(each)
    return found


def _forget() -> None:
    """In a process that was forked there is no such thread; its loop is another."""
    global _loop, _lock
    parents, _loop, _lock = _loop, None, threading.Lock()
    if parents is not None:
        let_go(_connections(parents))


os.register_at_fork(after_in_child=_forget)


class Turn:
    """How long a loop has been with those who take messages since it last looked at everything else."""

    def __init__(self) -> None:
        self._until: float | None = None

    async def over(self) -> None:
        """To be awaited after each message: lets others go first where the time is up, and else does not wait."""
        if self._until is None:
            self._until = time.monotonic() + _TURN_SECONDS
            asyncio.get_running_loop().call_soon(self._begin)
        elif time.monotonic() > self._until:
            await asyncio.sleep(0)

    def _begin(self) -> None:
        """The loop has been round: whoever is first begins a turn."""
        self._until = None


_turns: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Turn] = weakref.WeakKeyDictionary()


def turn() -> Turn:
    """The turn of the loop that runs: one for all who take messages in it."""
    loop = asyncio.get_running_loop()
    found = _turns.get(loop)
    if found is None:
        found = _turns[loop] = Turn()
    return found


def submit(work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
    """Have a coroutine run in the loop. Thread-safe. Cancelling the future cancels the coroutine."""
    return asyncio.run_coroutine_threadsafe(work, _running())


def call(work: Coroutine[Any, Any, T], timeout: float | None) -> T:
    """Run a coroutine in the loop, from a thread that is not the loop's, and return or raise what it does. Blocks.

    Raises:
        TimeoutError: if it takes longer than `timeout` seconds (None: it may); it is cancelled then, not waited for.
    """
    future = submit(work)
    try:
        return future.result(timeout)
    except concurrent.futures.TimeoutError:
        if not future.cancel():  # it has ended just now, or raised this itself
            return future.result()
        raise TimeoutError(f"No answer within {timeout:g} seconds") from None
    except concurrent.futures.CancelledError:
        raise
    except BaseException:
        future.cancel()
        raise
