"""Slot of a pool, and the environment in it as a user sees it."""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import TYPE_CHECKING

from swerex_c.exceptions import DeploymentNotStartedError, SwerexException
from swerex_c.interfaces import AbstractDeployment

if TYPE_CHECKING:
    from swerex_c.interfaces import AbstractRuntime

__all__ = ["Environment", "Slot", "State"]


class State(Enum):
    STARTING = "starting"
    CHECKING = "checking"
    IDLE = "idle"
    IN_USE = "in use"
    RESETTING = "resetting"
    ENDING = "ending"


class Slot:
    """One of the `size` slots of a pool, with its deployment and state."""

    def __init__(self, number: int):
        self.number = number
        self.state = State.STARTING
        self.begun = False
        """True if a start attempt is running, as opposed to waiting for the start limit or for the next attempt."""

        self.deployment: AbstractDeployment | None = None
        self.task: asyncio.Task[None] | None = None
        """Task that starts, checks, resets or ends the deployment; None while it is idle or in use."""

        self.uses = 0
        self.since = 0.0
        self.taken: type[SwerexException] | None = None
        """Exception class for the reason why the pool ended the environment while it was in use."""


class Environment:
    """Environment that a user holds during an `async with pool.environment()` block."""

    def __init__(self, slot: Slot):
        self._slot = slot
        self._returned = False

    @property
    def name(self) -> str:
        """Name of the environment, unique within the pool and never reused."""
        return f"environment-{self._slot.number}"

    @property
    def deployment(self) -> AbstractDeployment:
        """Deployment of the environment. The pool stops it.

        Raises:
            DeploymentNotStartedError: after the block, because another user may have the environment by then.
        """
        if self._returned or self._slot.deployment is None:
            raise DeploymentNotStartedError("The environment was given back to its pool")
        return self._slot.deployment

    @property
    def runtime(self) -> AbstractRuntime:
        """Runtime of the deployment."""
        return self.deployment.runtime

    @property
    def used_before(self) -> bool:
        """True if the environment had an earlier user and was reset since."""
        return self._slot.uses > 1
