"""Find and delete orphans: sandboxes whose owner process is dead.

A provider lists its sandboxes as `OwnedSandbox` and translates its library's errors; the rest is shared.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from swerex_c.exceptions import SwerexException
from swerex_c.providers import ownership
from swerex_c.utils import background

__all__ = ["OwnedSandbox", "ask", "sweep"]


@dataclass(frozen=True)
class OwnedSandbox:
    """A sandbox that a process of this package has started."""

    id: str
    """The id of the sandbox in its cloud."""

    name: str
    about: str
    facts: Mapping[str, str]
    """The labels of the sandbox, as returned by `ownership.labels`."""

    end: Callable[[], Awaitable[None]]
    """Delete the sandbox. A sandbox that has already ended is no error."""

    keep: bool = False
    """True if `end` only stops it."""


async def sweep(
    places: AsyncIterator[OwnedSandbox], *, dry_run: bool, sentence: Callable[[Exception], str]
) -> list[ownership.Orphan]:
    """Delete the sandboxes whose owner is dead, and return these sandboxes.

    A failure to delete one does not affect the others; its `error` has the reason.

    Args:
        dry_run: list the orphans without deleting them.
        sentence: formats an error of the provider's library for users.
    """
    left = []
    async for one in places:
        if ownership.is_owner_alive(one.facts) is not False:
            continue
        error = None
        if not dry_run:
            try:
                await one.end()
            except Exception as raised:
                error = sentence(raised)
        owner = ownership.describe_owner(one.facts)
        left.append(ownership.Orphan(one.id, one.name, one.about, owner, one.keep, error))
    return left


def ask(
    work: Coroutine[Any, Any, list[ownership.Orphan]],
    timeout: float,
    failure: Callable[[Exception], SwerexException | None],
) -> list[ownership.Orphan]:
    """Run a coroutine in the event loop of `background` and return its result. Blocks.

    Args:
        failure: converts an error of the provider's library; returns None for an error that is not the library's.

    Raises:
        TimeoutError: if the coroutine takes longer than `timeout` seconds.
        SwerexException: the error that `failure` returns, or one that the coroutine itself raises.
    """
    try:
        return background.run_blocking(work, timeout)
    except (SwerexException, TimeoutError):
        raise
    except Exception as error:
        if (ours := failure(error)) is None:
            raise
        raise ours from error
