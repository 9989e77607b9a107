"""Find and delete orphans: sandboxes whose owner process is dead.

A provider lists its sandboxes in `find_owned` of its module `deployment`; the rest is shared.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass

from swerex_c.providers import ownership
from swerex_c.providers.base import explained
from swerex_c.utils import background

__all__ = ["OwnedSandbox", "prune"]


@dataclass
class OwnedSandbox:
    """A sandbox that a process of this package has started."""

    id: str
    """The id of the sandbox in its engine or cloud."""

    name: str
    about: str
    """A description for users, such as the image."""

    facts: Mapping[str, str]
    """The labels of the sandbox, as returned by `ownership.labels`."""

    end: Callable[[], Awaitable[object]]
    """Delete the sandbox. A sandbox that has already ended is no error."""

    keep: bool = False
    """True if `end` only stops the sandbox, because it was started with `remove_container=False`."""

    error: str | None = None
    """Why `prune` could not delete the sandbox; None if it did, or in a dry run."""

    @property
    def owner(self) -> str:
        """The owner process for users."""
        return f"process {self.facts.get(ownership.PID, '?')}"


def prune(
    sandboxes: AsyncIterator[OwnedSandbox], *, dry_run: bool = False, timeout: float | None = None
) -> list[OwnedSandbox]:
    """Delete the sandboxes whose owner is dead, and return these sandboxes. Blocks.

    Only sandboxes that this package started on this machine are deleted, in this boot or an earlier one. A failure to
    delete one does not affect the others; its `error` has the reason.

    Args:
        sandboxes: an iterator for the event loop of `background`.
        dry_run: list the orphans without deleting them.
        timeout: maximum seconds to block; None means no limit.

    Raises:
        DeploymentStartupError: if the sandboxes cannot be listed.
        TimeoutError: if the provider does not answer in time.
    """

    async def sweep() -> list[OwnedSandbox]:
        found = []
        async for one in sandboxes:
            if ownership.is_owner_alive(one.facts) is False:
                found.append(one)
                try:
                    if not dry_run:
                        await one.end()
                except Exception as error:
                    one.error = str(error)
        return found

    with explained(str):
        return background.run_blocking(sweep(), timeout)
