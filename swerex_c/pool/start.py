"""Start deployments with retries, and stop them, within time limits."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable

from swerex_c.engine.outcomes import retrieve_exception
from swerex_c.exceptions import (
    AuthenticationError,
    EnvironmentStartError,
    InvalidInputError,
    NotAvailableError,
    NotSupportedError,
    PodStartupError,
    SwerexException,
)
from swerex_c.interfaces import AbstractDeployment
from swerex_c.pool.stats import Counts

__all__ = ["Starter", "finish_within"]

_LONGEST_PAUSE = 30.0
"""Maximum seconds between two attempts, before the random variation."""

_FINAL = (AuthenticationError, InvalidInputError, NotAvailableError, NotSupportedError)
"""Errors that another attempt would only raise again."""

_FINAL_CAUSES = ("command", "configuration", "credentials", "forbidden", "image", "namespace", "refused")
"""Causes of a `PodStartupError` that stay until somebody corrects them. After a timeout they may have been passing."""


class Starter:
    """Starter of deployments with limits on concurrent starts and on attempts.

    The limit on attempts is per deployment.
    """

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
        """Create the starter without starting any deployment.

        Args:
            make: returns a new deployment that is not started.
            timeout: seconds for one attempt; None leaves the limit to the deployment.
            pause: seconds before the second attempt. Each later pause is twice as long; all vary randomly.
            stop_timeout: seconds for the cleanup of a failed attempt.
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
        """Error of the last failed attempt."""

    async def start(self, begun: Callable[[bool], None]) -> AbstractDeployment:
        """Start and return a deployment. If it is cancelled, it cleans up the attempt.

        Args:
            begun: called with True when an attempt begins, and with False when it has failed.

        Raises:
            EnvironmentStartError: if all attempts failed, or another attempt would be useless.
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
                    if number == self._attempts or not _is_worth_retrying(error):
                        raise EnvironmentStartError(
                            _failure_message(number, self.last_error), attempts=number
                        ) from error
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
            # The deployment should have cleaned up already; a second stop is harmless.
            if why := await finish_within(deployment.stop, self._stop_timeout):
                self._logger.warning("Cannot stop the deployment of a failed start: %s", why)
            if isinstance(error, TimeoutError) and limit.expired():
                raise TimeoutError(f"it did not start within {self._timeout:g} seconds (start_timeout)") from error
            raise
        self._counts.starting_seconds.add(loop.time() - begin)
        return deployment


async def finish_within(work: Callable[[], Awaitable[object]], seconds: float) -> str | None:
    """Run `work` until it ends or `seconds` are over.

    If the caller is cancelled, the work still runs until then, and the cancellation is raised afterwards. Returns a
    description of the failure, or None. Work that ignores its cancellation is abandoned.
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
        task.add_done_callback(retrieve_exception)
        why: str | None = f"it did not end within {seconds:g} seconds"
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


def _is_worth_retrying(error: Exception) -> bool:
    if isinstance(error, PodStartupError) and not isinstance(error, TimeoutError):
        return error.cause not in _FINAL_CAUSES
    return isinstance(error, SwerexException | OSError) and not isinstance(error, _FINAL)


def _failure_message(attempts: int, last: str) -> str:
    tried = "1 attempt" if attempts == 1 else f"{attempts} attempts, the last"
    return f"Cannot start an environment ({tried}): {last}"
