"""Find and delete orphans: sandboxes whose owner process is dead.

A provider lists its sandboxes as `OwnedSandbox` and formats its library's errors; the rest is shared.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass

from swerex_c.exceptions import DeploymentStartupError, SwerexException
from swerex_c.providers import ownership
from swerex_c.utils import background

__all__ = ["OwnedSandbox", "prune"]


@dataclass(frozen=True)
class OwnedSandbox:
    """A sandbox that a process of this package has started."""

    id: str
    """The id of the sandbox in its cloud."""

    name: str
    about: str
    facts: Mapping[str, str]
    """The labels of the sandbox, as returned by `ownership.labels`."""

    end: Callable[[], Awaitable[object]]
    """Delete the sandbox. A sandbox that has already ended is no error."""

    keep: bool = False
    """True if `end` only stops it."""


def prune(
    sandboxes: AsyncIterator[OwnedSandbox],
    *,
    dry_run: bool,
    timeout: float | None,
    sentence: Callable[[Exception], str],
) -> list[ownership.Orphan]:
    """Delete the sandboxes whose owner is dead, and return these sandboxes. Blocks.

    A failure to delete one does not affect the others; its `error` has the reason.

    Args:
        sandboxes: an iterator for the event loop of `background`.
        dry_run: list the orphans without deleting them.
        timeout: maximum seconds to block; None means no limit.
        sentence: formats an error of the provider's library for users.

    Raises:
        DeploymentStartupError: for an error of the library, if the sandboxes cannot be listed.
        SwerexException: one that the iterator itself raises.
        TimeoutError: if the provider does not answer in time.
    """

    async def sweep() -> list[ownership.Orphan]:
        return [
            await _end(one, dry_run, sentence)
            async for one in sandboxes
            if ownership.is_owner_alive(one.facts) is False
        ]

    try:
        return background.run_blocking(sweep(), timeout)
    except (SwerexException, TimeoutError):
        raise
    except Exception as error:
        raise DeploymentStartupError(sentence(error)) from error


async def _end(one: OwnedSandbox, dry_run: bool, sentence: Callable[[Exception], str]) -> ownership.Orphan:
    error = None
    if not dry_run:
        try:
            await one.end()
        except Exception as raised:
            error = sentence(raised)
    return ownership.Orphan(one.id, one.name, one.about, ownership.describe_owner(one.facts), one.keep, error)
