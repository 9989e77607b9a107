"""Start and stop deployments within time limits, and judge failed starts."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from typing import Any

from swerex_c.engine.outcomes import retrieve_exception
from swerex_c.exceptions import (
    AuthenticationError,
    DeploymentStartupError,
    InvalidInputError,
    NotAvailableError,
    NotSupportedError,
    PodStartupError,
    SwerexException,
)
from swerex_c.utils.wait import settle

__all__ = ["finish_within", "is_worth_retrying", "pause_after"]

_LONGEST_PAUSE = 30.0
"""Maximum seconds between two attempts, before the random variation."""

_FINAL = (AuthenticationError, InvalidInputError, NotAvailableError, NotSupportedError, TypeError, ValueError)
"""Errors that another attempt would only raise again."""

_FINAL_CAUSES = ("command", "configuration", "credentials", "forbidden", "image", "namespace", "refused")
"""Causes of a `PodStartupError` that last until they are corrected. After a timeout they may have been temporary."""


async def finish_within(work: Coroutine[Any, Any, object], seconds: float) -> str | None:
    """Run `work` until it ends or `seconds` are over.

    If the caller is cancelled, the work still runs until then, and the cancellation is raised afterwards. Returns a
    description of the failure, or None. Work that ignores its cancellation is abandoned.
    """
    task = asyncio.ensure_future(work)
    try:
        _, late = await settle(asyncio.wait({task}, timeout=seconds))
    finally:
        task.cancel()
        task.add_done_callback(retrieve_exception)
    if late:
        return f"it did not end within {seconds:g} seconds"
    if task.cancelled():
        return "it was cancelled"
    error = task.exception()
    return None if error is None else f"{type(error).__name__}: {error}"


def is_worth_retrying(error: Exception) -> bool:
    """Check whether another attempt may succeed after the error of a start."""
    if isinstance(error, PodStartupError) and not isinstance(error, TimeoutError):
        return error.cause not in _FINAL_CAUSES
    cause = error.__cause__ if type(error) is DeploymentStartupError else error
    return isinstance(error, SwerexException | OSError) and not isinstance(cause, _FINAL)


def pause_after(attempt: int, backoff: float) -> float:
    """Return the seconds after the first or a later attempt: `backoff`, then twice as long each, varied randomly."""
    pause: float = min(backoff * 2 ** (attempt - 1), _LONGEST_PAUSE)
    return pause * random.uniform(0.75, 1.25)
