"""A hook that keeps a status line current."""

from __future__ import annotations

from collections.abc import Callable

from swerex_c.deployment.hooks.abstract import DeploymentHook

__all__ = ["SetStatusDeploymentHook"]


class SetStatusDeploymentHook(DeploymentHook):
    """Calls `callable(id, message)` for every step, for instance to update one row of a table of many deployments."""

    def __init__(self, id: str, callable: Callable[[str, str], None]):
        self._id = id
        self._callable = callable

    def _update(self, message: str) -> None:
        self._callable(self._id, message)

    def on_custom_step(self, message: str) -> None:
        self._update(message)
