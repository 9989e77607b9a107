"""Member of a pool, its environment as a user sees it, and the pool's statistics."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from swerex_c.exceptions import DeploymentNotStartedError, SwerexException
from swerex_c.interfaces import AbstractDeployment, AbstractRuntime

__all__ = ["Environment", "Member", "PoolStats", "State"]


class State(Enum):
    STARTING = "starting"
    CHECKING = "checking"
    IDLE = "idle"
    IN_USE = "in use"
    ENDING = "ending"


class Member:
    """One of at most `size` environments of a pool, from the start of its deployment to the end of its stop."""

    def __init__(self, number: int):
        self.number = number
        self.name = f"environment-{number}"
        self.state = State.STARTING
        self.begun = False
        """True if a start attempt is running, as opposed to waiting for the start limit or for the next attempt."""

        self.deployment: AbstractDeployment | None = None
        self.task: asyncio.Task[None]
        self.wanted = asyncio.Event()
        """Set when the member is idle no longer, but is to be checked for a user."""

        self.since = 0.0
        """Time since when the member is idle."""

        self.is_ended = False
        """True if the pool has cancelled the task."""

        self.taken: SwerexException | None = None
        """Reason why the pool ended the environment while it was in use, for its user."""


class Environment:
    """Environment that a user holds during an `async with pool.environment()` block."""

    def __init__(self, member: Member):
        self._member = member
        self._returned = False

    @property
    def name(self) -> str:
        """Name of the environment, unique within the pool and never reused."""
        return self._member.name

    @property
    def deployment(self) -> AbstractDeployment:
        """Deployment of the environment. The pool stops it.

        Raises:
            DeploymentNotStartedError: after the block.
        """
        if self._returned or self._member.deployment is None:
            raise DeploymentNotStartedError("The environment was given back to its pool")
        return self._member.deployment

    @property
    def runtime(self) -> AbstractRuntime:
        """Runtime of the deployment."""
        return self.deployment.runtime


@dataclass(frozen=True)
class PoolStats:
    """Snapshot of a pool.

    The states add up to at most `size`; `waiting` counts callers instead.
    """

    size: int
    waiting: int
    starting: int
    """Environments that are starting, wait for the start limit, or wait for another attempt."""

    idle: int
    """Environments that are ready and unused, or are being checked."""

    in_use: int
    ending: int
    counts: Mapping[str, int]
    """Numbers since the pool was created, 0 if they are not there.

    Of environments: "handed_out" to a caller, "started", "attempts_failed" and "starts_failed" (after the last
    attempt), "replaced" because they died in use or while idle, ended at the pool's "time_limits", "ended", and
    "ends_failed": parts of these may be left. Of callers: "refused" because the queue was full, and "gave_up" waiting.
    """
