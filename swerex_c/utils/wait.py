"""Wait until a function returns a true value, or until work or tasks have ended."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

__all__ = ["_wait_until_alive", "end_tasks", "settle"]

T = TypeVar("T")


async def end_tasks(*tasks: asyncio.Future[Any]) -> None:
    """Cancel the tasks that are not done, and wait until all have ended. Their errors are not raised."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def settle(work: Awaitable[T], seconds: float = 86400.0, interrupt: Callable[[], object] = lambda: None) -> T:
    """Wait for work that must not be left half done, such as a request that creates something; return its result.

    A cancellation calls `interrupt`, and is raised when the work has ended, or after `seconds`, when it is cancelled
    too. A second one does not cut that short. If the caller's loop is gone, `interrupt` is called without a wait.
    """
    working = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        interrupt()
        deadline = time.monotonic() + seconds
        while not working.done() and (left := deadline - time.monotonic()) > 0:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([working], timeout=left)
        await end_tasks(working)
        raise
    except GeneratorExit:
        interrupt()
        raise


async def _wait_until_alive(
    function: Callable[..., Awaitable[Any]],
    timeout: float = 10.0,
    function_timeout: float | None = 0.1,
    sleep: float = 0.25,
) -> None:
    """Call `function(timeout=function_timeout)` until it returns a true value, without blocking the event loop.

    Args:
        function: function to call at least once; its errors are raised.
        timeout: seconds to keep trying.
        function_timeout: seconds for one call, which the function itself has to observe.
        sleep: seconds between the calls.

    Raises:
        TimeoutError: if no true value came in time. Its text ends in the `message` of the last value.
    """
    deadline = time.monotonic() + timeout
    attempts = 0
    while True:
        answer = await function(timeout=function_timeout)
        attempts += 1
        if answer:
            return
        left = deadline - time.monotonic()
        if left <= 0:
            break
        await asyncio.sleep(min(sleep, left))
    raise TimeoutError(
        f"Runtime did not start within {timeout}s (tried to connect {attempts} times). "
        f"The last await response was:\n{getattr(answer, 'message', None)}"
    )
