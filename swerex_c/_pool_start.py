"""How a pool brings one deployment up, tries again, and puts one down, within limits of time."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable

from swerex_c._pool_stats import Counts
from swerex_c.deployment.abstract import AbstractDeployment
from swerex_c.exceptions import (
    AuthenticationError,
    EnvironmentStartError,
    InvalidInputError,
    NotAvailableError,
    NotSupportedError,
    SwerexException,
)

__all__ = ["Starter", "finish"]

_LONGEST_PAUSE = 30.0
"""Seconds between two attempts, at most."""

_FINAL = (AuthenticationError, InvalidInputError, NotAvailableError, NotSupportedError)
"""What another attempt would only say again."""


class Starter:
    """Starts deployments, a limited number at once, each with a limited number of attempts."""

    def __init__(
        self,
        make: Callable[[], AbstractDeployment],
        counts: Counts,
        logger: logging.Logger,
        *,
        at_once: int,
        attempts: int,
        timeout: float | None,
        pause: float,
        stop_timeout: float,
    ):
        """
        Args:
            make: gives a new deployment, which is not started.
            timeout: seconds for one attempt; None leaves that to the deployment.
            pause: seconds before the second attempt. Each further pause is twice as long, and none is quite the same.
            stop_timeout: seconds that undoing an attempt may take.
        """
        self._make = make
        self._counts = counts
        self._logger = logger
        self._turns = asyncio.Semaphore(at_once)
        self._attempts = attempts
        self._timeout = timeout
        self._pause = pause
        self._stop_timeout = stop_timeout
        self.last_error = ""
        """What went wrong in the last attempt that failed."""

    async def start(self, begun: Callable[[bool], None]) -> AbstractDeployment:
        """A deployment that runs. Cancelled, it undoes what it has begun.

        Args:
            begun: told True when an attempt begins, and False when it has failed and there is a pause.

        Raises:
            EnvironmentStartError: if all attempts failed, or another one would be of no use.
        """
        for number in range(1, self._attempts + 1):
            async with self._turns:
                begun(True)
                try:
                    return await self._attempt()
                except Exception as error:
                    begun(False)
                    self.last_error = f"{type(error).__name__}: {error}"
                    self._counts.attempts_failed += 1
                    if number == self._attempts or not _worth_another(error):
                        raise EnvironmentStartError(_told(number, self.last_error), attempts=number) from error
            pause = min(self._pause * 2 ** (number - 1), _LONGEST_PAUSE) * random.uniform(0.75, 1.25)
            self._logger.info("Start %d failed, next one in %.1f s: %s", number, pause, self.last_error)
            await asyncio.sleep(pause)
        raise AssertionError("unreachable: there is at least one attempt")

    async def _attempt(self) -> AbstractDeployment:
        loop = asyncio.get_running_loop()
        begin = loop.time()
        deployment = self._make()
        try:
            async with asyncio.timeout(self._timeout) as limit:
                await deployment.start()
        except BaseException as error:
            # It should have undone itself; a second stop does no harm.
            if why := await finish(deployment.stop, self._stop_timeout):
                self._logger.warning("What was left of a failed start could not be stopped: %s", why)
            if isinstance(error, TimeoutError) and limit.expired():
                raise TimeoutError(f"it was not there after {self._timeout:g} seconds (start_timeout)") from error
            raise
        self._counts.starting_seconds.add(loop.time() - begin)
        return deployment


async def finish(work: Callable[[], Awaitable[object]], seconds: float) -> str | None:
    """Do something to its end, or until the time is over, even if this is cancelled: then that is raised afterwards.

    Returns what went wrong; None if nothing did. What does not heed its cancellation is left alone.
    """
    task = asyncio.ensure_future(_awaited(work))
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    cancelled: asyncio.CancelledError | None = None
    while not task.done() and (left := deadline - loop.time()) > 0:
        try:
            await asyncio.wait({task}, timeout=left)
        except asyncio.CancelledError as error:
            cancelled = error
    if not task.done():
        task.cancel()
        task.add_done_callback(_look_at)
        why: str | None = f"it did not end in {seconds:g} seconds"
    elif task.cancelled():
        why = "it was cancelled"
    else:
        error_of_it = task.exception()
        why = None if error_of_it is None else f"{type(error_of_it).__name__}: {error_of_it}"
    if cancelled is not None:
        raise cancelled
    return why


async def _awaited(work: Callable[[], Awaitable[object]]) -> None:
    await work()


def _look_at(task: asyncio.Task[None]) -> None:
    """So that nobody is told that its exception was never looked at."""
    if not task.cancelled():
        task.exception()


def _worth_another(error: Exception) -> bool:
    return isinstance(error, SwerexException | OSError) and not isinstance(error, _FINAL)


def _told(attempts: int, last: str) -> str:
    tried = "1 attempt" if attempts == 1 else f"{attempts} attempts, the last"
    return f"No environment could be started ({tried}): {last}"
